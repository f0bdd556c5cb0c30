"""BM25 candidates of every SQuAD question, for hard negatives and for evaluation.

    python benchmarks/mine_candidates.py --train train-v1.1.json --dev dev-v1.1.json --output mined.npz

Passages are numbered as `read_passages(train, dev)` gives them. Training questions are searched in the
training passages, development questions in all of them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from decoupled import read_pairs, read_passages
from decoupled.index.record import Record
from decoupled.index.store.lance import LanceStore


def main() -> None:
    """Index, search, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", required=True)
    parser.add_argument("--dev", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--negatives", type=int, default=16)
    args = parser.parse_args()
    train = [p.text for p in read_passages(args.train)]
    both = list(dict.fromkeys([*train, *(p.text for p in read_passages(args.dev))]))
    np.savez_compressed(
        args.output,
        train=search(train, [p.query for p in read_pairs(args.train)], args.negatives),
        dev=search(both, [p.query for p in read_pairs(args.dev)], 100),
        counts=np.array([len(train), len(both)]),
    )


def search(texts: Sequence[str], queries: Sequence[str], k: int) -> np.ndarray:
    """`[queries,k]` numbers of the best texts; -1 where fewer were found."""
    found = np.full((len(queries), k), -1, np.int32)
    with tempfile.TemporaryDirectory() as folder:
        store = LanceStore.create(Path(folder) / "s", token_bytes=1)
        numbered = iter(enumerate(texts))
        part = 0
        while batch := list(islice(numbered, 5000)):
            store.append([bare(number, text) for number, text in batch], part=str(part))
            part += 1
        store.compact()
        snapshot = store.snapshot
        names = [int(e.id) for e in snapshot.scan()]
        place = {
            int(row): names[n] for n, row in enumerate(snapshot.locate([str(i) for i in names]))
        }
        for number, query in enumerate(queries):
            rows = snapshot.lexical(query, k).rows
            found[number, : len(rows)] = [place[int(row)] for row in rows]
            if number % 5000 == 0:
                print(f"{number} of {len(queries)}", flush=True)
    return found


def bare(number: int, text: str) -> Record:
    """A record without states."""
    return Record(
        id=str(number),
        text=text,
        offsets=np.zeros((0, 2), np.int32),
        states=np.zeros((0, 1), np.uint8),
    )


if __name__ == "__main__":
    main()
