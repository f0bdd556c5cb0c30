"""Span logits to answers: the best pairs of start and end among a passage's own tokens.

`logits` hold, for each window, its no-answer row and then a start and an end logit per token. The query has
no rows here and special tokens are left out, so neither can be part of an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decoupled.model.states import Ragged

MAX_TOKENS = 30
"""Longest answer, in tokens (DeFormer)."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TokenSpan:
    """Tokens `first..last` of a window, and the sum of their start and end logits."""

    first: int
    last: int
    score: float


@dataclass(frozen=True, kw_only=True)
class WindowScores:
    """Per window: its best span, the log of the summed weight of all its spans, and no-answer."""

    best: Floats
    total: Floats
    null: Floats


def window_scores(
    logits: Ragged, *, before: int, after: int, max_tokens: int = MAX_TOKENS
) -> WindowScores:
    """Scores of all windows at once; `before` and `after` count the special tokens at the ends.

    `exp(score - log sum of exp(total))` is the probability of a span among all spans of all windows, so
    scores compare across passages.
    """
    padded, real = logits.pad()
    start = np.where(real[:, 1:], padded[:, 1:, 0], -np.inf).astype(np.float64)
    end = np.where(real[:, 1:], padded[:, 1:, 1], -np.inf).astype(np.float64)
    usable = _usable(logits.lengths - 1, start.shape[1], before, after)
    start[~usable] = end[~usable] = -np.inf
    null = padded[:, 0].astype(np.float64).sum(-1)
    top = np.maximum(start.max(1, initial=-np.inf) + end.max(1, initial=-np.inf), -1e30)
    best = np.full(len(logits), -np.inf)
    weight = np.zeros(len(logits))
    for length in range(min(max_tokens, start.shape[1])):
        score = start[:, : start.shape[1] - length] + end[:, length:]
        best = np.maximum(best, score.max(1, initial=-np.inf))
        weight += np.exp(score - top[:, None]).sum(1)
    with np.errstate(divide="ignore"):
        return WindowScores(best=best, total=top + np.log(weight), null=null)


def _usable(
    lengths: npt.NDArray[np.int64], width: int, before: int, after: int
) -> npt.NDArray[np.bool_]:
    place = np.arange(width)
    return (place >= before) & (place < (lengths - after)[:, None])


def best_spans(
    logits_T2: npt.NDArray[np.generic],
    *,
    before: int,
    after: int,
    k: int = 1,
    max_tokens: int = MAX_TOKENS,
) -> list[TokenSpan]:
    """The `k` best spans of one window that do not overlap, best first; without the no-answer row."""
    start = logits_T2[before : len(logits_T2) - after, 0].astype(np.float64)
    end = logits_T2[before : len(logits_T2) - after, 1].astype(np.float64)
    if not len(start):
        return []
    reach = min(max_tokens, len(start))
    padded = np.concatenate([end, np.full(reach - 1, -np.inf)])
    score_TR = start[:, None] + np.lib.stride_tricks.sliding_window_view(padded, reach)
    found: list[TokenSpan] = []
    while len(found) < k:
        flat = int(score_TR.argmax())
        first, length = divmod(flat, reach)
        score = float(score_TR.flat[flat])
        if score == -np.inf:
            break
        last = first + length
        found.append(TokenSpan(first=first + before, last=last + before, score=score))
        # Strike out every span that shares a token with this one.
        score_TR[first : last + 1] = -np.inf
        for earlier in range(max(0, first - reach + 1), first):
            score_TR[earlier, first - earlier :] = -np.inf
    return found
