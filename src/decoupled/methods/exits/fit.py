"""Choose on development data how far behind a candidate must be for an exit to stop it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from decoupled.methods.exits.search import going_on
from decoupled.methods.reading import Read, Which, is_within, mean_loss
from decoupled.model.parts.exits import ExitSpec
from decoupled.model.scoring import Floats
from decoupled.model.spec import ModelSpec
from decoupled.model.states import States
from decoupled.runtime.base import Passages
from decoupled.search.cross import score
from decoupled.search.engine import Engine
from decoupled.search.late_interaction import LateInteraction
from decoupled.search.request import CANDIDATES

MARGINS = (8.0, 6.0, 5.0, 4.0, 3.0, 2.5, 2.0, 1.5, 1.0, 0.75, 0.5, 0.25, 0.0)
"""Margins that are tried, in logits."""
ONE_ROW = 0.2
"""Share of a layer's work that is left where only one of its rows is read."""


def exit_logits(engine: Engine, query: States, passages: Passages) -> tuple[Floats, ...]:
    """The rank logits of the passages by each exit of a model."""
    exits = engine.spec.exits
    logits = [score(engine.runtime, query, passages, ("rank",), last=e.layer) for e in exits]
    return tuple(one["rank"].values[:, 0].astype(float) for one in logits)


def choose_exits(
    spec: ModelSpec, searches: Sequence[Sequence[Read]], questions: Sequence[Read]
) -> tuple[tuple[ExitSpec, ...], list[dict[str, object]]]:
    """Each exit with the least margin whose losses are within `MOST`, given what earlier exits stop.

    An exit gets no margin where it would stop too few to be worth its layers. Also all that was tried.
    """
    ends = np.cumsum([len(group) for group in (*searches, questions)])[:-1]
    every, late = [*chain.from_iterable(searches), *questions], spec.late
    going = [np.arange(len(one.logits)) for one in every]
    if late is not None and late.keep is not None:
        how = LateInteraction(keep=late.keep, slope=late.slope, most=CANDIDATES)
        going = [one.chosen(how) for one in every]
    above = len(spec.layers) - spec.split - 1 + ONE_ROW
    chosen, tried = list[ExitSpec](), list[dict[str, object]]()
    for number, one_exit in enumerate(spec.exits):
        before = np.array([one.value(own) for one, own in zip(every, going, strict=True)])
        best, start = one_exit, going
        # From generous to strict: the first margin that loses too much ends the search.
        for margin in MARGINS:
            kept = [
                _going_on(one, own, number, margin) for one, own in zip(every, start, strict=True)
            ]
            after = [one.value(own) for one, own in zip(every, kept, strict=True)]
            loss = mean_loss(np.split(before - after, ends))
            stops = round(1 - sum(map(len, kept)) / max(1, sum(map(len, start))), 4)
            tried.append({"layer": one_exit.layer, "margin": margin, "stops": stops, **vars(loss)})
            if not is_within(loss):
                break
            # An exit pays if the layers it spares for those it stops exceed its own cost for all.
            if stops * above > one_exit.layer - spec.split - 1 + ONE_ROW:
                best, going = replace(one_exit, margin=margin, stops=stops), kept
        chosen.append(best)
    return tuple(chosen), tried


def _going_on(read: Read, which: Which, number: int, margin: float) -> Which:
    """The candidates that an exit lets pass."""
    if len(which) <= read.k:
        return which
    prior = read.prior[which] if len(read.prior) else read.prior
    return which[going_on(read.early.exits[number][which], prior, read.k, margin)]


def layers_run(spec: ModelSpec) -> float:
    """The mean share of the cross layers that run for a candidate, by what the exits stop.

    A candidate that goes on begins again at the first cross layer.
    """
    above = len(spec.layers) - spec.split - 1 + ONE_ROW
    going, run = 1.0, 0.0
    for one in (used for used in spec.exits if used.margin is not None):
        run += going * (one.layer - spec.split - 1 + ONE_ROW)
        going *= 1 - (one.stops or 0.0)
    return round((run + going * above) / above, 4) if above else 1.0
