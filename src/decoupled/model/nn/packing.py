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


@dataclass(frozen=True, eq=False)
class Packing:
    """Where the real tokens of a padded batch are."""

    real: Tensor
    """`[B,T]`."""
    count: int
    """How many they are: told, since to ask a GPU means to wait for it."""

    @cached_property
    def place_N(self) -> Tensor:
        """Their numbers among all places of the batch, in order."""
        return torch.nonzero_static(self.real.flatten(), size=self.count)[:, 0]

    @cached_property
    def ends(self) -> Tensor:
        """`[B+1]` where each text begins, and the last one ends."""
        return F.pad(self.real.sum(1).cumsum(0), (1, 0)).int()

    def pack(self, x: Tensor) -> Tensor:
        """`[B,T,…]` to `[1,N,…]`."""
        return x.flatten(0, 1).index_select(0, self.place_N)[None]

    def unpack(self, x: Tensor) -> Tensor:
        """`[1,N,…]` to `[B,T,…]`, with zeros for padding."""
        batch, width = self.real.shape
        padded = x.new_zeros(batch * width, *x.shape[2:]).index_copy(0, self.place_N, x[0])
        return padded.view(batch, width, *x.shape[2:])

    def attend(self, q_1HNK: Tensor, k_1HNK: Tensor, v_1HNK: Tensor) -> Tensor:
        """Softmax attention of each token to those of its own text, `[1,H,N,K]`."""
        q, k, v = (x.transpose(1, 2) for x in (q_1HNK, k_1HNK, v_1HNK))
        if varlen is not None and q.is_cuda and q.dtype != torch.float32:
            ends, longest = self.ends, self.real.shape[1]
            y_NHK = varlen.varlen_attn(q[0], k[0], v[0], ends, ends, longest, longest)
            return cast(Tensor, y_NHK).transpose(0, 1)[None]
        q, k, v = (self.unpack(x).transpose(1, 2) for x in (q, k, v))
        mask = self.real[:, None, None, :]
        y_BHTK = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.pack(y_BHTK.transpose(1, 2)).transpose(1, 2)
