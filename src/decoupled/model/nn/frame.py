"""Where the tokens of a padded batch stand: which are real, and at which position.

Attention kinds ask the frame for what they need (mask, rotary angles, relative buckets). Everything
derives from positions, never from indices, so a gap of padding between query and passage changes
nothing; and each thing is computed once per batch, however many layers ask.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from decoupled.model.parts.attention.disentangled import log_bucket
from decoupled.model.parts.attention.grouped import RotaryScaling
from decoupled.model.parts.structure import Structure

T = TypeVar("T")

Rows: TypeAlias = tuple[slice, ...]
"""Which rows of a batch a layer computes, as slices of T; `ALL` is every row."""

ALL: Rows = (slice(None),)
FIRST: Rows = (slice(0, 1),)
"""The first token of the query alone: what pooled heads read."""


def take(x: Tensor, rows: Rows, dim: int = 1) -> Tensor:
    """The given rows of `x` along `dim`."""
    if rows == ALL:
        return x
    parts = [x[(slice(None),) * dim + (part,)] for part in rows]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


KeysValues: TypeAlias = tuple[Tensor, Tensor]
"""Keys, turned to their positions, and values: `[B,G,T,K]` each."""


class Past(NamedTuple):
    """The keys and values of each layer for a text that all tokens of the frame come after."""

    layers: Mapping[int, KeysValues]
    real: Tensor


class Frame:
    """Positions and key mask of one batch.

    `block_BT`, when given, numbers the block of each token; tokens then see their own block only.
    That is how the joint model imitates the input component. `padded` says whether some tokens are not
    real; None looks, which on a GPU means to wait for it.
    In a `causal` frame, that of a decoder, no token sees a later one, whatever the kind of attention.
    """

    def __init__(
        self,
        position_BT: Tensor,
        real_BT: Tensor,
        block_BT: Tensor | None = None,
        *,
        padded: bool | None = None,
        causal: bool = False,
    ) -> None:
        self.links_BB: Tensor | None = None
        """`[B,B]`: which pairs of the batch each pair may hear from (`methods/hop`)."""
        self.before_B: Tensor | None = None
        """`[B]`: the row of the window before each, -1 where there is none (`methods/compressive`)."""
        self.structure: tuple[Structure, Tensor] | None = None
        """Rows that are no tokens: their structure, and the ids `[B,T]` that say which rows they are."""
        self.past: Past | None = None
        """A text before this one, of which only keys and values are there."""
        self.passage: int | None = None
        """The first row of the passage, where there is one; `segments` begins with it."""
        self.segment_BT: Tensor | None = None
        self.causal = causal
        self.position_BT = position_BT
        self.real_BT = real_BT
        self.block_BT = block_BT
        self.padded = padded
        self._made: dict[Hashable, Any] = {}

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` gives, computed once for all layers."""
        if key not in self._made:
            self._made[key] = make()
        return cast(T, self._made[key])

    def mask(self, window: int | None, *, causal: bool = False) -> Tensor | None:
        """`[B,1,T|1,T]`, true where a token may look; None when every token sees every token."""
        causal = causal or self.causal
        return self.cached(("mask", window, causal), lambda: self._mask(window, causal))

    def _mask(self, window: int | None, causal: bool) -> Tensor | None:
        mask = self.real_BT[:, None, None, :]
        if window is None and self.block_BT is None and not causal:
            # Without a mask SDPA may choose its fastest kernels.
            return mask if self._is_padded() else None
        if window is not None:
            mask = mask & (self.distance().abs() <= window)[:, None]
        if causal:
            mask = mask & (self.distance() >= 0)[:, None]
        if self.block_BT is not None:
            mask = mask & (self.block_BT[:, :, None] == self.block_BT[:, None, :])[:, None]
        # A padded row that sees nothing would be a softmax over nothing: let it see itself.
        eye = torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)
        return mask | eye

    def _is_padded(self) -> bool:
        # A graph that is exported cannot ask, and a mask of real tokens changes nothing.
        if self.padded is None and not torch.compiler.is_exporting():
            return not bool(self.real_BT.all())
        return self.padded is not False

    def distance(self) -> Tensor:
        """`[B,T,T]` position of the looking token minus position of the seen one."""
        return self.position_BT[:, :, None] - self.position_BT[:, None, :]

    def segments(self) -> Tensor:
        """`[B,T]` segment of each token as XLNet has them: query, passage, and the passage's last token."""
        if self.segment_BT is None:
            self.segment_BT = torch.zeros_like(self.position_BT)
            if (first := self.passage) is not None:
                place_BP = self.position_BT.masked_fill(~self.real_BT, -1)[:, first:]
                self.segment_BT[:, first:] = 1
                self.segment_BT.scatter_(1, first + place_BP.argmax(1, keepdim=True), 2)
        return self.segment_BT

    def angles(
        self, base: float, width: int, scaling: RotaryScaling | None = None
    ) -> tuple[Tensor, Tensor]:
        """Cosine and sine `[B,1,T,K]` of the rotary angles."""
        key = "angles", base, width, scaling
        return self.cached(key, lambda: angles(self.position_BT, base, width, scaling))

    def buckets(self, buckets: int, max_distance: int) -> Tensor:
        """`[B,T,T]` row of DeBERTa's relative table for each pair of tokens."""
        key = "buckets", buckets, max_distance
        return self.cached(key, lambda: self._buckets(buckets, max_distance))

    def _buckets(self, buckets: int, max_distance: int) -> Tensor:
        distance = self.distance()
        # 0 means one row per distance, as DeBERTa v1 has it.
        if max_distance:
            distance = log_bucket(distance, buckets, max_distance, torch)
        return (distance + buckets).clamp(0, 2 * buckets - 1)


def angles(
    position_BT: Tensor, base: float, width: int, scaling: RotaryScaling | None = None
) -> tuple[Tensor, Tensor]:
    """Cosine and sine `[B,1,T,K]` of the rotary angles at these positions."""
    step = torch.arange(0, width, 2, dtype=torch.float32, device=position_BT.device)
    # In fp32: half precision cannot hold positions beyond 2048 exactly.
    turn = 1.0 / base ** (step / width)
    if scaling is not None:
        turn = scaling.slowed(turn)
    angle_BTk = position_BT[..., None].float() * turn
    # Both halves of a head turn by the same angles (the layout of GPT-NeoX and ModernBERT).
    angle = torch.cat([angle_BTk, angle_BTk], -1)[:, None]
    return angle.cos(), angle.sin()


def rotate(x_BHTK: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, in fp32 whatever the compute type."""
    x = x_BHTK.float()
    half = math.floor(x.shape[-1] / 2)
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return (x * cos + turned * sin).to(x_BHTK.dtype)
