"""Queries against their passages: the hot loop. Batches of like length, logits in the caller's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decoupled.model.parts.head import HeadKind
from decoupled.model.states import Encoded, Ragged, States, batches_by_length
from decoupled.runtime.base import Logits, Passages, Runtime


@dataclass(frozen=True, eq=False)
class Pairs:
    """One query (one text) and the passages that it is read with."""

    query: States
    passages: Passages


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
    parts = runtime.each(lambda b: runtime.cross(query, passages.select(b), heads), batches)
    back = np.argsort(np.concatenate(batches), kind="stable")
    return {kind: Ragged.concat([part[kind] for part in parts]).select(back) for kind in heads}


def score_many(
    runtime: Runtime,
    pairs: Sequence[Pairs],
    heads: Sequence[HeadKind],
    *,
    budget: int | None = None,
) -> list[Logits]:
    """`score` of several queries, whose passages share batches where the runtime can mix queries."""
    whole = budget or runtime.token_budget
    tokens = [int(p.passages.lengths.sum()) + len(p.passages) * len(p.query.values) for p in pairs]
    # A query that fills its own batches gains nothing from company, and would pad the others.
    small = [
        n
        for n, count in enumerate(tokens)
        if runtime.mixes and 0 < count < whole and len(pairs) > 1
    ]
    found: dict[int, Logits] = {}
    for kind in (States, Encoded):
        chosen = [n for n in small if isinstance(pairs[n].passages, kind)]
        if len(chosen) > 1:
            together = [pairs[n] for n in chosen]
            found.update(
                zip(chosen, _score_mixed(runtime, together, kind, heads, whole), strict=True)
            )
    for n, pair in enumerate(pairs):
        if n not in found:
            found[n] = score(runtime, pair.query, pair.passages, heads, budget=budget)
    return [found[n] for n in range(len(pairs))]


def _score_mixed(
    runtime: Runtime,
    pairs: Sequence[Pairs],
    kind: type[States] | type[Encoded],
    heads: Sequence[HeadKind],
    budget: int,
) -> list[Logits]:
    """Passages of several queries in common batches."""
    passages = kind.concat([p.passages for p in pairs])  # type: ignore[misc]  # all of one kind
    queries = States.concat([p.query for p in pairs])
    counts = [len(p.passages) for p in pairs]
    owner = np.repeat(np.arange(len(pairs)), counts)
    batches = batches_by_length(passages.lengths + queries.lengths[owner], budget)
    parts = runtime.each(
        lambda b: runtime.cross(queries.select(owner[b]), passages.select(b), heads), batches
    )
    back = np.argsort(np.concatenate(batches), kind="stable")
    whole = {head: Ragged.concat([part[head] for part in parts]).select(back) for head in heads}
    ends = np.cumsum(counts)
    return [
        {head: logits.select(np.arange(end - count, end)) for head, logits in whole.items()}
        for end, count in zip(ends.tolist(), counts, strict=True)
    ]
