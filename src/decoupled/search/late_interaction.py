"""Late interaction on stored codes: the best passage token of each query token, summed, ranks the passages.

Cosines need no scale and no decompression, so integer codes are used as they lie in the record (Khattab and
Zaharia, 2020). A model that learnt a projection for it compares with that. For others a metric of the query's
side is fitted to an index, which costs nothing more at query time.

Shapes: Q query tokens, N tokens of all passages together, W width of codes, V of the projection, P passages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from decoupled.errors import DecoupledError, InputError, WeightsError
from decoupled.index.index import Index
from decoupled.index.manifest import CASCADE
from decoupled.index.store.location import Location
from decoupled.model.codec import Codec, Layout
from decoupled.model.parts.head import HeadKind
from decoupled.model.parts.late import LATE
from decoupled.model.states import Encoded, Ragged, States
from decoupled.model.sums import pack, unpack
from decoupled.runtime.base import Runtime
from decoupled.search.answers import softmax
from decoupled.search.first_stage import CANDIDATES, standardised

Floats = npt.NDArray[np.float32]

MARGIN = 0.1
"""Standard deviations below the cut within which candidates are read as well."""
PER_HIT, PER_ANSWER = 2, 1
"""Candidates that are read at least for each result that is asked for: a passage may hold several answers."""
_BLOCK = 8192
_ONE_CORE = 1 << 18
"""Multiply-adds below which OpenBLAS does not divide a product."""
_PLAIN = {"int8": "i1", "fp16": "<f2", "fp32": "<f4"}
"""Codes that are numbers as they lie in a record."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """What a model learnt for late interaction (`LateSpec`)."""

    weight: Floats
    """`[V,W]`."""
    scale: float
    """Of the mean over the query's tokens."""
    special: tuple[int, int]
    """Special tokens before and after those of a query, which match nothing."""

    @classmethod
    def of(cls, runtime: Runtime) -> Projection | None:
        """That of a loaded model, if it has one."""
        spec = runtime.spec
        if spec.late is None:
            return None
        tensors = {n: np.asarray(t, np.float32) for n, t in runtime.tensors(LATE).items()}
        special = len(spec.text.query_prefix), len(spec.text.query_suffix)
        scale = float(np.exp(tensors[f"{LATE}scale"][0]))
        return cls(weight=tensors[f"{LATE}weight"], scale=scale, special=special)

    def scores(self, query_QW: Floats, codes: Ragged) -> Floats:
        """`[P]`, as the model was trained to: comparable across queries."""
        before, after = self.special
        words = query_QW[before : len(query_QW) - after]
        query_QV = directions((words if len(words) else query_QW[:1]) @ self.weight.T)
        sums = max_sim(query_QV, codes.values, codes.lengths, self.weight)
        return sums * np.float32(self.scale / len(query_QV))


@dataclass(frozen=True, kw_only=True, eq=False)
class LateInteraction:
    """Which share of the candidates the cross component reads, and how the rest is told apart."""

    keep: float
    """Share of the candidates that are read."""
    margin: float = MARGIN
    """The guard: candidates so close below the cut are read too, in standard deviations of the scores."""
    metric: Floats | None = None
    """`[W,W]` fitted to the cross component."""
    projection: Projection | None = None
    """That of the model. Without one, and without a metric, directions alone are compared."""
    slope: float = 0.0
    """What one standard deviation of the scores says of the rank logit, where the model learnt it."""
    most: int | None = None
    """Candidates of which the share is taken at most."""
    report: str = ""
    """How it was chosen, as JSON; for people."""

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise InputError(
                f"cascade={self.keep}; choose a share of the candidates, above 0 up to 1"
            )

    @classmethod
    def of(cls, runtime: Runtime, keep: float | None = None) -> LateInteraction | None:
        """As a model learnt it, with its own share or another; None for one that learnt none."""
        late, projection = runtime.spec.late, Projection.of(runtime)
        if late is None or (late.keep is None and keep is None):
            return None
        most = CANDIDATES if keep is None else None
        share = late.keep if keep is None else keep
        return cls(keep=share or 1.0, projection=projection, slope=late.slope, most=most)

    def scores(self, query: States, passages: States | Encoded, codec: Codec | None) -> Floats:
        """`[P]`, higher is better; comparable among the passages of one query only."""
        if codec is not None and query.values.shape[1] != codec.width:
            raise InputError(
                f"a cascade compares states of query and passage, and those of this model are "
                f"{query.values.shape[1]} and {codec.width} wide; train its projection for both sides"
            )
        if self.projection is not None:
            codes = Ragged(states_of(passages, codec), passages.lengths)
            return self.projection.scores(np.asarray(query.values, np.float32), codes)
        codes = Ragged(codes_of(passages, codec), passages.lengths)
        return self.score_codes(codes_of(query, codec), codes)

    def score_codes(self, query_QW: Floats, codes: Ragged) -> Floats:
        """The same of codes that were taken out of their records already."""
        query_QW = directions(query_QW)
        query_QW = query_QW if self.metric is None else query_QW @ self.metric
        return max_sim(query_QW, codes.values, codes.lengths)

    def with_prior(self, scores: Floats, prior: npt.NDArray[np.float64]) -> Floats:
        """What the final score will be, as far as is known: `prior` is what the first stage adds to it."""
        if not self.slope or len(prior) != len(scores):
            return scores
        return (self.slope * standardised(finite(scores), CANDIDATES) + prior).astype(np.float32)

    def count(self, candidates: int, k: int, per: int = PER_HIT) -> int:
        """How many of so many candidates are read for `k` results, those close to the cut aside."""
        share = self.keep * min(candidates, self.most or candidates)
        return min(int(np.ceil(max(share, per * k))), candidates)

    def choose(
        self, scores: Floats, k: int, per: int = PER_HIT, keys: Sequence[object] = ()
    ) -> npt.NDArray[np.int64]:
        """Candidates to read for `k` results, in order: the best share, and those close to the cut.

        Where windows of one key are one result, as many more as `k` results take.
        """
        count = self.count(len(scores), k, per)
        if count >= len(scores):
            return np.arange(len(scores))
        cut = np.partition(scores, len(scores) - count)[len(scores) - count]
        cut = min(cut, last_result(scores.tolist(), keys, k)) if keys else cut
        close = cut - self.margin * float(scores[np.isfinite(scores)].std())
        return np.flatnonzero(scores >= close).astype(np.int64)

    def save(self, location: Location) -> None:
        """Put it beside the other files of an index."""
        metric = np.zeros((0, 0), np.float32) if self.metric is None else self.metric
        notes = {"keep": repr(self.keep), "margin": repr(self.margin), "report": self.report}
        # As a tensor too, which has a checksum.
        tensors = {"metric": metric, "cut": np.array([self.keep, self.margin])}
        location.save(CASCADE, pack(tensors, notes))

    @classmethod
    def load(cls, location: Location) -> LateInteraction | None:
        """The one that was fitted to an index; None where there is none."""
        content = location.load(CASCADE)
        if content is None:
            return None
        try:
            # Beside the tensors: the header is JSON after the header's length.
            end = 8 + int.from_bytes(content[:8], "little")
            notes = json.loads(content[8:end])["__metadata__"]
            tensors = unpack(content)
            metric, cut = tensors["metric"], tensors.get("cut", (notes["keep"], notes["margin"]))
            keep, margin = map(float, cut)
        except (WeightsError, KeyError, TypeError, ValueError) as error:
            raise DecoupledError(
                f"{CASCADE} of {location.name} is damaged ({error}); fit the cascade again with "
                "`decoupled cascade`"
            ) from None
        fitted = metric if metric.size else None
        return cls(keep=keep, margin=margin, metric=fitted, report=notes.get("report", ""))


def finite(scores: Floats) -> npt.NDArray[np.float64]:
    """With the least score for texts without tokens, which match nothing."""
    least = scores[np.isfinite(scores)].min(initial=0.0)
    return np.where(np.isfinite(scores), scores, least).astype(np.float64)


def last_result(scores: Sequence[float], keys: Sequence[object], k: int) -> float:
    """The score of the last of `k` results, each the best window of its key; -inf where there are no more."""
    best: dict[object, float] = {}
    for key, own in zip(keys or range(len(scores)), scores, strict=True):
        best[key] = max(own, best.get(key, own))
    return sorted(best.values())[-k] if len(best) > k else -np.inf


def per_result(head: HeadKind) -> int:
    """Candidates that are read at least for each result of a head."""
    return PER_ANSWER if head == "span" else PER_HIT


def open_late_interaction(
    cascade: LateInteraction | float | Literal["auto", "all"] | None, source: Index | Runtime
) -> LateInteraction | None:
    """That of a share, as the model learnt it or else with the metric that was fitted to the index.

    `auto` is what was fitted to the index, share included; `all` leaves nothing out.
    """
    if cascade == "all":
        return LateInteraction(keep=1.0)
    if cascade is None or isinstance(cascade, LateInteraction):
        return cascade
    fitted = LateInteraction.load(source.location) if isinstance(source, Index) else None
    if cascade != "auto":
        runtime = source.runtime if isinstance(source, Index) else source
        learned = LateInteraction.of(runtime, float(cascade)) if source.spec.late else None
        metric = fitted.metric if fitted else None
        return learned or LateInteraction(keep=float(cascade), metric=metric)
    if fitted is None:
        raise InputError(
            "no cascade was fitted to this index; run `decoupled cascade INDEX --data QUERIES`, or give a "
            "share such as 0.3"
        )
    return fitted


def codes_of(states: States | Encoded, codec: Codec | None) -> Floats:
    """`[N,W]` up to the length of each row: codes where they are plain numbers, restored states elsewhere.

    A query goes through the codec as passages did, so that both are in one space.
    """
    if codec is None:
        assert isinstance(states, States), "encoded passages need the codec that encoded them"
        return np.asarray(states.values, np.float32)
    encoded = states if isinstance(states, Encoded) else codec.encode(states)
    layout = codec.layout
    if layout.kind not in _PLAIN:
        return np.asarray(codec.decode(encoded).values, np.float32)
    return _plain(encoded, layout).astype(np.float32)


def _plain(encoded: Encoded, layout: Layout) -> npt.NDArray[np.generic]:
    kind: np.dtype[Any] = np.dtype(_PLAIN[layout.kind])
    end = layout.codes_at + layout.width * kind.itemsize
    return encoded.values[:, layout.codes_at : end].view(kind)


def states_of(states: States | Encoded, codec: Codec | None) -> npt.NDArray[np.generic]:
    """`[N,W]` the states up to the length of each row: what a projection of the model is made for."""
    if isinstance(states, States):
        return states.values
    assert codec is not None, "encoded passages need the codec that encoded them"
    layout = codec.layout
    if layout.restore is not None or layout.kind not in _PLAIN:
        return codec.decode(states).values
    return _plain(states, layout)


def directions(values_NW: Floats) -> Floats:
    """Rows of length one; a row of zeros stays."""
    norms = np.sqrt(np.einsum("nw,nw->n", values_NW, values_NW))
    return values_NW / np.maximum(norms, 1e-12)[:, None]


def product(x_NI: Floats, y_IO: Floats) -> Floats:
    """`x @ y` in pieces that BLAS leaves to one core.

    Cores that share a product wait for each other: on a busy machine that took seven times as long, on an
    idle one it saves a millisecond.
    """
    rows = max(8, _ONE_CORE // max(y_IO.size, 1))
    whole = len(x_NI) // rows * rows
    found = np.empty((len(x_NI), y_IO.shape[1]), np.float32)
    y_IO = np.ascontiguousarray(y_IO)
    pieces = found[:whole].reshape(-1, rows, y_IO.shape[1])
    np.matmul(x_NI[:whole].reshape(-1, rows, len(y_IO)), y_IO, out=pieces)
    np.matmul(x_NI[whole:], y_IO, out=found[whole:])
    return found


def max_sim(
    query_QW: Floats,
    codes_NW: npt.NDArray[np.generic],
    lengths: npt.NDArray[np.int64],
    projection_VW: Floats | None = None,
) -> Floats:
    """`[P]`: the sum over query tokens of the best cosine with a token of the passage, projected."""
    if not len(lengths):
        return np.zeros(0, np.float32)
    cosines_NQ = np.empty((len(codes_NW), len(query_QW)), np.float32)
    for start in range(0, len(codes_NW), _BLOCK):
        block = np.asarray(codes_NW[start : start + _BLOCK], np.float32)
        block = block if projection_VW is None else product(block, projection_VW.T)
        norms = np.sqrt(np.einsum("nw,nw->n", block, block))
        cosines = product(block, query_QW.T)
        np.divide(
            cosines, np.maximum(norms, 1e-12)[:, None], out=cosines_NQ[start : start + len(block)]
        )
    scores = np.full(len(lengths), -np.inf, np.float32)
    real = np.flatnonzero(lengths)
    starts = (np.cumsum(lengths) - lengths)[real]
    scores[real] = np.maximum.reduceat(cosines_NQ, starts, axis=0).sum(1)
    return scores


HEAT = 2.0
"""Softens what the cross component says, whose scores are far apart."""
_B1, _B2, _EPS = 0.9, 0.99, 1e-8


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """The candidates of one query, and what the cross component made of them."""

    query: Floats
    """`[Q,W]` codes."""
    passages: Callable[[], Ragged]
    """Reads the `[N,W]` codes of the candidates."""
    scores: npt.NDArray[np.float64]
    """`[P]` rank logits."""


def fit_metric(
    judged: Sequence[Judged], *, epochs: int = 6, rate: float = 0.01, stay: float = 1e-4
) -> Floats:
    """The `[W,W]` metric after some passes over the queries; no labels are needed.

    It starts as the plain cosine, towards which `stay` pulls, and is moved by Adam on the cross-entropy
    between both rankings of a query's candidates: its own and that of the cross component.
    """
    width = judged[0].query.shape[1]
    plain = np.append(np.eye(width), 1.0)  # the metric, then the scale of the scores
    values, first, second = plain.copy(), np.zeros_like(plain), np.zeros_like(plain)
    speed, pull = np.full_like(plain, rate), np.full_like(plain, stay)
    speed[-1], pull[-1] = 10 * rate, 0
    draw = np.random.default_rng(0)
    order = np.concatenate([draw.permutation(len(judged)) for _ in range(epochs)])
    for step, number in enumerate(order, 1):
        metric_WW = values[:-1].reshape(width, width).astype(np.float32)
        slope = np.append(*gradient(judged[number], metric_WW, float(values[-1])))
        slope += pull * (values - plain)
        first = _B1 * first + (1 - _B1) * slope
        second = _B2 * second + (1 - _B2) * slope**2
        far = speed * (1 - (step - 1) / len(order))
        values -= far * (first / (1 - _B1**step)) / (np.sqrt(second / (1 - _B2**step)) + _EPS)
    return values[:-1].reshape(width, width).astype(np.float32)


def gradient(one: Judged, metric_WW: Floats, scale: float) -> tuple[npt.NDArray[np.float64], float]:
    """Slopes of the cross-entropy of one query by the metric and by the scale of its scores."""
    query_QW = directions(one.query)
    passages = one.passages()
    codes_NW = directions(np.asarray(passages.values, np.float32))
    cosines_NQ = codes_NW @ (query_QW @ metric_WW).T
    ends = passages.starts + passages.lengths
    spans = zip(passages.starts.tolist(), ends.tolist(), strict=True)
    best_PQ = np.stack([start + cosines_NQ[start:end].argmax(0) for start, end in spans])
    scores_P = np.take_along_axis(cosines_NQ, best_PQ, 0).sum(1, dtype=np.float64)
    excess_P = softmax(scale * scores_P) - softmax(one.scores / HEAT)
    pulled_QW = np.tensordot(scale * excess_P, codes_NW[best_PQ], axes=1)
    return query_QW.T.astype(np.float64) @ pulled_QW, float(excess_P @ scores_P)
