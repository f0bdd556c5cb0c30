"""Where to split: from the curves of the layers before any training, or from the scores of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from decoupled.errors import InputError

KEEP = 0.98
"""Share of the joint model's score that a split should keep. DeFormer's choice, layer 9 of 12, keeps 97 to
99.8% on its five tasks."""
VISIBLE = 0.99
"""Below this share of the joint score a loss is visible."""
LEAVE = 0.5
"""Share of the attention between the texts that must remain above the split. Of the three values that were
tried (0.3, 0.4, 0.5) it agrees best with the trained sweeps of benchmarks/suggestion.py, and is farthest from
where a curve changes its answer: fitted to them, not tested by them."""


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A split to train at, and what speaks for each of them."""

    split: int
    remaining: tuple[float, ...]
    """Share of the crossing attention above each split, from 0 to all layers."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, rounded."""
        return {"split": self.split, "remaining": [round(value, 4) for value in self.remaining]}


@dataclass(frozen=True, kw_only=True)
class Knees:
    """The two places where a curve of scores bends (Decoupled Transformer, figure 3)."""

    first: int
    """The deepest split before the loss becomes visible."""
    second: int
    """The split before the steepest fall."""


def suggest(
    crossing_query: Sequence[float], crossing_passage: Sequence[float], *, leave: float = LEAVE
) -> Suggestion:
    """The deepest split that leaves enough of the attention between both texts to the layers above it.

    A layer that reads one text alone gives up the attention that it spent on the other. Training moves some
    of it up, as far as the layers above have room for it.
    """
    mass = [(a + b) / 2 for a, b in zip(crossing_query, crossing_passage, strict=True)]
    total = sum(mass)
    if not mass or total <= 0:
        raise InputError("the curves hold no attention between the texts; measure them on pairs")
    remaining = tuple(sum(mass[k:]) / total for k in range(len(mass) + 1))
    good = [k for k in range(len(mass)) if remaining[k] >= leave]
    return Suggestion(split=max(good, default=0), remaining=remaining)


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
