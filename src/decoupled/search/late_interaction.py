"""Late interaction on stored codes: the best passage token of each query token, summed, ranks the passages.

Cosines need no scale and no decompression, so integer codes are used as they lie in the record (Khattab and
Zaharia, 2020). A model that learnt a projection for it compares with that; others compare the codes alone.

Shapes: Q query tokens, N tokens of all passages together, W width of codes, V of the projection, P passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError, OptionError
from decoupled.index.index import Index
from decoupled.model.codec import Codec
from decoupled.model.parts.head import HeadKind
from decoupled.model.parts.late import LATE
from decoupled.model.states import Encoded, Ragged, States
from decoupled.runtime.base import Runtime
from decoupled.search.first_stage import standardised
from decoupled.search.request import CANDIDATES

Floats = npt.NDArray[np.float32]

MARGIN = 0.1
"""Standard deviations below the cut within which candidates are read as well."""
PER_HIT, PER_ANSWER = 2, 1
"""Candidates that are read at least for each result that is asked for: a passage may hold several answers."""
# Tokens whose codes are widened to floats at a time.
_BLOCK = 8192
_ONE_CORE = 1 << 18
"""Multiply-adds below which OpenBLAS does not divide a product."""
_PLAIN = {"int8": "i1", "fp16": "<f2", "fp32": "<f4"}
"""Codes that are numbers as they lie in a record."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LateProjection:
    """The projection that a model learnt for late interaction (`LateSpec`)."""

    weight: Floats
    """Matrix from states to compared vectors, `[V,W]`."""
    scale: float
    """Learnt factor of the mean cosine over the query's tokens."""
    special: tuple[int, int]
    """Special tokens before and after those of a query, which match nothing."""

    @classmethod
    def of(cls, runtime: Runtime) -> LateProjection | None:
        """The projection of a loaded model; None if it learnt none."""
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
        # An empty query has nothing but special tokens: the first stands for it.
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
    projection: LateProjection | None = None
    """The model's projection; without one the directions of the stored codes are compared."""
    slope: float = 0.0
    """Change of the rank logit that one standard deviation of these scores predicts; 0 if not learnt."""
    most: int | None = None
    """The share is taken of at most this many candidates; None for all."""

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise InputError(
                f"cascade={self.keep}; choose a share of the candidates, above 0 up to 1"
            )

    @classmethod
    def of(cls, runtime: Runtime, keep: float | None = None) -> LateInteraction | None:
        """As a model learnt it, with its own share or another; None for one that learnt none."""
        late, projection = runtime.spec.late, LateProjection.of(runtime)
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
        own = directions(codes_of(query, codec))
        return max_sim(own, codes_of(passages, codec), passages.lengths)

    def with_prior(self, scores: Floats, prior: npt.NDArray[np.float64]) -> Floats:
        """Estimate of the final score: the learnt part of these scores, plus `prior` from the first stage."""
        if not self.slope or len(prior) != len(scores):
            return scores
        return (self.slope * standardised(finite(scores), CANDIDATES) + prior).astype(np.float32)

    def count(self, candidates: int, k: int, per: int = PER_HIT) -> int:
        """Number of candidates that are read for `k` results, not counting those close below the cut."""
        share = self.keep * min(candidates, self.most or candidates)
        return min(int(np.ceil(max(share, per * k))), candidates)

    def choose(
        self, scores: Floats, k: int, per: int = PER_HIT, keys: Sequence[object] = ()
    ) -> npt.NDArray[np.int64]:
        """Numbers of the candidates to read for `k` results, ascending: the best share and what is close.

        `keys` name the result that each window belongs to; then the cut goes down until `k` results are in.
        """
        count = self.count(len(scores), k, per)
        if count >= len(scores):
            return np.arange(len(scores))
        cut = np.partition(scores, len(scores) - count)[len(scores) - count]
        # Windows of one passage are one hit, so the cut goes down until `k` passages are above it.
        cut = min(cut, last_result(scores.tolist(), keys, k)) if keys else cut
        close = cut - self.margin * float(scores[np.isfinite(scores)].std())
        return np.flatnonzero(scores >= close).astype(np.int64)


def finite(scores: Floats) -> npt.NDArray[np.float64]:
    """The scores, with the least finite one for texts without tokens, whose score is -inf."""
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


def parse_share(text: str | None) -> float | Literal["all"] | None:
    """The share of the candidates that are read, as it is typed; None leaves it to the model."""
    try:
        return "all" if text == "all" else None if text is None else float(text)
    except ValueError:
        raise OptionError("read", f"is {text!r}; give a share such as 0.3, or all") from None


def open_late_interaction(
    cascade: LateInteraction | float | Literal["all"] | None, source: Index | Runtime
) -> LateInteraction | None:
    """Late interaction that passes on a share of the candidates, with the model's projection if it has one.

    `all` passes on every candidate, and None leaves the choice to the model (`LateSpec.keep`).
    """
    if cascade == "all":
        return LateInteraction(keep=1.0)
    if cascade is None or isinstance(cascade, LateInteraction):
        return cascade
    try:
        share = float(cascade)
    except ValueError:
        raise InputError(f"cascade is {cascade!r}; give a share such as 0.3, or 'all'") from None
    runtime = source.runtime if isinstance(source, Index) else source
    learned = LateInteraction.of(runtime, share) if source.spec.late else None
    return learned or LateInteraction(keep=share)


def codes_of(states: States | Encoded, codec: Codec | None) -> Floats:
    """`[N,W]` up to the length of each row: codes where they are plain numbers, restored states elsewhere.

    A query goes through the codec as passages did, so that both are in one space.
    """
    if codec is not None and isinstance(states, States):
        states = codec.encode(states)
    return np.asarray(states_of(states, codec, restored=False), np.float32)


def states_of(
    states: States | Encoded, codec: Codec | None, *, restored: bool = True
) -> npt.NDArray[np.generic]:
    """`[N,W]` up to the length of each row: codes as numbers where they allow it, else decoded states.

    With `restored` they are in the space of the states, which a projection of the model is made for.
    """
    if isinstance(states, States):
        return states.values
    assert codec is not None, "encoded passages need the codec that encoded them"
    layout = codec.layout
    if layout.kind not in _PLAIN or (restored and layout.restore is not None):
        return codec.decode(states).values
    kind = np.dtype(_PLAIN[layout.kind])
    end = layout.codes_at + layout.width * kind.itemsize
    return states.values[:, layout.codes_at : end].view(kind)


def directions(values_NW: Floats) -> Floats:
    """Rows of length one; a row of zeros stays."""
    return values_NW / lengths_of(values_NW)


def lengths_of(values_NW: Floats) -> Floats:
    """`[N,1]`: the Euclidean length of each row, never quite 0."""
    norms: Floats = np.sqrt(np.einsum("nw,nw->n", values_NW, values_NW))
    return np.maximum(norms, 1e-12)[:, None]


def product(x_NI: Floats, y_IO: Floats) -> Floats:
    """`x @ y` in pieces that BLAS leaves to one core.

    Cores that share a product wait for each other: on a busy machine that took seven times as long, on an
    idle one it saves a millisecond.
    """
    rows = max(8, _ONE_CORE // max(y_IO.size, 1))
    whole = len(x_NI) // rows * rows
    result = np.empty((len(x_NI), y_IO.shape[1]), np.float32)
    y_IO = np.ascontiguousarray(y_IO)
    # [N,O] -> [N/rows,rows,O]: matmul calls BLAS once for each piece.
    pieces = result[:whole].reshape(-1, rows, y_IO.shape[1])
    np.matmul(x_NI[:whole].reshape(-1, rows, len(y_IO)), y_IO, out=pieces)
    np.matmul(x_NI[whole:], y_IO, out=result[whole:])
    return result


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
        # The query is normalised already; a row of zeros gets cosine 0.
        out = cosines_NQ[start : start + len(block)]
        np.divide(product(block, query_QW.T), lengths_of(block), out=out)
    scores = np.full(len(lengths), -np.inf, np.float32)
    real = np.flatnonzero(lengths)
    starts = (np.cumsum(lengths) - lengths)[real]
    # [N,Q] -> [P,Q] -> [P]; `reduceat` gives nonsense for passages without tokens: left out.
    scores[real] = np.maximum.reduceat(cosines_NQ, starts, axis=0).sum(1)
    return scores
