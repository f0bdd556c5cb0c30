"""Hard negatives: what BM25 and a retriever's vectors find for a query, over every text at hand.

Found once and kept on disk. Texts that may answer the query after all are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from blocks import in_blocks
from bm25 import Bm25
from mixture import Asked, Mixture
from torch import Tensor

from decoupled.train.data.cache import Cache
from decoupled.train.data.lists import COPY, marks_of

Ints = npt.NDArray[np.integer[Any]]

BLOCK = 4096


def mine(
    mixture: Mixture,
    vectors: tuple[Tensor, Tensor] | None,
    cache: Cache,
    *,
    count: int = 24,
    device: torch.device | str = "cpu",
) -> Ints:
    """`[queries,columns]` numbers of texts that are negatives of each query, -1 where there are no more.

    Half of the columns are BM25's; where there are unit vectors of queries and texts, half are theirs.
    """
    total = len(mixture.asked)
    queries = [asked.query for asked in mixture.asked]
    # Texts with a sentence taken out are copies of others.
    real = [number for number, origin in enumerate(mixture.origin) if origin == number]
    numbers = np.asarray(real, np.int64)
    texts = [f"{mixture.texts[n].title} {mixture.texts[n].text}" for n in real]
    index: list[Bm25] = []

    def lexical(part: slice) -> Ints:
        if not index:
            index.append(Bm25(texts, device))
        return _numbers(index[0].top(queries[part], count), numbers)

    found = [in_blocks(cache, "bm25", total, BLOCK, lexical)]
    if vectors is not None:
        asked, known = vectors[0], vectors[1][torch.from_numpy(numbers).to(vectors[1].device)]

        def dense(part: slice) -> Ints:
            near = asked[part].float() @ known.float().T
            return _numbers(near.topk(min(count, len(real)), 1).indices.cpu().numpy(), numbers)

        found.append(in_blocks(cache, "dense", total, max(1, (1 << 27) // len(texts)), dense))
    listed = np.concatenate(found, 1)
    marks = in_blocks(
        cache, "signatures", len(mixture.texts), BLOCK, lambda part: marks_of(mixture.texts[part])
    )
    return in_blocks(
        cache, "negatives", total, BLOCK, lambda part: _allowed(mixture, part, listed[part], marks)
    )


def _numbers(places: Ints, numbers: Ints) -> Ints:
    return np.where(places >= 0, numbers[places], -1)


def _allowed(mixture: Mixture, part: slice, listed: Ints, marks: Ints) -> Ints:
    """Each query's candidates that are negatives, the given ones first."""
    kept = []
    for asked, row in zip(mixture.asked[part], listed, strict=True):
        found = np.asarray(_negatives(mixture, asked, row, marks)[: len(row)], np.int32)
        kept.append(np.pad(found, (0, len(row) - len(found)), constant_values=-1))
    return np.stack(kept)


def _negatives(mixture: Mixture, asked: Asked, row: Ints, marks: Ints) -> list[int]:
    barred = mixture.barred(asked)
    given = [number for number in asked.judged if number not in barred]
    others = [int(n) for n in dict.fromkeys(row.tolist()) if n >= 0 and n not in (*barred, *given)]
    alike = marks[others][:, None] == marks[list(asked.own)]
    copies = (alike.mean(-1) > COPY).any(1)
    return given + [
        number
        for number, copy in zip(others, copies, strict=True)
        if not copy and not any(answer in mixture.lowered[number] for answer in asked.answers)
    ]
