"""The runtime protocol: what the write path and the read path ask of an engine. numpy in, numpy out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import ModelSpec, Side
from decoupled.model.states import Encoded, Encoding, Ragged, States
from decoupled.model.tokens import Ids, Tokenizer

T = TypeVar("T")
R = TypeVar("R")

Logits = Mapping[HeadKind, Ragged]
"""For each head a row per pair; for `span` 1 + T rows per pair, no-answer first, then the tokens."""


def lowers(registry: Any, kind: object) -> bool:
    """Has a registry (a `singledispatch` function) an entry for this kind of part?"""
    return registry.dispatch(type(kind)) is not registry.dispatch(object)


class OnDevice(Protocol):
    """Encoded passages in the memory of a runtime's device, which that runtime alone can read."""

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each passage."""
        ...

    def __len__(self) -> int:
        """How many passages."""
        ...

    def select(self, which: npt.NDArray[np.int64]) -> OnDevice:
        """The passages at these indices, in that order; nothing is copied."""
        ...


Passages = States | Encoded | OnDevice
"""What a query is scored against: states, encoded states, or those on its device."""


@runtime_checkable
class Runtime(Protocol):
    """A loaded model: its spec, its tokenizer, and its two components on batches sized by the caller."""

    @property
    def name(self) -> str:
        """Its name, as `--runtime` takes it."""
        ...

    @property
    def spec(self) -> ModelSpec:
        """The model that it runs."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        ...

    @property
    def token_budget(self) -> int:
        """Padded tokens of a batch that suit it best."""
        ...

    @property
    def mixes(self) -> bool:
        """Does `cross` take a query for each passage, beside one for all?"""
        ...

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`work`, which calls `encode` or `cross`, on every item: side by side where that is faster."""
        ...

    def encode(self, side: Side, ids: Sequence[Ids], *, query_length: int = 0) -> Encoding:
        """The input component on one padded batch of texts."""
        ...

    def cross(self, query: States, passages: Passages, heads: Sequence[HeadKind]) -> Logits:
        """The cross component on one padded batch of passages and one query, or one for each of them.

        Encoded passages are decoded here, as the first step, in whatever way the engine does best.
        """
        ...

    def keep(self, encoded: Encoded) -> OnDevice | None:
        """A copy of encoded passages on the device, for `cross`; None where that has no memory of its own."""
        ...
