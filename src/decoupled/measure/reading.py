"""Choose on development data how many candidates of a search must still be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.measure.answer_scoring import Asked
from decoupled.measure.metrics import best_over
from decoupled.model.codec import Codec
from decoupled.model.parts.late import LateSpec, ReadingLoss
from decoupled.model.scoring import Floats
from decoupled.model.spec import ModelSpec
from decoupled.model.states import Encoded, States
from decoupled.search.answers import outcome
from decoupled.search.first_stage import CANDIDATES, standardised
from decoupled.search.late_interaction import LateInteraction
from decoupled.search.request import Search
from decoupled.search.results import Answers

KEEPS = (0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
"""Shares that are tried. Development data have few passages: what is found among many needs no less."""
MOST = ReadingLoss(ndcg=0.002, f1=0.001)
"""Losses up to which reading less is as good as reading all."""

Which = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """A query all of whose candidates were read, and what any choice of them is worth."""

    late: npt.NDArray[np.float32]
    """Scores of late interaction."""
    prior: Floats
    logits: Floats
    """Rank logits, to which `prior` is added."""
    k: int
    value: Callable[[Which], float]

    def chosen(self, how: LateInteraction) -> Which:
        """The candidates that a search would read."""
        return how.choose(how.with_prior(self.late, self.prior), self.k)


def late_scores(how: LateInteraction | None, search: Search, codec: Codec | None) -> Any:
    """The scores of late interaction of a search that was read; empty for a model without it."""
    states = search.windows.states
    if how is None or not isinstance(states, States | Encoded):
        return np.zeros(0, np.float32)
    return how.scores(search.encoding.states, states, codec)


def read_question(spec: ModelSpec, one: Asked, late: npt.NDArray[np.float32]) -> Read:
    """A question as the engine reads it: its value is the F1 of the first answer."""
    search, logits = one.search, one.search.logits

    def f1(which: Which) -> float:
        some = Search(replace(search.request, k=1))
        some.encoding, some.windows = search.encoding, search.windows.take(which)
        some.logits = {kind: rows.select(which) for kind, rows in logits.items()}
        found = outcome(spec, some)
        assert isinstance(found, Answers), found
        return best_over(one.golds, found[0].text if len(found) else "")[1]

    ranks = logits["rank"].values[:, 0].astype(np.float64)
    k = search.request.k or 1
    return Read(late=late, prior=search.windows.prior, logits=ranks, k=k, value=f1)


def choose_reading(
    late: LateSpec, searches: Sequence[Sequence[Read]], questions: Sequence[Read]
) -> tuple[LateSpec, list[dict[str, float]]]:
    """The least share whose losses are within `MOST`, as those of every larger one are, and all of them.

    Searches are grouped by field, which count alike.
    """
    slope = _slope([*chain.from_iterable(searches), *questions])
    whole = [[_whole(one) for one in group] for group in (*searches, questions)]
    chosen, cuts = replace(late, keep=1.0, slope=slope), []
    within = True
    for keep in reversed(KEEPS):
        how = LateInteraction(keep=keep, slope=slope, most=CANDIDATES)
        kept = [[one.chosen(how) for one in group] for group in (*searches, questions)]
        lost = [
            [v - one.value(which) for one, which, v in zip(group, own, values, strict=True)]
            for group, own, values in zip((*searches, questions), kept, whole, strict=True)
        ]
        f1 = float(np.mean(lost[-1])) if questions else None
        loss = ReadingLoss(ndcg=float(np.mean([np.mean(one) for one in lost[:-1] if one])), f1=f1)
        within &= loss.ndcg <= MOST.ndcg and (f1 or 0.0) <= (MOST.f1 or 0.0)
        if within:
            chosen = replace(chosen, keep=keep, loss=loss)
        read = [float(np.mean([len(which) for which in own])) if own else 0.0 for own in kept]
        counts = {"search_reads": float(np.mean(read[:-1])), "ask_reads": read[-1]}
        cuts.append({"keep": keep, **counts, "ndcg_loss": loss.ndcg, "f1_loss": f1 or 0.0})
    return chosen, [{n: round(v, 4) for n, v in cut.items()} for cut in reversed(cuts)]


def _whole(one: Read) -> float:
    return one.value(np.arange(len(one.logits)))


def _slope(every: Sequence[Read]) -> float:
    """Of the rank logit by the standardised scores, by least squares within queries."""
    late = np.concatenate([standardised(one.late.astype(np.float64), CANDIDATES) for one in every])
    rank = np.concatenate([one.logits - one.logits.mean() for one in every])
    return float(late @ rank / max(late @ late, 1e-9))
