"""Ragged batches: the vectors of many texts in one buffer, with their lengths and no padding.

Shapes: N tokens of all texts together, P texts, T tokens of the longest, D width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

R = TypeVar("R", bound="Ragged")


@dataclass(frozen=True, eq=False)
class Ragged:
    """`values[N, …]` holds the rows of `len(lengths)` texts, one text after the other."""

    values: npt.NDArray[np.generic]
    lengths: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        # A ragged batch with wrong lengths would silently give each text the rows of its
        # neighbours.
        if int(self.lengths.sum()) != len(self.values):
            raise ValueError(
                f"lengths sum to {self.lengths.sum()}, but there are {len(self.values)} rows"
            )

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[npt.NDArray[np.generic]]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> npt.NDArray[np.generic]:
        """The rows of text `i`, a view."""
        return self.values[self.starts[i] : self.starts[i] + self.lengths[i]]

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """First row of each text."""
        return (
            # An empty batch has no starts, and the concatenation would give one.
            np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)[:-1]])
            if len(self)
            else self.lengths
        )

    @classmethod
    def stack(cls: type[R], rows: Sequence[npt.NDArray[np.generic]]) -> R:
        """One batch from the rows of each text; at least one text, since the width comes from it."""
        lengths = np.fromiter((len(r) for r in rows), np.int64, len(rows))
        return cls(np.concatenate(rows), lengths)

    @classmethod
    def concat(cls: type[R], parts: Sequence[R]) -> R:
        """The texts of several batches, in order."""
        return cls(
            np.concatenate([p.values for p in parts]), np.concatenate([p.lengths for p in parts])
        )

    def select(self: R, which: npt.NDArray[np.int64] | Sequence[int]) -> R:
        """The texts at these indices, in that order; one gather, no Python loop over texts."""
        chosen = np.asarray(which, np.int64)
        lengths = self.lengths[chosen]
        return type(self)(self.values[rows_of(self.starts[chosen], lengths)], lengths)

    def pad(self, to: int | None = None) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.bool_]]:
        """`values_PT…` with zeros after each text, and `real_PT` that is true where a token is."""
        width = max(int(self.lengths.max(initial=0)), to or 0)
        real = np.arange(width) < self.lengths[:, None]
        padded = np.zeros((len(self), width, *self.values.shape[1:]), self.values.dtype)
        # Boolean assignment goes row by row, which is the order in which the texts lie in the
        # buffer.
        padded[real] = self.values
        return padded, real


@dataclass(frozen=True, eq=False)
class States(Ragged):
    """Hidden vectors: `values_ND`, float32."""


@dataclass(frozen=True, eq=False)
class Encoded(Ragged):
    """Hidden vectors as a codec stores them: `values[N, bytes per token]`, uint8."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """The result of the input component: states, and a unit vector per text."""

    states: States
    vectors: npt.NDArray[np.float32]


def rows_of(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Row numbers of the given spans, one after the other."""
    total = int(lengths.sum())
    # The distance between where a span's rows lie and where they go, repeated for each of them.
    shift = np.repeat(
        starts - np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)[:-1]]), lengths
    )
    return np.arange(total, dtype=np.int64) + shift if total else np.zeros(0, np.int64)


def batches_by_length(
    lengths: npt.NDArray[np.int64], budget: int, *, powers: bool = False
) -> list[npt.NDArray[np.int64]]:
    """Indices grouped so that padded batches hold about `budget` tokens, longest texts first.

    With `powers`, of 1, 2, 4, 8… texts each.
    """
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    batches, start = [], 0
    while start < len(order):
        # The first text is the longest of its batch, since the order is by falling length.
        size = max(1, budget // max(1, int(lengths[order[start]])))
        if powers:
            # The largest power of two that fits: few batch sizes mean few shapes to compile.
            size = 1 << min(size, len(order) - start).bit_length() - 1
        batches.append(order[start : start + size])
        start += size
    return batches
