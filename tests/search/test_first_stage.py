"""Two rankings as one, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from decoupled.index.store.base import Ranking, ranking
from decoupled.search.first_stage import Candidates, FirstStageQuery, fuse, retrieve


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
