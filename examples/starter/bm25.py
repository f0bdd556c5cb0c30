"""BM25 over the passages of a training set, in memory and on any device."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_WORD = re.compile(r"\w+")
K1, B = 0.9, 0.4
"""Lucene's usual settings for passages."""
SCORES = 1 << 25
"""Scores that are held at once."""


class Bm25:
    """Postings of every word: the passages that hold it, and what it counts for in each."""

    def __init__(self, texts: Sequence[str], device: torch.device | str = "cpu") -> None:
        self._number: dict[str, int] = {}
        self._size = len(texts)
        found = [[self._number.setdefault(w, len(self._number)) for w in _words(t)] for t in texts]
        lengths = np.asarray([len(ids) for ids in found], np.int64)
        words = np.fromiter((i for ids in found for i in ids), np.int64, int(lengths.sum()))
        key = words * self._size + np.repeat(np.arange(self._size), lengths)
        key, times = np.unique(key, return_counts=True)
        word, row = key // max(1, self._size), key % max(1, self._size)
        held = np.bincount(word, minlength=len(self._number))
        rarity = np.log1p((self._size - held + 0.5) / (held + 0.5))
        norm = K1 * (1 - B + B * lengths / max(1.0, float(lengths.mean()) if len(lengths) else 1.0))
        weight = rarity[word] * times / (times + norm[row])
        arrays = (row, weight.astype(np.float32), held, np.cumsum(held) - held)
        self._row, self._weight, self._held, self._start = (
            torch.from_numpy(array).to(device) for array in arrays
        )

    def top(self, queries: Sequence[str], k: int) -> npt.NDArray[np.int64]:
        """`[queries,k]` best passages, best first; -1 where fewer share a word with the query."""
        k, block = min(k, self._size), max(1, min(256, SCORES // max(1, self._size)))
        best = np.full((len(queries), k), -1, np.int64)
        for at in range(0, len(queries), block):
            score, row = self._scores(queries[at : at + block]).topk(k)
            best[at : at + block] = torch.where(score > 0, row, -1).cpu().numpy()
        return best

    def best(self, query: str, k: int) -> list[int]:
        """The `k` best passages, best first; those that share no word with the query are left out."""
        return [int(number) for number in self.top([query], k)[0] if number >= 0]

    def _scores(self, queries: Sequence[str]) -> Tensor:
        """`[queries,passages]`."""
        device = self._row.device
        pairs = [
            (number, self._number[word])
            for number, query in enumerate(queries)
            for word in sorted(set(_words(query)) & self._number.keys())
        ]
        score = torch.zeros(len(queries) * self._size, device=device)
        if pairs:
            query_N, word_N = torch.tensor(pairs, device=device).T
            held_N = self._held[word_N]
            before_N = self._start[word_N] - (held_N.cumsum(0) - held_N)
            place = before_N.repeat_interleave(held_N)
            place += torch.arange(len(place), device=device)
            into = (query_N * self._size).repeat_interleave(held_N) + self._row[place]
            score.index_add_(0, into, self._weight[place])
        return score.view(len(queries), self._size)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
