"""A simulated index of Wikipedia's size: 32 million rows in the table, the bytes of one hundredth of them.

    python benchmarks/scale_simulation.py --json benchmarks/results/scale_simulation.json

A sample of real records is written once; the table then lists the fragment that holds them again and again
under new numbers, and its search index covers them all. So opening, counting, listing, locating and reading
work on as many rows as the real one would have, in the memory that it would take. What the simulation cannot
show is a search through 32 million texts: the postings are those of the sample.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import psutil
from lance import LanceDataset, LanceOperation
from lance.bitmap import Bitmap
from lance.fragment import FragmentMetadata

from bench_report import options, percentiles, write_report
from decoupled.index.record import Record
from decoupled.index.store.base import Rows, Share
from decoupled.index.store.lance import LanceStore
from decoupled.search.starter import sample_passages

TOKENS, TOKEN_BYTES = 8, 98
QUERY = "who led the army in the war"


def main() -> None:
    """Simulate, then measure what a reader does first."""
    args = options(__doc__, passages=32_000_000, sample=100_000)
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        path = Path(scratch) / "wikipedia.idx"
        seconds = timed(lambda: simulate(path, args.passages, args.sample))[0]
        size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        results = {"simulate_s": round(seconds, 1), "bytes_on_disk": size, **read(path)}
    write_report(args, results)


def simulate(path: Path, passages: int, sample: int) -> None:
    """Write the sample, and list its fragment until there are enough rows."""
    with LanceStore.create(path, token_bytes=TOKEN_BYTES) as store:
        store.append(records(sample), part="sample")
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
    covering = replace(index, fragment_ids=everything)
    LanceDataset.commit(
        dataset, LanceOperation.CreateIndex([covering], [index]), read_version=dataset.version
    )


def records(count: int) -> list[Record]:
    """Runs of words of the sample passages, with random states."""
    draw = np.random.default_rng(0)
    states = draw.integers(0, 256, (TOKENS, TOKEN_BYTES), np.uint8)
    offsets = np.zeros((TOKENS, 2), np.int32)
    found: list[Record] = []
    while len(found) < count:
        for passage in sample_passages():
            words = passage.text.split()
            for start in range(0, len(words), 30):
                text = " ".join(words[start : start + 30])
                found.append(Record(id=f"p{len(found)}", text=text, offsets=offsets, states=states))
    return found[:count]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what came of it."""
    begun = time.perf_counter()
    value = work()
    return time.perf_counter() - begun, value


def read(path: Path) -> dict[str, Any]:
    """Seconds and memory of what a reader of one of four shards does, in the order in which it would."""
    found: dict[str, Any] = {}
    memory = psutil.Process().memory_info

    def note(name: str, work: Callable[[], Any]) -> Any:
        before = memory().rss
        seconds, value = timed(work)
        found[f"{name}_ms"] = round(seconds * 1e3, 1)
        found[f"{name}_mib"] = (memory().rss - before) >> 20
        return value

    store = note("open", lambda: LanceStore.open(path, share=Share(number=0, count=4)))
    view = store.snapshot
    found["passages"] = note("count", lambda: view.passages)
    found["fragments"] = len(view._at.fragments)
    note("list_1000", lambda: list(itertools.islice(view.scan(), 1000)))
    ranking = note("first_search", lambda: view.lexical(QUERY, 100))
    found["search"] = percentiles(
        [timed(lambda: view.lexical(QUERY, 100))[0] * 1e3 for _ in range(30)]
    )
    draw = np.random.default_rng(0)
    rows = spread(ranking.rows, found["fragments"], draw)
    note("where_all_states_lie", lambda: view.states(every(found["fragments"])))
    found["fetch_100"] = percentiles(
        [
            timed(lambda r=spread(rows, found["fragments"], draw): view.states(r))[0] * 1e3
            for _ in range(30)
        ]
    )
    note("whose_all_rows_are", lambda: view.mine(every(found["fragments"])))
    note("find_an_id", lambda: view.locate(["p8", "p9", "p10", "p11", "p12", "p13"]))
    note("find_an_id_again", lambda: view.locate(["p18", "p19", "p20", "p21", "p22"]))
    note("texts_of_10", lambda: view.texts(rows[:10]))
    return found


def spread(rows: Rows, fragments: int, draw: np.random.Generator) -> Rows:
    """The same records, in fragments drawn at random."""
    return (draw.integers(0, fragments, len(rows)) << 32) | (rows & 0xFFFF_FFFF)


def every(fragments: int) -> Rows:
    """The first row of each fragment."""
    return np.arange(fragments, dtype=np.int64) << 32


if __name__ == "__main__":
    main()
