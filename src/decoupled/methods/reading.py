"""Choose on development data how many candidates of a search must still be read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from decoupled.measure.metrics import best_over
from decoupled.methods.scores.answers import ReadQuestion
from decoupled.model import annex
from decoupled.model.parts.late import LateSpec, ReadingLoss
from decoupled.model.scoring import Floats
from decoupled.model.spec import ModelSpec
from decoupled.model.states import Encoded, States
from decoupled.search.answers import outcome
from decoupled.search.engine import Engine
from decoupled.search.first_stage import standardised
from decoupled.search.late_interaction import PER_ANSWER, PER_HIT, LateInteraction
from decoupled.search.request import CANDIDATES, SearchRun
from decoupled.search.results import Answers

KEEPS = (0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
"""Shares that are tried. Development data have few passages; a search among many needs no smaller share."""
MOST = ReadingLoss(ndcg=0.002, f1=0.001)
"""Losses up to which reading fewer candidates counts as good as reading all."""

Which = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Early:
    """Scores of candidates that are known before they are read to the last layer."""

    late: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """Scores of late interaction; empty for a model without it."""
    exits: tuple[Floats, ...] = ()
    """Rank logits of each exit."""


def early(engine: Engine, search: SearchRun) -> Early:
    """The early scores of a search all of whose candidates were read."""
    how, states = LateInteraction.of(engine.runtime, 1.0), search.windows.states
    query, late = search.encoding.states, np.zeros(0, np.float32)
    if how is not None and isinstance(states, States | Encoded):
        late = how.scores(query, states, engine.index.codec if engine.index is not None else None)
    if not engine.spec.exits:
        return Early(late=late)
    return Early(late=late, exits=annex.load("exits.fit").exit_logits(engine, query, states))


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """A query all of whose candidates were read, with a function that gives the value of reading some."""

    early: Early
    prior: Floats
    logits: Floats
    """Rank logits, to which `prior` is added."""
    k: int
    value: Callable[[Which], float]
    per: int = PER_HIT
    """The least number of candidates that are read for each of the `k` results."""

    def chosen(self, how: LateInteraction) -> Which:
        """The candidates that a search would read."""
        return how.choose(how.with_prior(self.early.late, self.prior), self.k, self.per)


def read_question(spec: ModelSpec, one: ReadQuestion, early_scores: Early) -> Read:
    """A question as the engine reads it: its value is the F1 of the first answer."""
    search, logits = one.search, one.search.logits

    def f1(which: Which) -> float:
        some = SearchRun(replace(search.request, k=1))
        some.encoding, some.windows = search.encoding, search.windows.take(which)
        some.logits = {kind: rows.select(which) for kind, rows in logits.items()}
        result = outcome(spec, some)
        assert isinstance(result, Answers), result
        return best_over(one.golds, result[0].text if len(result) else "")[1]

    ranks = logits["rank"].values[:, 0].astype(np.float64)
    options = {"k": search.request.k or 1, "per": PER_ANSWER}
    return Read(early=early_scores, prior=search.windows.prior, logits=ranks, value=f1, **options)


def enough(
    spec: ModelSpec, searches: Sequence[Sequence[Read]], questions: Sequence[Read]
) -> tuple[ModelSpec, dict[str, object]]:
    """The spec with what is enough for late interaction and for exits, and all that was tried."""
    cuts: list[dict[str, float]] = []
    if spec.late is not None:
        late, cuts = choose_reading(spec.late, searches, questions)
        spec = replace(spec, late=late)
    if not spec.exits:
        return spec, {"reading": cuts, "exits": [], "layers_run": 1.0}
    fitting = annex.load("exits.fit")
    exits, stops = fitting.choose_exits(spec, searches, questions)
    spec = replace(spec, exits=exits)
    return spec, {"reading": cuts, "exits": stops, "layers_run": fitting.layers_run(spec)}


def choose_reading(
    late: LateSpec, searches: Sequence[Sequence[Read]], questions: Sequence[Read]
) -> tuple[LateSpec, list[dict[str, float]]]:
    """The least share whose losses, like those of larger ones, are within `MOST`; and all that was tried.

    Searches are grouped by field, and fields count alike.
    """
    slope = _slope([*chain.from_iterable(searches), *questions])
    whole = [[_whole(one) for one in group] for group in (*searches, questions)]
    chosen, cuts = replace(late, keep=1.0, slope=slope), []
    within = True
    # From all candidates down: a share counts only if every larger one was good enough too.
    for keep in reversed(KEEPS):
        how = LateInteraction(keep=keep, slope=slope, most=CANDIDATES)
        kept = [[one.chosen(how) for one in group] for group in (*searches, questions)]
        lost = [
            [v - one.value(which) for one, which, v in zip(group, own, values, strict=True)]
            for group, own, values in zip((*searches, questions), kept, whole, strict=True)
        ]
        loss = mean_loss(lost)
        f1 = loss.f1
        # Once a loss is too large, smaller shares that happen to pass again are luck.
        within &= is_within(loss)
        if within:
            chosen = replace(chosen, keep=keep, loss=loss)
        read = [float(np.mean([len(which) for which in own])) if own else 0.0 for own in kept]
        counts = {"search_reads": float(np.mean(read[:-1])), "ask_reads": read[-1]}
        cuts.append({"keep": keep, **counts, "ndcg_loss": loss.ndcg, "f1_loss": f1 or 0.0})
    return chosen, [{n: round(v, 4) for n, v in cut.items()} for cut in reversed(cuts)]


def mean_loss(lost: Sequence[Sequence[float] | Floats]) -> ReadingLoss:
    """The mean over fields of what searches lost, and what questions, which come last, lost."""
    means = [float(np.mean(one)) for one in lost[:-1] if len(one)]
    ndcg = float(np.mean(means)) if means else 0.0
    return ReadingLoss(ndcg=ndcg, f1=float(np.mean(lost[-1])) if len(lost[-1]) else None)


def is_within(loss: ReadingLoss) -> bool:
    """Whether reading less is as good as reading all."""
    return loss.ndcg <= MOST.ndcg and (loss.f1 or 0.0) <= (MOST.f1 or 0.0)


def _whole(one: Read) -> float:
    return one.value(np.arange(len(one.logits)))


def _slope(every: Sequence[Read]) -> float:
    """Rank logits per standard deviation of the late score, by least squares within queries."""
    late = np.concatenate(
        [standardised(one.early.late.astype(np.float64), CANDIDATES) for one in every]
    )
    rank = np.concatenate([one.logits - one.logits.mean() for one in every])
    # Both sides are centred per query, so no intercept is needed.
    return float(late @ rank / max(late @ late, 1e-9))
