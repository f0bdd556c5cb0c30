"""The nearest of K centroids, plus a few bits per coordinate for what is left (ColBERTv2).

What is left is divided by each coordinate's usual spread and by the token's own root mean square,
then cut at levels that all coordinates share. Measured on held-out states of a 6-layer encoder at 2
bits, the scale of 2 bytes per token takes 15 to 24 % off the error, spreads another 15 % where no
projection has rotated the states, and levels placed by Lloyd's rule another 15 % against the means
between quantiles (half, at 4 bits).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError, WeightsError
from decoupled.model.codec.base import (
    HALF,
    LEAST_SCALE,
    MOST_SCALE,
    Bytes,
    Floats,
    ResidualTables,
    Tensors,
    byte_table,
    check_reach,
    float_tensor,
    pack_codes,
    packed_width,
    unpack_codes,
)

MOST_CENTROIDS = 65536
TOKENS_PER_CENTROID = 16
LEAST_TOKENS = 256
ROUNDS = 6
"""Rounds of k-means; 25 would take another 0.6 % off the error of unseen states."""
ROWS = 256
COLUMNS = 16384
"""Distances are computed for at most ROWS × COLUMNS pairs at a time (16 MiB)."""
LEVEL_SAMPLE = 1 << 20
NUMBER = np.dtype("<u2")


@dataclass(frozen=True, kw_only=True, eq=False)
class ResidualQuantiser:
    """`residual:2` and `residual:4`: codes, then an fp16 scale, then the centroid's number."""

    bits: int
    centroids: Floats
    levels: Floats
    spread: Floats
    kind: Literal["residual"] = "residual"

    @property
    def width(self) -> int:
        """The number of coordinates per token."""
        return len(self.spread)

    @property
    def scale_at(self) -> int:
        """First byte of the scale: it follows the codes."""
        return packed_width(self.width, self.bits)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token."""
        return residual_bytes(self.width, self.bits)

    @cached_property
    def tables(self) -> ResidualTables:
        """The tables that a runtime needs to decode."""
        return ResidualTables(
            bits=self.bits,
            id_at=self.scale_at + HALF.itemsize,
            centroids=self.centroids,
            levels=self.levels,
            spread=self.spread,
        )

    @cached_property
    def _cuts(self) -> Floats:
        # The nearest of two ascending levels changes at their middle.
        return (self.levels[1:] + self.levels[:-1]) / np.float32(2)

    @cached_property
    def _table(self) -> Floats:
        return byte_table(self.levels, self.bits)

    @cached_property
    def _half_norms(self) -> Floats:
        return half_norms(self.centroids)

    def pack(self, z_NW: Floats) -> Bytes:
        """The bytes of each row."""
        ids_N = nearest(z_NW, self.centroids, self._half_norms)
        rest_NW = (z_NW - self.centroids[ids_N]) / self.spread
        size_N1 = root_mean_square(rest_NW)
        check_reach(size_N1, MOST_SCALE, f"residual:{self.bits}")
        scale_N1 = np.maximum(size_N1, LEAST_SCALE).astype(HALF)
        rest_NW /= scale_N1.astype(np.float32)
        codes_NW = np.searchsorted(self._cuts, rest_NW.ravel()).astype(np.uint8)
        encoded = np.empty((len(z_NW), self.bytes_per_token), np.uint8)
        encoded[:, : self.scale_at] = pack_codes(codes_NW.reshape(rest_NW.shape), self.bits)
        encoded[:, self.scale_at : self.tables.id_at] = scale_N1.view(np.uint8)
        encoded[:, self.tables.id_at :] = ids_N.astype(NUMBER)[:, None].view(np.uint8)
        return encoded

    def unpack(self, codes: Bytes, out_NW: Floats) -> None:
        """The rows of those bytes, into `out_NW`."""
        ids_N = codes[:, self.tables.id_at :].view(NUMBER)[:, 0]
        # Bytes of a damaged file must not read outside the table.
        if len(ids_N) and int(ids_N.max()) >= len(self.centroids):
            raise InputError(
                f"a token names centroid {ids_N.max()}, but the codec has "
                f"{len(self.centroids)}; its bytes are damaged or of another codec"
            )
        scale_N1 = codes[:, self.scale_at : self.tables.id_at].view(HALF).astype(np.float32)
        np.multiply(
            unpack_codes(codes[:, : self.scale_at], self._table, self.width), scale_N1, out=out_NW
        )
        out_NW *= self.spread
        out_NW += self.centroids[ids_N]

    def tensors(self) -> dict[str, Floats]:
        """The arrays by the names under which they are saved."""
        return {
            "residual.centroids": self.centroids,
            "residual.levels": self.levels,
            "residual.spread": self.spread,
        }


def residual_bytes(width: int, bits: int) -> int:
    """Bytes of one token: codes, scale and the centroid's number."""
    return packed_width(width, bits) + HALF.itemsize + NUMBER.itemsize


def residual_from(tensors: Tensors, *, width: int, bits: int) -> ResidualQuantiser:
    """The quantiser that `ResidualQuantiser.tensors` wrote, shapes checked."""
    centroids_KW = float_tensor(tensors, "residual.centroids", (None, width))
    levels = float_tensor(tensors, "residual.levels", (2**bits,))
    spread_W = float_tensor(tensors, "residual.spread", (width,))
    if len(centroids_KW) > MOST_CENTROIDS:
        raise WeightsError(
            f"the codec has {len(centroids_KW)} centroids, but 2 bytes number at most "
            f"{MOST_CENTROIDS}; fit it again"
        )
    if (np.diff(levels) <= 0).any() or (spread_W <= 0).any():
        raise WeightsError(
            "'residual.levels' of the codec must ascend and 'residual.spread' be positive; "
            "fit it again"
        )
    return ResidualQuantiser(bits=bits, centroids=centroids_KW, levels=levels, spread=spread_W)


def fit_residual(z_NW: Floats, *, bits: int, seed: int) -> ResidualQuantiser:
    """Centroids, spreads and levels from a sample of codes."""
    tokens = len(z_NW)
    if tokens < LEAST_TOKENS:
        raise InputError(
            f"residual:{bits} was fitted on {tokens} tokens, but needs at least {LEAST_TOKENS} "
            "(tens of thousands are better); fit it on more passages, or use int4"
        )
    rng = np.random.default_rng(seed)
    centroids_KW = kmeans(z_NW, centroid_count(tokens), rng)
    ids_N = nearest(z_NW, centroids_KW, half_norms(centroids_KW))
    rest_NW = z_NW - centroids_KW[ids_N]
    spread_W = _spread(rest_NW)
    some = rng.permutation(tokens)[: max(1, LEVEL_SAMPLE // z_NW.shape[1])]
    scaled_NW = rest_NW[some] / spread_W
    scaled_NW /= np.maximum(root_mean_square(scaled_NW), LEAST_SCALE)
    levels = lloyd_levels(scaled_NW.ravel(), 2**bits)
    if (np.diff(levels) <= 0).any():
        raise InputError(
            f"residual:{bits} was fitted on states that hardly differ from each other; "
            "fit it on other passages, or use int4"
        )
    return ResidualQuantiser(bits=bits, centroids=centroids_KW, levels=levels, spread=spread_W)


def centroid_count(tokens: int) -> int:
    """The largest power of two that leaves enough tokens to each centroid, at most 65536.

    Down to 16 tokens each, four times the centroids took a fifth off the error of unseen states.
    """
    return min(MOST_CENTROIDS, 1 << max(0, (tokens // TOKENS_PER_CENTROID).bit_length() - 1))


def kmeans(z_NW: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Lloyd's k-means from random rows; a centroid that loses all its rows stays where it is."""
    centroids_KW = z_NW[rng.choice(len(z_NW), count, replace=False)].copy()
    for _ in range(ROUNDS):
        ids_N = nearest(z_NW, centroids_KW, half_norms(centroids_KW))
        sizes_K = np.bincount(ids_N, minlength=count)
        used_K = sizes_K > 0
        order_N = np.argsort(ids_N, kind="stable")
        starts = (np.cumsum(sizes_K) - sizes_K)[used_K]
        # Rows sorted by centroid, so that one reduceat sums each cluster.
        sums = np.add.reduceat(z_NW[order_N], starts, axis=0)
        centroids_KW[used_K] = sums / sizes_K[used_K, None].astype(np.float32)
    return centroids_KW


def nearest(z_NW: Floats, centroids_KW: Floats, half_norms_K: Floats) -> npt.NDArray[np.int64]:
    """Number of the centroid closest to each row, the first one of equals."""
    ids_N = np.zeros(len(z_NW), np.int64)
    for start in range(0, len(z_NW), ROWS):
        rows = slice(start, start + ROWS)
        best = np.full(len(z_NW[rows]), -np.inf, np.float32)
        for first in range(0, len(centroids_KW), COLUMNS):
            columns = slice(first, first + COLUMNS)
            # |z - c|² = |z|² - 2(z·c - |c|²/2), and |z|² is the same for all centroids.
            score_NK = z_NW[rows] @ centroids_KW[columns].T
            score_NK -= half_norms_K[columns]
            at = score_NK.argmax(axis=1)
            top = np.take_along_axis(score_NK, at[:, None], axis=1)[:, 0]
            better = top > best
            ids_N[rows][better] = at[better] + first
            best[better] = top[better]
    return ids_N


def half_norms(centroids_KW: Floats) -> Floats:
    """`|c|² / 2`: the nearest centroid has the largest `z·c − |c|² / 2`."""
    return np.einsum("kw,kw->k", centroids_KW, centroids_KW) / np.float32(2)


def root_mean_square(x_NW: Floats) -> Floats:
    """The root mean square of each row, as a column."""
    return np.sqrt(np.square(x_NW).mean(axis=1, keepdims=True))


def lloyd_levels(values: Floats, count: int) -> Floats:
    """Levels of least squared error: from quantile bins, each becomes the mean of its bin in turn."""
    ordered = np.sort(values).astype(np.float64)
    sums = np.concatenate([np.zeros(1), np.cumsum(ordered)])
    edges = np.linspace(0, len(ordered), count + 1).astype(np.int64)
    levels = np.zeros(count)
    for _ in range(100):
        sizes = np.diff(edges)
        # Differences of prefix sums give the mean of each bin in constant time.
        means = np.diff(sums[edges]) / np.maximum(sizes, 1)
        levels = np.where(sizes > 0, means, levels)
        inner = np.searchsorted(ordered, (levels[1:] + levels[:-1]) / 2)
        edges = np.concatenate([[0], inner, [len(ordered)]])
    return levels.astype(np.float32)


def _spread(rest_NW: Floats) -> Floats:
    """Root mean square per coordinate, with a floor for those that hardly move in the sample."""
    spread_W = np.sqrt(np.square(rest_NW).mean(axis=0))
    usual = float(np.sqrt(np.square(spread_W).mean()))
    # The floor keeps a coordinate that the sample never moved from being divided by zero.
    return np.maximum(spread_W, np.float32(0.01 * usual or 1.0))
