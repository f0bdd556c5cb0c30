"""The runtime protocol: what the write path and the read path ask of an engine. numpy in, numpy out.

And what its implementations have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from decoupled.model.codec import Codec, CodeLayout
from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import ModelSpec, Side
from decoupled.model.states import Encoded, Encoding, Ragged, States
from decoupled.model.tokens import Ids, Tokenizer

T = TypeVar("T")
R = TypeVar("R")

Logits = Mapping[HeadKind, Ragged]
"""Logits by head: a row per pair; for `span` 1 + T rows per pair, no-answer first, then the tokens."""
Links = npt.NDArray[np.bool_]
"""`[B,B]`: which passages of a batch hear from which (`methods/hop`)."""
Before = npt.NDArray[np.int64]
"""`[B]`: the number of the text that is the window before each; -1 where there is none."""


class OnDevice(Protocol):
    """Encoded passages in the memory of a runtime's device, which that runtime alone can read."""

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each passage."""

    def __len__(self) -> int:
        """The number of passages."""

    @property
    def block(self) -> object:
        """The memory that the passages lie in; passages of one block can be concatenated."""

    def select(self, which: npt.NDArray[np.int64]) -> OnDevice:
        """The passages at these indices, in that order; nothing is copied."""

    @classmethod
    def concat(cls, parts: Sequence[Any]) -> OnDevice:
        """Passages of one block, in order; nothing is copied."""


Passages = States | Encoded | OnDevice
"""Passages to score a query against: states, encoded states, or those on the runtime's device."""


@runtime_checkable
class Runtime(Protocol):
    """A loaded model: its spec, its tokenizer, and its two components on batches sized by the caller."""

    @property
    def name(self) -> str:
        """Its name, as `--runtime` takes it."""

    @property
    def spec(self) -> ModelSpec:
        """The model that it runs."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""

    @property
    def token_budget(self) -> int:
        """Padded tokens of a batch that suit it best."""

    @property
    def mixes(self) -> bool:
        """Whether `cross` takes several queries, each with its own passages."""

    @property
    def callers(self) -> int:
        """Threads that may call it at once and each get their share of the processor."""

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Results of `work`, which calls `encode` or `cross`, for every item: in parallel where that pays."""

    def encode(
        self,
        side: Side,
        ids: Sequence[Ids],
        *,
        query_length: int = 0,
        vectors: bool = True,
        before: Before | None = None,
    ) -> Encoding:
        """The input component on one padded batch of texts; without `vectors`, those are 0 wide.

        A model with a memory of earlier windows needs `before`: the number of the window before each text.
        """

    def cross(
        self,
        query: States,
        passages: Passages,
        heads: Sequence[HeadKind],
        *,
        owner: npt.NDArray[np.int64] | None = None,
        last: int | None = None,
        links: Links | None = None,
    ) -> Logits:
        """The cross component on one padded batch of passages and one query, or that which `owner` numbers.

        Encoded passages are decoded here, as the first step, in whatever way the engine does best. `last` is
        a layer, counted from 1, whose exit is read as the rank head; no layer above it is run then.
        Hops follow `links`; without links they hear nothing.
        """

    def tensors(self, prefix: str) -> dict[str, npt.NDArray[np.generic]]:
        """The weights whose names begin with `prefix`, for what is computed outside the two components."""

    def keep(self, encoded: Encoded) -> OnDevice | None:
        """A copy of encoded passages on the device, for `cross`; None where it has no memory of its own."""


class Cancelled(Exception):
    """Raised when nobody waits for the result any more."""


class Cancellable:
    """A runtime that checks, before each batch of another one, whether the work was cancelled."""

    def __init__(self, runtime: Runtime, cancelled: Callable[[], bool]) -> None:
        self._runtime, self._cancelled = runtime, cancelled
        self.name, self.spec, self.tokenizer = runtime.name, runtime.spec, runtime.tokenizer
        self.token_budget, self.mixes = runtime.token_budget, runtime.mixes
        self.callers = runtime.callers
        self.each, self.keep, self.tensors = runtime.each, runtime.keep, runtime.tensors

    def encode(self, side: Side, ids: Sequence[Ids], **how: Any) -> Encoding:
        self._check()
        return self._runtime.encode(side, ids, **how)

    def cross(
        self, query: States, passages: Passages, heads: Sequence[HeadKind], **how: Any
    ) -> Logits:
        self._check()
        return self._runtime.cross(query, passages, heads, **how)

    def _check(self) -> None:
        # Between batches only: a batch that runs on a device cannot be interrupted.
        if self._cancelled():
            raise Cancelled


def required_codec(codec: Codec | None) -> Codec:
    """The codec of a runtime that was given encoded passages."""
    if codec is None:
        raise ValueError("encoded passages need the codec that encoded them")
    return codec


def states_layout(spec: ModelSpec) -> CodeLayout:
    """The layout of passages that come as states: fp32 numbers that stand for themselves."""
    width = spec.state_width("passage")
    return CodeLayout(kind="fp32", width=width, codes_at=0, scale_at=None, restore=None)


def wrong_device() -> TypeError:
    """The error for passages that lie on the device of another runtime."""
    return TypeError("passages that another runtime keeps can be read by that one only")


def rounded_up(tokens: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-tokens // step) * step


def unpadded(kind: HeadKind, logits: npt.NDArray[Any], real_BP: npt.NDArray[np.bool_]) -> Ragged:
    """Logits of a padded batch without those of the padding."""
    lengths = real_BP.sum(1)
    if kind != "span":
        return Ragged(logits, np.ones_like(lengths))
    # Every pair has a no-answer row before its tokens, which is never padding.
    first = np.ones_like(real_BP[:, :1])
    return Ragged(logits[np.concatenate([first, real_BP], 1)], lengths + 1)
