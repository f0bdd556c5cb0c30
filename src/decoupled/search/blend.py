"""Between late interaction and the cross component: what is added to the rank logits, and what is read."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from decoupled.model.codec import Codec
from decoupled.model.spec import ModelSpec
from decoupled.model.states import Encoded, States
from decoupled.search.fetch import Fetched
from decoupled.search.first_stage import blended, prior
from decoupled.search.late_interaction import LateInteraction, per_result
from decoupled.search.request import SearchRun, Windows, timed


def blend(search: SearchRun, spec: ModelSpec, stored: Fetched, windows: Windows) -> Windows:
    """The windows with what is added to the rank logits of those that the first stage found."""
    scoring = blended(search.request, spec)
    if scoring is None or windows.snapshot is None:
        return windows
    with timed("retrieve_ms", search):
        # Standardised over all candidates, so that every share says the same about its own.
        added = search.request.blend * prior(stored.candidates, scoring)
        return replace(windows, prior=added[stored.own])


def worth_reading(
    how: LateInteraction, search: SearchRun, stored: Fetched, codec: Codec | None, full: int
) -> npt.NDArray[np.int64]:
    """Which windows of a search the cross component reads; a window that was cut has `full` tokens."""
    windows, k = search.windows, search.request.k or 1
    states = windows.states
    if not isinstance(states, States | Encoded):  # on the device: numpy reads ours
        assert stored.states is not None
        states = stored.states
    scores = how.scores(search.encoding.states, states, codec)
    expected, per = how.with_prior(scores, windows.prior), per_result(search.request.head)
    chosen = how.choose(expected, k, per)
    # Of two windows of one passage, which are one hit, the first is full.
    if search.request.head == "rank" and (windows.states.lengths[chosen] >= full).any():
        keys = [key for key, _ in search.describe(range(len(windows)))]
        chosen = how.choose(expected, k, per, keys)
    return chosen
