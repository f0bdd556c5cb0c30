"""A simulated index of Wikipedia's size: 32 million rows in the table, the bytes of one hundredth of them.

    python benchmarks/scale_simulation.py --json benchmarks/results/scale_simulation.json

A sample of real records is written once; the table then lists the fragment that holds them again and again
under new numbers, and its search index covers them all. So opening, counting, listing, locating and reading
work on as many rows as the real one would have, in the memory that it would take. What the simulation cannot
show is a search through 32 million texts: the postings are those of the sample.
"""

import itertools
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import psutil
from lance import LanceDataset, LanceOperation
from lance.bitmap import Bitmap
from lance.fragment import FragmentMetadata

from bench_report import bytes_under, clocked, percentiles
from cluster import pieces
from decoupled.index.record import Record
from decoupled.index.store.base import Rows, Share
from decoupled.index.store.lance import LanceStore
from decoupled.lab.script import options, write_report

TOKENS, TOKEN_BYTES = 8, 98
QUERY = "who led the army in the war"


def main() -> None:
    """Simulate, then measure what a reader does first."""
    args = options(__doc__, passages=32_000_000, sample=100_000)
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        path, took = Path(scratch) / "wikipedia.idx", []
        clocked(took, lambda: simulate(path, args.passages, args.sample))
        about = {"simulate_s": round(took[0] / 1e3, 1), "bytes_on_disk": bytes_under(path)}
        write_report(args, {**about, **read(path)})


def simulate(path: Path, passages: int, sample: int) -> None:
    """Write the sample, and list its fragment until there are enough rows."""
    states = np.random.default_rng(0).integers(0, 256, (TOKENS, TOKEN_BYTES), np.uint8)
    same = {"offsets": np.zeros((TOKENS, 2), np.int32), "states": states}
    with LanceStore.create(path, token_bytes=TOKEN_BYTES) as store:
        texts = pieces(sample, words=30)
        store.append([Record(id=p.id, text=p.text, **same) for p in texts], part="sample")
        store.optimise()
    dataset = lance.dataset(str(path / "passages.lance"))
    operations = [t.operation for t in dataset.get_transactions() if t is not None]
    index = next(o for o in operations if isinstance(o, LanceOperation.CreateIndex)).new_indices[0]
    (fragment,) = dataset.get_fragments()
    described = json.dumps(fragment.metadata.to_json())
    copies = [FragmentMetadata.from_json(described) for _ in range(passages // sample - 1)]
    append = LanceOperation.Append(copies)
    dataset = LanceDataset.commit(dataset, append, read_version=dataset.version)
    everything = Bitmap([f.fragment_id for f in dataset.get_fragments()])
    covering = LanceOperation.CreateIndex([replace(index, fragment_ids=everything)], [index])
    LanceDataset.commit(dataset, covering, read_version=dataset.version)


def read(path: Path) -> dict[str, Any]:
    """Seconds and memory of what a reader of one of four shards does, in the order in which it would."""
    found: dict[str, Any] = {}
    memory, draw = psutil.Process().memory_info, np.random.default_rng(0)

    def note(name: str, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        before, took = memory().rss, []
        value = clocked(took, partial(work, *args, **options))
        found[f"{name}_ms"] = round(took[0], 1)
        found[f"{name}_mib"] = (memory().rss - before) >> 20
        return value

    def often(make: Callable[[], Callable[[], Any]]) -> dict[str, float]:
        times: list[float] = []
        for _ in range(30):
            clocked(times, make())
        return percentiles(times)

    def drawn(rows: Rows) -> Rows:
        """The same records, in fragments drawn at random."""
        return (draw.integers(0, found["fragments"], len(rows)) << 32) | (rows & 0xFFFF_FFFF)

    store = note("open", LanceStore.open, path, share=Share(number=0, count=4))
    view = store.snapshot
    found["passages"] = note("count", lambda: view.passages)
    found["fragments"] = len(view._at.fragments)
    first_of_each = np.arange(found["fragments"], dtype=np.int64) << 32
    note("list_1000", lambda: list(itertools.islice(view.scan(), 1000)))
    rows = drawn(note("first_search", view.lexical, QUERY, 100).rows)
    found["search"] = often(lambda: partial(view.lexical, QUERY, 100))
    note("where_all_states_lie", view.states, first_of_each)
    found["fetch_100"] = often(lambda: partial(view.states, drawn(rows)))
    note("whose_all_rows_are", view.mine, first_of_each)
    note("find_an_id", view.locate, ["p8", "p9", "p10", "p11", "p12", "p13"])
    note("find_an_id_again", view.locate, ["p18", "p19", "p20", "p21", "p22"])
    note("texts_of_10", view.texts, rows[:10])
    return found


if __name__ == "__main__":
    main()
