"""Exits in a search: candidates that an exit ranks too far behind are read no further."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from decoupled.index.store.base import Rows
from decoupled.model.scoring import Floats
from decoupled.model.spec import ModelSpec
from decoupled.runtime.base import Runtime
from decoupled.search.cross import score_many
from decoupled.search.late_interaction import last_result
from decoupled.search.request import SearchRun, live, timed


def stop_early(
    spec: ModelSpec, runtime: Runtime, searches: Sequence[SearchRun], budget: int | None
) -> None:
    """Remove from searches the candidates that exits rank too far behind to be among the results.

    What goes on is read from its first layer again: an exit reads one row, so that its own layer costs a
    fraction of one, and few go on.
    """
    for one in spec.exits:
        margin = one.margin
        some = [s for s in live(searches) if s.request.retrieve and s.request.read != "all"]
        some = [s for s in some if s.request.hops == 1]
        going = [s for s in some if s.request.k and len(s.windows) > s.request.k]
        if margin is None or not going:
            continue
        with timed("cross_ms", *going):
            pairs = [(search.encoding.states, search.windows.states) for search in going]
            logits = score_many(runtime, pairs, ("rank",), budget=budget, last=one.layer)
            for search, own in zip(going, logits, strict=True):
                ranks, k = own["rank"].values[:, 0], search.request.k or 1
                keys: list[object] = []
                if search.request.head == "rank":  # hits are passages, of which each counts once
                    keys = [key for key, _ in search.describe(range(len(ranks)))]
                search.narrow(going_on(ranks, search.windows.prior, k, margin, keys))


def going_on(
    logits: npt.NDArray[np.generic],
    prior: Floats,
    k: int,
    margin: float,
    keys: Sequence[object] = (),
) -> Rows:
    """Rows of the windows that are at most `margin` behind the last of `k` results, in order.

    `prior` is what the first stage adds to the first so many of them; windows of one key are one result.
    """
    scores = logits.astype(np.float64)
    # Results are ranked by the blended score, so the cut is too.
    scores[: len(prior)] += prior
    last = last_result(scores.tolist(), keys, k)
    return np.flatnonzero(scores >= last - margin)
