"""DeLighT's attention as a module."""

import math

from torch import Tensor

from decoupled.methods.delight.part import Delight
from decoupled.methods.group_modules import GroupStack
from decoupled.model.nn.attention.base import AttentionModule, build_attention
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import take
from decoupled.model.parts.linear import LinearSpec


@build_attention.register(Delight)
class DelightAttention(AttentionModule):
    """A unit of group linear layers on every token, and one head on what it gives."""

    def __init__(self, kind: Delight, *, width: int, dropout: float, linear: LinearSpec) -> None:
        super().__init__(kind, width=width, dropout=dropout, linear=linear)
        self.unit = GroupStack(kind.unit(width), linear)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        z_BTK = self.unit(x_BTD)
        q_B1RK = self.split_heads(self.query(take(z_BTK, context.rows)))
        k_B1TK, v_B1TK = (self.split_heads(one(z_BTK)) for one in (self.key, self.value))
        return self.join(self.attend(q_B1RK, k_B1TK, v_B1TK, self.mask(context)))

    def scores(self, x_BTD: Tensor, context: Context) -> Tensor:
        z_BTK = self.unit(x_BTD)
        q, k = (self.split_heads(one(z_BTK)) for one in (self.query, self.key))
        return q @ k.transpose(-1, -2) / math.sqrt(self.head_width)
