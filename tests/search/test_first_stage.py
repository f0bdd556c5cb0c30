"""Two rankings as one, by hand."""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoupled.index.store.base import Ranking, ranking
from decoupled.model.scoring import Scoring
from decoupled.search.first_stage import Candidates, FirstStageQuery, fuse, prior, retrieve
from decoupled.search.signals import STEM, Sample, add_signals, shared_words, stems


def ranked(*rows: int) -> Ranking:
    return Ranking(np.array(rows), np.linspace(9, 1, len(rows), dtype=np.float32))


def test_ranks_are_fused_with_the_published_constant():
    fused = fuse([ranked(7, 3, 5, 4), ranked(2, 9, 8, 4)], 10)
    expected = {4: 2 / 64, 7: 1 / 61, 2: 1 / 61, 3: 1 / 62, 9: 1 / 62, 5: 1 / 63, 8: 1 / 63}
    assert dict(zip(fused.rows.tolist(), fused.scores.tolist(), strict=True)) == pytest.approx(
        expected
    )
    # Twice fourth beats once first: with a small constant it would not.
    assert fused.rows.tolist() == [4, 2, 7, 3, 9, 5, 8]


def test_no_more_than_asked_for():
    assert fuse([ranked(1, 2, 3), ranked(3)], 2).rows.tolist() == [3, 1]


class Counted:
    """A snapshot of ten rows whose scores are known, which counts what it is asked."""

    def __init__(self):
        self.words = {0: 5.0, 1: 4.0, 2: 3.0, 7: 2.0, 8: 1.0}
        self.cosines = {row: row / 10 for row in range(10)}
        self.asked = []

    def lexical(self, query, k, where=None, rows=None):
        return self._found("bm25", self.words, k, rows)

    def dense(self, vector, k, where=None, rows=None):
        return self._found("cosine", self.cosines, k, rows)

    def _found(self, name, scores, k, rows):
        here = [row for row in scores if rows is None or row in rows]
        self.asked.append((name, None if rows is None else rows.tolist()))
        return ranking(np.array(here), np.array([scores[r] for r in here], np.float32), k)


def test_each_row_is_scored_once_and_as_each_search_scores_it():
    snapshot = Counted()
    query = FirstStageQuery(snapshot, "words", np.ones(2, np.float32))
    found = retrieve(query, "hybrid", 3, fusion=0.5)
    # BM25 finds 0, 1, 2 and the vector 9, 8, 7: only what is unknown of these is asked for.
    ways = [("bm25", None), ("cosine", None), ("cosine", [0, 1, 2]), ("bm25", [7, 8, 9])]
    assert snapshot.asked == ways and set(found.rows.tolist()) <= {0, 1, 2, 7, 8, 9}
    assert query.bm25(np.array([9, 0, 8])).tolist() == [0.0, 5.0, 1.0]
    assert query.cosine(np.array([2, 9])).tolist() == pytest.approx([0.2, 0.9])
    known(snapshot, found.rows, query)
    assert snapshot.asked == ways, "all of it is known"
    assert query.bm25(np.array([5])).tolist() == [0.0] and snapshot.asked[-1] == ("bm25", [5])


def known(snapshot, rows, query=None) -> Candidates:
    """Candidates with both scores, as the first stage hands them on."""
    query = query or FirstStageQuery(snapshot, "words", np.ones(3, np.float32))
    return Candidates(rows=rows, own=rows, bm25=query.bm25(rows), cosine=query.cosine(rows))


def blended(snapshot, rows, scoring) -> np.ndarray:
    """What a search adds to the rank logits of these rows."""
    first = prior(known(snapshot, rows), scoring)
    return add_signals(first, scoring, rows, np.zeros(0, np.float32), Sample(snapshot))


class Near(Counted):
    """Rows 2 and 7 say the same as rows 0 and 1; row 8 stands alone, and 9 has no vector."""

    def vectors(self, rows):
        places = {0: (1, 0, 0), 1: (1, 0, 0), 2: (1, 0, 0), 7: (1, 0, 0), 8: (0, 1, 0)}
        return np.array([places.get(row, (0, 0, 0)) for row in rows.tolist()], np.float32)


def test_what_is_near_to_good_candidates_rises():
    snapshot, rows = Near(), np.array([0, 1, 2, 8, 7, 9])
    alone = blended(snapshot, rows, Scoring(bm25=1.0))
    heard = blended(snapshot, rows, Scoring(bm25=1.0, neighbours=0.5)) - alone
    assert heard.mean() == pytest.approx(0, abs=1e-9) and heard.std() == pytest.approx(0.5)
    # The less BM25 thinks of one of the crowd, the better is what it hears; who stands alone hears little.
    by_row = dict(zip(rows.tolist(), heard.tolist(), strict=True))
    assert by_row[7] > by_row[2] > by_row[1] > by_row[0] > by_row[8]
    assert blended(snapshot, rows[:1], Scoring(bm25=1.0, neighbours=0.5)).tolist() == [0.0]


class Telling(Counted):
    """Row 9, which no word of the query is in, tells what the best rows tell; row 8 something else."""

    def texts(self, rows):
        told = {0: "Wing flutter", 1: "fluttering wings", 9: "the flutter of a wing", 8: "a boat"}
        return [
            SimpleNamespace(id=str(row), title="", text=told.get(row, "a"), meta={})
            for row in rows.tolist()
        ]


def test_what_shares_words_with_good_candidates_rises():
    snapshot, rows = Telling(), np.array([0, 1, 2, 7, 8, 9])
    alone = blended(snapshot, rows, Scoring(bm25=1.0))
    heard = blended(snapshot, rows, Scoring(bm25=1.0, feedback=0.4)) - alone
    assert heard.mean() == pytest.approx(0, abs=1e-9) and heard.std() == pytest.approx(0.4)
    assert heard[5] > 0 > heard[4] and alone[5] < alone[4], "nobody asked for its words"
    assert blended(snapshot, rows[:1], Scoring(bm25=1.0, feedback=0.4)).tolist() == [0.0]


def test_shared_words_are_counted_as_by_hand():
    texts, scores = ["red red fox", "red hen", "blue sky now", ""], np.array([1.0, 0.0, -1.0, 2.0])
    share = np.exp(scores) / np.exp(scores).sum()
    long = 0.25 + 0.75 * np.array([3, 2, 3, 0]) / 2
    rare = np.log(1 + 2.5 / 2.5)
    red = rare * 2 / (2 + 1.2 * long[0]), rare / (1 + 1.2 * long[1])
    expected = [red[0] * share[1] * red[1], red[1] * share[0] * red[0], 0.0, 0.0]
    assert shared_words(texts, list("abcd"), scores).tolist() == pytest.approx(expected)
    assert shared_words(texts, list("aacd"), scores).tolist() == pytest.approx([0.0] * 4)
    assert shared_words(["", ""], ["a", "b"], np.zeros(2)).tolist() == [0.0, 0.0]


LETTERS = st.sampled_from(
    "aAbZ09_ .-\n\u0130\u01c5\u00df\u00b2\u0661\u4eac\u5927\u0301\ud800\U0001f600"
)


@given(st.lists(st.text(LETTERS | st.characters(), max_size=30), min_size=1, max_size=5))
def test_words_are_those_of_a_regular_expression(texts):
    expected = [word[:STEM] for text in texts for word in re.findall(r"\w+", text.lower())]
    numbers, counts = stems(texts)
    assert counts.tolist() == [len(re.findall(r"\w+", text.lower())) for text in texts]
    named = dict(zip(numbers.tolist(), expected, strict=True))
    assert [named[number] for number in numbers.tolist()] == expected
    assert sorted(named) == list(range(len(set(expected)))), "one number for each"


def test_more_characters_than_fit_into_a_number():
    draw = np.random.default_rng(0)
    texts = ["".join(map(chr, 0x4E00 + draw.permutation(20_000)[:n])) + " ab ac" for n in (7000, 9)]
    texts = [" ".join(text[i : i + 7] for i in range(0, len(text), 7)) for text in texts]
    expected = [word[:STEM] for text in texts for word in text.split()]
    numbers, _ = stems(texts)
    assert len(set(zip(numbers.tolist(), expected, strict=True))) == len(set(expected))
    assert len(set(numbers.tolist())) == len(set(expected))


def shared_slowly(texts, documents, scores):
    """The same, pair by pair and word by word."""
    said = [Counter(word[:5] for word in text.split()) for text in texts]
    mean = max(1.0, sum(map(Counter.total, said)) / len(said))
    share = np.exp(scores) / np.exp(scores).sum()

    def weight(at, word):
        having = sum(word in own for own in said)
        long = 0.25 + 0.75 * said[at].total() / mean
        rare = np.log(1 + (len(said) - having + 0.5) / (having + 0.5))
        return rare * said[at][word] / (said[at][word] + 1.2 * long)

    return [
        sum(
            weight(one, word) * weight(other, word) * share[other]
            for other in range(len(texts))
            for word in said[one] & said[other]
            if documents[one] != documents[other]
        )
        for one in range(len(texts))
    ]


@pytest.mark.parametrize("most", [1, 2, 6])
def test_shared_words_are_those_of_every_pair(most):
    """Few words in many documents, and longer texts; `rivers` is `river`, `casting` is no castle."""
    draw = np.random.default_rng(most)
    words = ["river", "rivers", "castle", "casting", "mill"][: 2 + most]
    texts = [" ".join(draw.choice(words, draw.integers(0, most + 1))) for _ in range(9)]
    documents, scores = [f"d{n // 2}" for n in range(9)], draw.normal(size=9)
    expected = shared_slowly(texts, documents, scores)
    assert max(expected) > 0
    assert shared_words(texts, documents, scores).tolist() == pytest.approx(expected)
