"""Pruning: which sentences of a passage matter to the query, from what the model computes anyway.

No head is trained for it. A unit (a sentence, a list item, a line of code) gets the probability that it holds
what the query looks for, by a logistic regression on how well its tokens match those of the query (late
interaction), on the weight of the answers that begin and end in it, and on the rank of its passage.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from decoupled.index.record import Excerpt
from decoupled.index.store.base import Rows
from decoupled.model.codec import Codec
from decoupled.model.scoring import Floats, sigmoid
from decoupled.model.sentences import sentences
from decoupled.model.states import Encoded, Ragged, States
from decoupled.runtime.base import Runtime
from decoupled.search.cross import score
from decoupled.search.late_interaction import LateProjection, codes_of, directions, states_of
from decoupled.search.request import SearchRun, timed
from decoupled.search.results import Answer, Answers, Evidence, Hit, Hits

Pruned = TypeVar("Pruned", bound="Hit | Evidence")

AUTO = 0.1
"""The probability from which `auto` keeps a sentence (benchmarks/prune.py)."""
GAP = " … "
"""Stands for sentences that were left out."""

# Beyond the sentences of `model/sentences`: full stops of other scripts, list items, lines of code.
_UNIT = re.compile(
    r"[।॥۔؟።။៖｡．]+\s*"
    r"|\n(?=[ \t]*(?:[-*•–]|\(?\w{1,3}[.)])[ \t]+\S)"
    r"|\n(?=[ \t]{2,}\S|[ \t]*[#>$@}{]|[^\n]*[;{}=]\s*(?:\n|$))"
    r"|(?<=[;{}:])[ \t]*\n"
)


def units(text: str) -> list[tuple[int, int]]:
    """Start and end of each unit, without the space around it: sentences, list items, lines of code."""
    bounds, place = {0, len(text)}, 0
    for sentence in sentences(text):
        bounds |= {place + match.end() for match in _UNIT.finditer(sentence)}
        place += len(sentence)
        bounds.add(place)
    cuts, spans = sorted(bounds), []
    for start, end in pairwise(cuts):
        piece = text[start:end]
        if piece.strip():
            left = start + len(piece) - len(piece.lstrip())
            spans.append((left, start + len(piece.rstrip())))
    return spans


def joined(text: str, kept: Sequence[tuple[int, int]]) -> str:
    """The kept ranges of a text in their order, with a mark where something is left out."""
    pieces: list[str] = []
    before = 0
    for start, end in kept:
        between = text[before:start]
        pieces.append(between if not between.strip() else GAP if pieces else "… ")
        pieces.append(text[start:end])
        before = end
    tail = " …" if pieces and text[before:].strip() else ""
    return "".join(pieces).strip() + tail


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A logistic regression on what is known about a unit (benchmarks/prune.py fits it)."""

    match: float
    """Mean over the query's tokens of the best cosine in the unit, as a share of the passage's own."""
    span: float = 0.0
    """Log of the share of the weight of answers that begin and end in the unit."""
    answer: float = 0.0
    """Log-odds of the unit's answers against no answer."""
    rank: float
    """The passage's rank logit."""
    offset: float


READ = Weights(match=6.0, span=0.6, answer=0.1, rank=0.1, offset=-3.0)
"""Where span logits are there: after `ask`, and where few passages are shown."""
MATCHED = Weights(match=12.0, rank=0.3, offset=-11.0)
"""From late interaction and the rank alone."""


class Chances(NamedTuple):
    """The units of a text, and the probability of each that it matters to the query."""

    spans: list[tuple[int, int]]
    values: Floats


class Pruner:
    """Prunes the passages of results, with the model that found them."""

    def __init__(self, runtime: Runtime, codec: Codec | None, whole: bool) -> None:
        """`whole` says that the states of all tokens are there."""
        self._runtime, self._codec, self._whole = runtime, codec, whole
        self._projection = LateProjection.of(runtime)

    def prune(self, search: SearchRun, results: Hits | Answers) -> Hits | Answers:
        """The results with `pruned_text`, `kept` and `highlight`, as their request asks."""
        with timed("cross_ms", search):
            if isinstance(results, Hits):
                places = {(hit.id, hit.offset): hit.text for hit in results}
            else:
                every = [p for a in (*results, *results.rejected) for p in (a, *a.evidence)]
                places = {(place.passage_id, place.offset): place.passage for place in every}
            keys = [key for key in places if key in search.shown]
            chances = dict(
                zip(keys, self._chances(search, [search.shown[k] for k in keys]), strict=True)
            )
        if isinstance(results, Hits):
            hits = (_with(search, h, h.text, chances.get((h.id, h.offset))) for h in results)
            return replace(results, items=tuple(hits))

        def pruned(place: Pruned) -> Pruned:
            return _with(
                search, place, place.passage, chances.get((place.passage_id, place.offset))
            )

        def whole(answers: Sequence[Answer]) -> tuple[Answer, ...]:
            return tuple(
                replace(pruned(a), evidence=tuple(map(pruned, a.evidence))) for a in answers
            )

        return replace(results, items=whole(results.items), rejected=whole(results.rejected))

    def _chances(self, search: SearchRun, windows: Sequence[int]) -> list[Chances]:
        """The units of each window, and the probability of each that it matters."""
        if not windows:
            return []
        which, query = np.array(windows, np.int64), search.encoding.states
        states = search.windows.states.select(which)
        ranks, spans = self._logits(search, which)
        if not isinstance(states, States | Encoded):  # on the device: numpy reads ours
            assert search.windows.snapshot is not None
            states = search.windows.snapshot.states(search.windows.rows[which])
        cosines = self._cosines(query, states)
        ends = np.cumsum(states.lengths).tolist()
        chances = []
        for n, (_, excerpt) in enumerate(search.windows.describe(windows)):
            cosines_TQ = cosines[ends[n] - int(states.lengths[n]) : ends[n]]
            logits_T2 = None if spans is None else spans[n].astype(np.float64)
            chances.append(_unit_chances(excerpt, cosines_TQ, logits_T2, float(ranks[n])))
        return chances

    def _logits(self, search: SearchRun, which: Rows) -> tuple[Floats, Ragged | None]:
        """The rank logit of each window, and its span logits where the model has that head."""
        have, missing = dict(search.logits), []
        for kind in ("rank", "span"):
            if kind not in have and any(head.kind == kind for head in self._runtime.spec.heads):
                missing.append(kind)
        own = {kind: have[kind].select(which) for kind in ("rank", "span") if kind in have}
        kept_all = search.windows.snapshot is None or self._whole
        if missing == ["span"] and not kept_all:
            missing = []
        if missing:
            passages = search.windows.states.select(which)
            own |= score(self._runtime, search.encoding.states, passages, missing)
        ranks = own["rank"].values[:, 0] if "rank" in own else np.zeros(len(which))
        return ranks.astype(np.float64), own.get("span")

    def _cosines(self, query: States, passages: States | Encoded) -> Floats:
        """`[N,Q]`: of each token of the passages with each of the query."""
        if self._projection is None:
            mine, theirs = codes_of(query, self._codec), codes_of(passages, self._codec)
        else:
            weight, (before, after) = self._projection.weight, self._projection.special
            words = np.asarray(query.values, np.float32)[before : len(query.values) - after]
            mine = (words if len(words) else query.values[:1]) @ weight.T
            theirs = np.asarray(states_of(passages, self._codec), np.float32) @ weight.T
        if mine.shape[1] != theirs.shape[1]:
            return np.zeros((len(theirs), 1), np.float32)
        return directions(theirs) @ directions(mine).T


def _unit_chances(
    excerpt: Excerpt, cosines_TQ: Floats, logits_T2: Floats | None, rank: float
) -> Chances:
    """The units of a window and the probability of each; units without a token of their own have 0."""
    spans = units(excerpt.text)
    begins = excerpt.offsets[:, 0]
    real = excerpt.offsets[:, 1] > begins
    tokens = [np.flatnonzero(real & (begins >= a) & (begins < b)) for a, b in spans]
    full = [n for n, own in enumerate(tokens) if len(own)]
    chances = np.zeros(len(spans))
    if full:
        match = np.array([cosines_TQ[tokens[n]].max(0).mean() for n in full], np.float64)
        logit = MATCHED.offset + MATCHED.rank * rank + MATCHED.match * match
        if logits_T2 is not None:
            null, own = logits_T2[0].sum(), logits_T2[1:]
            weight = np.array([np.logaddexp.reduce(own[tokens[n]], 0).sum() for n in full])
            share = weight - np.logaddexp.reduce(weight)
            logit = READ.offset + READ.rank * rank + READ.match * match
            logit = logit + READ.span * share + READ.answer * (weight - null)
        chances[full] = sigmoid(logit)
    return Chances(spans, chances)


def _with(search: SearchRun, result: Pruned, text: str, chances: Chances | None) -> Pruned:
    if chances is None or not len(chances.spans):
        return result
    request = search.request
    best = chances.spans[int(chances.values.argmax())] if request.highlight else None
    if request.prune is None:
        return replace(result, highlight=best)
    least = AUTO if request.prune == "auto" else request.prune
    kept = tuple(s for s, p in zip(chances.spans, chances.values, strict=True) if p >= least)
    return replace(result, pruned_text=joined(text, kept), kept=kept, highlight=best)
