"""Two rankings as one, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from decoupled.index.store.base import Ranking
from decoupled.search.first_stage import fuse


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
