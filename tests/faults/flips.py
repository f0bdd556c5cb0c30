"""The process that reads an index or a model with one byte changed, and says what became of it.

One line in, `FILE PLACE MASK`; one line out, JSON. It is started anew when it crashes or hangs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from decoupled.errors import DecoupledError
from decoupled.index.index import Index
from decoupled.model import folder
from decoupled.runtime.open import open_runtime
from decoupled.search.engine import Engine

QUERIES = ("which river runs past the town", "castle of number 12", "spring")


def of_index(path: Path, runtime: Any = None) -> list[Any]:
    """All that a reader can be told: counts, searches of both kinds, filters, stored states by id."""
    index = Index.open(path)
    if runtime is not None:  # only the store is asked, so the loaded model serves again
        index._runtime, index._proven = runtime, True
    engine = Engine(index)
    found: list[Any] = [len(index), len(index.store.snapshot)]
    for query in QUERIES:
        for stage in ("lexical", "dense"):
            found.append(_hits(engine.search(query, k=12, first_stage=stage)))
    found.append(_hits(engine.search(QUERIES[0], k=12, where={"n": 12})))
    found.append(_hits(engine.rerank(QUERIES[1], ids=["p1", "p30", "long"])))
    return found


def of_model(path: Path) -> list[Any]:
    """Scores of a few texts, in int8 and in full precision."""
    found: list[Any] = []
    for name in ("openvino-int8", "openvino-fp32"):
        engine = Engine(path, runtime=name)
        texts = ["the river of number 3", "a castle", "the town and the spring of the house"]
        found.append(_hits(engine.rerank(QUERIES[0], texts=texts)))
    folder.read_history(path)
    return found


def _hits(hits: Any) -> list[Any]:
    return [
        (hit.id, round(float(hit.score), 6), hit.text, hit.title, dict(hit.meta)) for hit in hits
    ]


def main() -> None:
    """Serve flips until the input ends."""
    root = Path(sys.argv[1])
    index, model = root / "index", root / "model"
    runtime = open_runtime(index / "model", Index.open(index).codec)
    sound = {"index": json.dumps(of_index(index)), "model": json.dumps(of_model(model))}
    same = json.dumps(of_index(index, runtime)) == sound["index"] and len(Index.open(index)) > 1
    sys.stdout.write(json.dumps({"ready": same}) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        name, place, mask = line.rsplit(" ", 2)
        kind, shared = name.partition("/")[0], None if "/model/" in f"/{name}" else runtime
        path, before = root / name, (root / name).read_bytes()
        content = bytearray(before)
        content[int(place)] ^= int(mask)
        path.write_bytes(content)
        try:
            found = of_index(index, shared) if kind == "index" else of_model(model)
            outcome = "harmless" if json.dumps(found) == sound[kind] else "wrong"
            said = ""
        except DecoupledError as error:
            outcome, said = "refused", str(error)
        except Exception as error:
            outcome, said = "traceback", f"{type(error).__name__}: {error}"
        finally:
            path.write_bytes(before)
        sys.stdout.write(json.dumps({"outcome": outcome, "said": said[:300]}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
