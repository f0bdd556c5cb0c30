"""Where to split, by the scores of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from decoupled.errors import InputError

KEEP = 0.98
"""Share of the joint model's score that a split should keep. DeFormer's choice, layer 9 of 12, keeps 97 to
99.8% on its five tasks."""
VISIBLE = 0.99
"""Below this share of the joint score a loss is visible."""


@dataclass(frozen=True, kw_only=True)
class Knees:
    """The two places where a curve of scores bends (Decoupled Transformer, figure 3)."""

    first: int
    """The deepest split before the loss becomes visible."""
    second: int
    """The split before the steepest fall."""


def best_trade_off(scores: Mapping[int, float], *, keep: float = KEEP) -> int:
    """The deepest split that keeps that share of the joint model's score, as does every one before it."""
    if 0 not in scores:
        raise InputError(
            f"the splits {', '.join(map(str, sorted(scores)))} were scored without the joint model; "
            "score split 0 too"
        )
    best = 0
    for split in sorted(scores):
        if scores[split] < keep * scores[0]:
            break
        best = split
    return best


def knees(scores: Mapping[int, float]) -> Knees:
    """Where the loss becomes visible, and where it grows fastest."""
    order = sorted(scores)
    if len(order) < 3:
        raise InputError(f"{len(order)} splits were scored; two knees need at least 3")
    drops = [(scores[a] - scores[b]) / (b - a) for a, b in pairwise(order)]
    first = best_trade_off(scores, keep=VISIBLE)
    # A second knee at or before the first says nothing new, so it is looked for beyond.
    after = [n for n in range(len(drops)) if order[n] >= first]
    steepest = max(after, key=lambda n: drops[n], default=len(drops) - 1)
    return Knees(first=first, second=order[steepest])
