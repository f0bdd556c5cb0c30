"""Queries against their passages: the hot loop. Batches of like length, logits in the caller's order."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from decoupled.index.store.base import Rows
from decoupled.model import annex
from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import ModelSpec
from decoupled.model.states import Encoded, Ragged, States, batches_by_length
from decoupled.runtime.base import Logits, Passages, Runtime
from decoupled.search.request import SearchRun, live, timed

Pair = tuple[States, Passages]
"""One query (one text) and the passages that it is read with."""


def cross_searches(
    spec: ModelSpec, runtime: Runtime, searches: Sequence[SearchRun], budget: int | None
) -> None:
    """Compute the logits of every search; searches that need the same heads share batches."""
    groups: dict[tuple[tuple[HeadKind, ...], bool], list[SearchRun]] = {}
    for search in live(searches):
        request = search.request
        groups.setdefault((heads_of(spec, request.head), request.hops > 1), []).append(search)
    for (heads, together), group in groups.items():
        with timed("cross_ms", *group):
            if together:
                linked = annex.load("hop.links").score_linked
                logits = [linked(runtime, search, heads) for search in group]
            else:
                pairs = [(search.encoding.states, search.windows.states) for search in group]
                logits = score_many(runtime, pairs, heads, budget=budget)
            for search, own in zip(group, logits, strict=True):
                # A model of two classes ranks by the odds of one of them.
                odds = search.request.head == "rank" and "rank" not in own
                search.logits = {"rank": _odds(runtime.spec, own["classes"])} if odds else own


def _odds(spec: ModelSpec, logits: Ragged) -> Ragged:
    """Log-odds of the label to rank by: with two classes, their sigmoid is that label's softmax."""
    signs = np.array(spec.head("classes").signs, np.float32)
    # [P,2] -> [P,1]
    odds = logits.values.astype(np.float32) @ signs[:, None]
    return Ragged(odds, logits.lengths)


def heads_of(spec: ModelSpec, head: HeadKind) -> tuple[HeadKind, ...]:
    """A head, and with `span` the rank head where it must make spans of different passages comparable."""
    if head != "span":
        return (spec.reads(head).kind,)
    learnt = spec.scoring is not None and spec.scoring.answer_rank != 0
    ranked = (learnt or not spec.head("span").null) and any(h.kind == "rank" for h in spec.heads)
    return ("span", "rank") if ranked else ("span",)


def score(
    runtime: Runtime,
    query: States,
    passages: Passages,
    heads: Sequence[HeadKind],
    *,
    budget: int | None = None,
    last: int | None = None,
) -> Logits:
    """Logits of every head for the query (one text) and each passage, in order; or of an exit."""
    if len(passages) == 0:
        return {kind: Ragged(np.zeros((0, 1), np.float32), passages.lengths) for kind in heads}
    # A pair has the tokens of both texts, so the query counts for each of its passages.
    counts, whole = passages.lengths + int(query.lengths[0]), budget or runtime.token_budget
    batches = batches_by_length(counts, whole)
    # The usual case: nothing is copied or put in order again.
    if len(batches) == 1:
        return runtime.cross(query, passages, heads, last=last)
    parts = runtime.each(
        lambda b: runtime.cross(query, passages.select(b), heads, last=last), batches
    )
    return _in_order(parts, batches)


def _in_order(parts: Sequence[Logits], batches: Sequence[Rows]) -> Logits:
    """The logits of batches as those of all passages, in the caller's order."""
    # The inverse of the order in which the batches took the passages.
    back = np.argsort(np.concatenate(batches), kind="stable")
    return {kind: Ragged.concat([part[kind] for part in parts]).select(back) for kind in parts[0]}


def score_many(
    runtime: Runtime,
    pairs: Sequence[Pair],
    heads: Sequence[HeadKind],
    *,
    budget: int | None = None,
    last: int | None = None,
) -> list[Logits]:
    """`score` of several queries, whose passages share batches where the runtime can mix queries."""
    whole = budget or runtime.token_budget
    tokens = [int(p.lengths.sum()) + len(p) * int(query.lengths[0]) for query, p in pairs]
    # A query that fills its own batches gains nothing from company, and would pad the others.
    small = [n for n, count in enumerate(tokens) if runtime.mixes and 0 < count < whole]
    scored: dict[int, Logits] = {}
    alike: dict[object, list[int]] = {}
    for n in small:
        passages = pairs[n][1]
        # Only passages of one kind, or of one block on the device, can be joined to a batch.
        own = type(passages) if isinstance(passages, States | Encoded) else passages.block
        alike.setdefault(own, []).append(n)
    for chosen in (c for c in alike.values() if len(c) > 1):
        mixed = _score_mixed(runtime, [pairs[n] for n in chosen], heads, whole, last)
        scored.update(zip(chosen, mixed, strict=True))
    return [
        scored[n]
        if n in scored
        else score(runtime, query, passages, heads, budget=budget, last=last)
        for n, (query, passages) in enumerate(pairs)
    ]


def _score_mixed(
    runtime: Runtime,
    pairs: Sequence[Pair],
    heads: Sequence[HeadKind],
    budget: int,
    last: int | None,
) -> list[Logits]:
    """Score the passages of several queries in common batches; returns the logits of each query."""
    groups: list[Any] = [p for _, p in pairs]  # all of one kind
    passages: Passages = type(groups[0]).concat(groups)
    queries = States.concat([query for query, _ in pairs])
    counts = [len(p) for _, p in pairs]
    owner = np.repeat(np.arange(len(pairs)), counts)
    batches = batches_by_length(passages.lengths + queries.lengths[owner], budget)
    if len(batches) == 1:
        whole = runtime.cross(queries, passages, heads, owner=owner, last=last)
    else:
        parts = runtime.each(
            lambda b: runtime.cross(queries, passages.select(b), heads, owner=owner[b], last=last),
            batches,
        )
        whole = _in_order(parts, batches)
    ends = np.cumsum(counts)
    return [
        {head: logits.select(np.arange(end - count, end)) for head, logits in whole.items()}
        for end, count in zip(ends.tolist(), counts, strict=True)
    ]
