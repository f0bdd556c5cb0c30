"""Many texts to states: batches of like length within a token budget, results in the caller's order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoupled.runtime.base import Runtime
from decoupled.spec import Side
from decoupled.states import Encoding, States, batches_by_length
from decoupled.text import Ids

TOKEN_BUDGET = 8192
"""Padded tokens per batch: large enough to fill two cores, small enough to stay in cache."""


def encode(
    runtime: Runtime,
    side: Side,
    ids: Sequence[Ids],
    *,
    query_length: int = 0,
    budget: int = TOKEN_BUDGET,
) -> Encoding:
    """States and vector of each text, in order. They do not depend on the other texts."""
    if not ids:
        spec = runtime.spec
        states = States(np.zeros((0, spec.state_width(side)), np.float32), np.zeros(0, np.int64))
        return Encoding(states, np.zeros((0, spec.vector_width), np.float32))
    lengths = np.fromiter((len(i) for i in ids), np.int64, len(ids))
    batches = batches_by_length(lengths, budget)
    parts = [
        runtime.encode(side, [ids[i] for i in batch], query_length=query_length)
        for batch in batches
    ]
    back = np.argsort(np.concatenate(batches), kind="stable")
    states = States.concat([part.states for part in parts]).select(back)
    return Encoding(states, np.concatenate([part.vectors for part in parts])[back])
