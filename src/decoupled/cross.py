"""One query against many passages: the hot loop. Batches of like length, logits in the caller's order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoupled.runtime.base import Logits, Passages, Runtime
from decoupled.spec import HeadKind
from decoupled.states import Ragged, States, batches_by_length


def score(
    runtime: Runtime,
    query: States,
    passages: Passages,
    heads: Sequence[HeadKind],
    *,
    budget: int | None = None,
) -> Logits:
    """Logits of every head for the query (one text) and each passage, in order."""
    if len(passages) == 0:
        return {kind: Ragged(np.zeros((0, 1), np.float32), passages.lengths) for kind in heads}
    lengths = passages.lengths + len(query.values)
    batches = batches_by_length(lengths, budget or runtime.token_budget)
    if len(batches) == 1:
        return runtime.cross(query, passages, heads)
    parts = [runtime.cross(query, passages.select(batch), heads) for batch in batches]
    back = np.argsort(np.concatenate(batches), kind="stable")
    return {kind: Ragged.concat([part[kind] for part in parts]).select(back) for kind in heads}
