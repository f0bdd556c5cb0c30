"""Pruning: which sentences of a passage matter to the query, from heads that the model has anyway.

No head is trained for it. A unit (a sentence, a list item, a line of code) gets the probability that it holds
what the query looks for: from the weight of the answers that begin and end in it and the rank of its passage,
or, for a model that finds no answers, from how well its tokens match those of the query: by their states, or
by their words where query and passage are stored in spaces of their own.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from decoupled.index.index import Index
from decoupled.index.record import Excerpt
from decoupled.index.store.base import Rows
from decoupled.model.parts.head import HeadKind
from decoupled.model.scoring import Floats, sigmoid
from decoupled.model.sentences import sentences
from decoupled.model.states import Encoded, States
from decoupled.runtime.base import Passages, Runtime
from decoupled.search.answers import Outcome
from decoupled.search.cross import score
from decoupled.search.late_interaction import LateProjection, codes_of, directions, states_of
from decoupled.search.request import SearchRun, timed
from decoupled.search.results import Answer, Answers, Evidence, Hit, Hits

Pruned = TypeVar("Pruned", Hit, Evidence, Answer)
Tokens = npt.NDArray[np.int64]
"""Numbers of the tokens of a unit."""

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
_WORD = re.compile(r"\w+")


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


class Weights(NamedTuple):
    """A logistic regression on features of a unit (`benchmarks/prune.py --fit`)."""

    features: tuple[float, ...]
    offset: float


READ = Weights((0.413, 0.104, 0.617, -0.5), 2.578)
"""On `read_features`: share of the answers, answers against none, the passage's rank, tokens it costs."""
MATCHED = Weights((2.976, 23.261, 0.413), -2.352)
"""On `match_features`: the unit's match, how far it is behind the best of its passage, the passage's rank."""
SHARED = Weights((2.062, 6.144, 0.226), -1.094)
"""The same where words are compared, not states."""


class Chances(NamedTuple):
    """The units of a text, and the probability of each that it matters to the query."""

    spans: list[tuple[int, int]]
    values: Floats


class Pruner:
    """Prunes the passages of results, with the model that found them."""

    def __init__(self, runtime: Runtime, index: Index | None) -> None:
        whole = index is None or index.keep_tokens == 1
        self._runtime, self._codec = runtime, None if index is None else index.codec
        self._projection, spec = LateProjection.of(runtime), runtime.spec
        # Keys and values, or a projection of passages alone: states of a query are not like theirs.
        self._apart = spec.state_width("query") != spec.state_width("passage")
        kinds: tuple[HeadKind, ...] = ("rank", "span") if whole else ("rank",)
        self._heads = [kind for kind in kinds if any(h.kind == kind for h in spec.heads)]

    def prune(self, search: SearchRun, results: Outcome) -> Outcome:
        """The results with `pruned_text`, `kept` and `highlight`, as their request asks; else as they are."""
        if not search.request.prunes or not isinstance(results, Hits | Answers):
            return results
        if isinstance(results, Hits):
            keys = [(hit.id, hit.offset) for hit in results]
        else:
            every = [p for a in (*results, *results.rejected) for p in (a, *a.evidence)]
            keys = [(place.passage_id, place.offset) for place in every]
        shown = [key for key in dict.fromkeys(keys) if key in search.shown]
        with timed("cross_ms", search):
            own = self._chances(search, [search.shown[key] for key in shown])
        chances = dict(zip(shown, own, strict=True))
        timing = search.timing()
        if isinstance(results, Hits):
            hits = tuple(_with(search, h, h.text, chances.get((h.id, h.offset))) for h in results)
            return Hits(**{**vars(results), "items": hits, "timing": timing})
        items, rejected = (
            tuple(_whole(search, answer, chances) for answer in some)
            for some in (results.items, results.rejected)
        )
        return replace(results, items=items, rejected=rejected, timing=timing)

    def _chances(self, search: SearchRun, windows: Sequence[int]) -> list[Chances]:
        """The units of each window, and the probability of each that it matters."""
        if not windows:
            return []
        which = np.array(windows, np.int64)
        passages = search.windows.states.select(which)
        logits = {kind: search.logits[kind].select(which) for kind in search.logits}
        missing = [kind for kind in self._heads if kind not in logits]
        if missing:  # a pass of its own, so that the scores stay what they are without pruning
            logits |= score(self._runtime, search.encoding.states, passages, missing)
        none = np.zeros((len(which), 1))
        ranks = np.asarray(logits["rank"].values if "rank" in logits else none, np.float64)[:, 0]
        excerpts = [excerpt for _, excerpt in search.windows.describe(windows)]
        features = read_features if "span" in logits else match_features
        if "span" in logits:
            values = [logits["span"][n].astype(np.float64) for n in range(len(which))]
            weights = READ
        elif self._apart:
            values = [shared_words(search.request.query, excerpt) for excerpt in excerpts]
            weights = SHARED
        else:
            values, weights = self._cosines(search, which, passages), MATCHED
        each = zip(excerpts, values, ranks.tolist(), strict=True)
        return [_unit_chances(e, weights, partial(features, v, r)) for e, v, r in each]

    def _cosines(self, search: SearchRun, which: Rows, passages: Passages) -> list[Floats]:
        """`[T,Q]` for each window: the cosines of its tokens with those of the query."""
        if not isinstance(passages, States | Encoded):  # on the device: numpy reads ours
            assert search.windows.snapshot is not None
            passages = search.windows.snapshot.states(search.windows.rows[which])
        query = search.encoding.states
        if self._projection is None:
            mine, theirs = codes_of(query, self._codec), codes_of(passages, self._codec)
        else:
            weight, (before, after) = self._projection.weight, self._projection.special
            every = np.asarray(query.values, np.float32)
            words = every[before : len(every) - after]
            mine = (words if len(words) else every[:1]) @ weight.T
            theirs = np.asarray(states_of(passages, self._codec), np.float32) @ weight.T
        cosines_NQ = np.asarray(directions(theirs) @ directions(mine).T, np.float64)
        return np.split(cosines_NQ, np.cumsum(passages.lengths)[:-1])


def read_features(logits_T2: Floats, rank: float, tokens: list[Tokens]) -> Floats:
    """`[U,4]` features of units from span logits, the first row of which is no answer."""
    own = logits_T2[1:]
    weight = np.array([np.logaddexp.reduce(own[some], 0).sum() for some in tokens])
    share, odds = weight - np.logaddexp.reduce(weight), weight - logits_T2[0].sum()
    size = np.log([len(some) for some in tokens])
    return np.stack([share, odds, np.full(len(tokens), rank), size], 1)


def match_features(cosines_TQ: Floats, rank: float, tokens: list[Tokens]) -> Floats:
    """`[U,3]` features of units from the cosines of their tokens with those of the query."""
    match = np.array([cosines_TQ[some].max(0).mean() for some in tokens])
    return np.stack([match, match - match.max(), np.full(len(tokens), rank)], 1)


def shared_words(query: str, excerpt: Excerpt) -> Floats:
    """`[T,Q]`: 1 where a token of the passage begins a word that the query has too."""
    words = {word: n for n, word in enumerate(sorted(set(_WORD.findall(query.lower()))))}
    # A token may begin with the space before its word.
    ends = excerpt.offsets[:, 1]
    matches_TQ = np.zeros((len(ends), max(len(words), 1)))
    for word in _WORD.finditer(excerpt.text):
        if (own := word[0].lower()) in words:
            token = np.flatnonzero(ends > word.start())[:1]
            matches_TQ[token, words[own]] = 1
    return matches_TQ


def tokens_of(excerpt: Excerpt, spans: Sequence[tuple[int, int]]) -> list[Tokens]:
    """The numbers of the tokens that begin in each unit."""
    begins = excerpt.offsets[:, 0]
    real = excerpt.offsets[:, 1] > begins
    return [np.flatnonzero(real & (begins >= a) & (begins < b)) for a, b in spans]


def _unit_chances(
    excerpt: Excerpt, weights: Weights, features: Callable[[list[Tokens]], Floats]
) -> Chances:
    """The units of a window and the probability of each; one that no token begins in goes with none."""
    spans = units(excerpt.text)
    tokens = tokens_of(excerpt, spans)
    full = [n for n, own in enumerate(tokens) if len(own)]
    values = np.zeros(len(spans))
    if full:
        logits = features([tokens[n] for n in full]) @ np.array(weights.features) + weights.offset
        values[full] = sigmoid(logits)
    return Chances(spans, values)


def _whole(search: SearchRun, answer: Answer, chances: Mapping[tuple[str, int], Chances]) -> Answer:
    """An answer whose passage, and those of its evidence, are pruned."""

    def pruned(place: Pruned) -> Pruned:
        assert isinstance(place, Evidence)
        own = chances.get((place.passage_id, place.offset))
        return _with(search, place, place.passage, own)

    return replace(pruned(answer), evidence=tuple(pruned(place) for place in answer.evidence))


def _with(search: SearchRun, result: Pruned, text: str, chances: Chances | None) -> Pruned:
    if chances is None or not len(chances.spans):
        return result
    request = search.request
    best = chances.spans[int(chances.values.argmax())] if request.highlight else None
    if request.prune is None:
        return replace(result, highlight=best)
    least = AUTO if request.prune == "auto" else request.prune
    kept = tuple(s for s, p in zip(chances.spans, chances.values, strict=True) if p >= least)
    every = zip(chances.spans, chances.values.tolist(), strict=True)
    listed = tuple((start, end, round(p, 4)) for (start, end), p in every)
    pruned = replace(result, kept=kept, sentences=listed, highlight=best)
    return replace(pruned, pruned_text=joined(text, kept))
