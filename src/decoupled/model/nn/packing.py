"""Batches without padding: the real tokens of all texts in one row, for training on texts of many lengths.

Only attention knows where a text ends; every other part of a layer takes rows as they come. Shapes: N real
tokens of a batch `[B,T]`, H heads, K head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    from torch.nn.attention import varlen
except ImportError:  # torch before 2.10
    varlen = None  # type: ignore[assignment]


HAS_VARLEN = varlen is not None
"""Whether this torch has attention for several texts in one row."""
LONGEST = 64
"""Lengths are rounded up to multiples of this, so that what is compiled for one length serves many."""


@dataclass(frozen=True, eq=False)
class Ends:
    """Where the texts of a packed row begin and end: all that attention must know about them."""

    ends: Tensor
    """`[B+1]` first row of each text, and the end of the last one."""
    longest: int

    @classmethod
    def of(cls, *lengths: Tensor, longest: int) -> Ends:
        """The ends of texts of these lengths, those of the first tensor first."""
        ends = F.pad(torch.cat(lengths).cumsum(0), (1, 0)).int()
        return cls(ends, -(-longest // LONGEST) * LONGEST)

    def attend(self, q_1HNK: Tensor, k_1HNK: Tensor, v_1HNK: Tensor) -> Tensor:
        """Softmax attention of each token to those of its own text, `[1,H,N,K]`."""
        # The kernel for texts in a row takes half precision on a GPU alone.
        if varlen is not None and q_1HNK.is_cuda and q_1HNK.dtype != torch.float32:
            q, k, v = (x[0].transpose(0, 1) for x in (q_1HNK, k_1HNK, v_1HNK))
            longest = self.longest
            y_NHK = varlen.varlen_attn(q, k, v, self.ends, self.ends, longest, longest)
            return cast(Tensor, y_NHK).transpose(0, 1)[None]
        return F.scaled_dot_product_attention(q_1HNK, k_1HNK, v_1HNK, attn_mask=self.same_NN)

    @cached_property
    def same_NN(self) -> Tensor:
        """`[N,N]`, true for two tokens of the same text."""
        place = torch.arange(int(self.ends[-1]), device=self.ends.device)
        text_N = torch.searchsorted(self.ends, place.int(), right=True)
        return text_N[:, None] == text_N


@dataclass(frozen=True, eq=False)
class Packing:
    """The positions of the real tokens of a padded batch."""

    real: Tensor
    """`[B,T]`."""
    count: int
    """The number of real tokens. It is passed in, since asking a GPU for it would mean waiting."""

    @cached_property
    def place_N(self) -> Tensor:
        """Indices of the real tokens among all `B·T` positions of the batch, in order."""
        # The static form needs no answer from the device: a plain nonzero would wait for it.
        return torch.nonzero_static(self.real.flatten(), size=self.count)[:, 0]

    @cached_property
    def row_BT(self) -> Tensor:
        """The number of each real token among the real ones; padding repeats the one before."""
        return (self.real.flatten().cumsum(0) - 1).view_as(self.real)

    @cached_property
    def ends(self) -> Ends:
        """The ends of the texts in the packed row."""
        return Ends.of(self.real.sum(1), longest=self.real.shape[1])

    def first(self, x_1ND: Tensor) -> Tensor:
        """`[B,1,D]` the first row of each text."""
        return x_1ND[0].index_select(0, self.ends.ends[:-1])[:, None]

    def pack(self, x: Tensor) -> Tensor:
        """`[B,T,…]` to `[1,N,…]`."""
        return x.flatten(0, 1).index_select(0, self.place_N)[None]

    def unpack(self, x: Tensor) -> Tensor:
        """`[1,N,…]` to `[B,T,…]`, with zeros for padding."""
        batch, width = self.real.shape
        padded = x.new_zeros(batch * width, *x.shape[2:]).index_copy(0, self.place_N, x[0])
        return padded.view(batch, width, *x.shape[2:])
