"""Passages that a query should rank low: groups for a ranking loss, and hard negatives that BM25 finds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.documents import Pair
from decoupled.train.data.examples import Examples

_WORD = re.compile(r"\w+")
K1, B = 0.9, 0.4
"""Lucene's usual settings for passages."""


class Bm25:
    """A small in-memory index: enough for the passages of a training set."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(_words(text)) for text in texts]
        lengths = np.asarray([sum(c.values()) for c in counts], np.float64)
        norm = K1 * (1 - B + B * lengths / max(1.0, float(lengths.mean())))
        rows: dict[str, list[int]] = {}
        times: dict[str, list[int]] = {}
        for number, count in enumerate(counts):
            for word, found in count.items():
                rows.setdefault(word, []).append(number)
                times.setdefault(word, []).append(found)
        self._size = len(texts)
        self._rows: dict[str, npt.NDArray[np.int64]] = {}
        self._weights: dict[str, npt.NDArray[np.float64]] = {}
        for word, held in rows.items():
            where, found_times = np.asarray(held), np.asarray(times[word], np.float64)
            rarity = np.log1p((self._size - len(held) + 0.5) / (len(held) + 0.5))
            self._rows[word] = where
            self._weights[word] = rarity * found_times / (found_times + norm[where])

    def best(self, query: str, k: int) -> list[int]:
        """The `k` best passages, best first; those that share no word with the query are left out."""
        score = np.zeros(self._size)
        for word in set(_words(query)):
            if word in self._rows:
                score[self._rows[word]] += self._weights[word]
        k = min(k, self._size)
        top = np.argpartition(-score, k - 1)[:k]
        return [int(i) for i in top[np.argsort(-score[top], kind="stable")] if score[i] > 0]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def with_hard_negatives(pairs: Sequence[Pair], count: int, *, depth: int = 50) -> list[Pair]:
    """Each query's pairs and `count` more with grade 0: the best of BM25 that no pair of it judges.

    A passage that holds one of the query's known answers is no negative and is passed over.
    """
    texts = list(dict.fromkeys(pair.passage for pair in pairs))
    index = Bm25(texts)
    judged: dict[str, set[str]] = {}
    golds: dict[str, list[str]] = {}
    first: dict[str, Pair] = {}
    for pair in pairs:
        key = pair.group or pair.query
        judged.setdefault(key, set()).add(pair.passage)
        golds.setdefault(key, []).extend(answer.text.lower() for answer in pair.answers)
        first.setdefault(key, pair)
    made = [replace(pair, label=1) if pair.answers else pair for pair in pairs]
    for key, pair in first.items():
        found = 0
        for number in index.best(pair.query, depth):
            text = texts[number]
            if text in judged[key] or any(gold in text.lower() for gold in golds[key]):
                continue
            name = f"{pair.id}:negative{found}"
            made.append(replace(pair, passage=text, label=0, answers=(), id=name, group=key))
            found += 1
            if found == count:
                break
    return made


def rank_groups(made: Examples, negatives: int, seed: int = 0) -> Examples:
    """One group per relevant pair: it and `negatives` of its query, the rest drawn from all passages.

    Given scores stay; a passage that is drawn has none, and counts as the lowest of them.
    """
    draw = np.random.default_rng(seed)
    known: dict[int, list[int]] = {}
    judged: dict[int, set[int]] = {}
    relevant: dict[int, set[int]] = {}
    for row in range(len(made)):
        question, passage = int(made.question[row]), int(made.passage_of[row])
        judged.setdefault(question, set()).add(passage)
        if made.label[row, 0] <= 0:
            known.setdefault(question, []).append(row)
        else:
            relevant.setdefault(question, set()).add(passage)
    rows, passages, label, score = [], [], [], []
    count, lowest = len(made.passages), min(0.0, float(made.score.min(initial=0.0)))
    for positive in np.flatnonzero(made.label[:, 0] > 0).tolist():
        question = int(made.question[positive])
        barred = judged[question] if count > len(judged[question]) else relevant[question]
        if len(barred) == count:
            continue  # every passage is relevant, so none can stand below
        hard = known.get(question, [])
        chosen = [int(i) for i in draw.permutation(hard)[:negatives]]
        picked = [int(made.passage_of[i]) for i in chosen]
        score += [float(made.score[i]) for i in (positive, *chosen)]
        while len(picked) < negatives:
            other = int(draw.integers(count))
            if other not in barred:
                picked.append(other)
                chosen.append(positive)
                score.append(lowest)
        rows += [positive, *chosen]
        passages += [int(made.passage_of[positive]), *picked]
        label += [int(made.label[positive, 0]), *(0 for _ in picked)]
    if not rows:
        raise InputError(
            "no query has a relevant pair (label above 0) and a passage that is not relevant to it, so "
            "there is nothing to rank; label some pairs above 0 and others 0"
        )
    grouped = made.select(np.asarray(rows, np.int64))
    return replace(
        grouped,
        passage_of=np.asarray(passages, np.int32),
        label=np.stack([np.asarray(label, np.int32), np.zeros(len(label), np.int32)], 1),
        score=np.asarray(score, np.float32),
        per_group=negatives + 1,
        share="query",
    )
