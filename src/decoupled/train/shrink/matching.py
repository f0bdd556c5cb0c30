"""Which of these goes with which of those, at the least total cost."""

from __future__ import annotations

from torch import Tensor

from decoupled.errors import MissingDependency


def assignment(cost_MN: Tensor) -> list[tuple[int, int]]:
    """Pairs (row, column) that use each at most once, every row or every column, with the least sum."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise MissingDependency("scipy", "train") from None
    rows, columns = linear_sum_assignment(cost_MN.double().cpu().numpy())
    return [(int(r), int(c)) for r, c in zip(rows, columns, strict=True)]
