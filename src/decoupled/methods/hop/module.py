"""Attention between the first tokens of linked passages (Zhao et al., 2020).

`h̃ = W [h; Σ softmax(q̂·k̂/√d_k) v̂]` over the pairs that a pair is linked to; a pair without links hears
nothing. W starts as `[I; 0]`, so that a model with new hops is the one without.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.methods.hop.part import Hop
from decoupled.model.nn.block import Context, build_block
from decoupled.model.nn.frame import take
from decoupled.model.nn.linear import build_linear
from decoupled.model.parts.layer import Block
from decoupled.model.spec import DropoutSpec


@build_block.register(Hop)
class HopBlock(nn.Module):
    """Rows but the first pass as they are; the links are those of the frame."""

    query: nn.Module
    key: nn.Module
    value: nn.Module
    mix: nn.Module

    def __init__(self, part: Hop, block: Block, *, width: int, dropout: DropoutSpec) -> None:
        super().__init__()
        self.heads = part.heads
        for name, m in part.matrices(width).items():
            self.add_module(name, build_linear(block.linear, m.inputs, m.outputs, bias=m.bias))

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        hub_BD = x_BTD[:, 0]
        heard_BD = self._message(hub_BD, context.frame.links_BB)
        moved = self.mix(torch.cat([hub_BD, heard_BD], -1))[:, None].to(x_BTD.dtype)
        return take(torch.cat([moved, x_BTD[:, 1:]], 1), context.rows)

    def _message(self, hub_BD: Tensor, links_BB: Tensor | None) -> Tensor:
        if links_BB is None:
            return torch.zeros_like(hub_BD)
        # The batch is the sequence here: [B,D] -> [1,H,B,K].
        q, k, v = (
            part(hub_BD).unflatten(-1, (self.heads, -1)).transpose(0, 1)[None]
            for part in (self.query, self.key, self.value)
        )
        # A row of a softmax over nothing: let it look anywhere, and count for nothing.
        some_B1 = links_BB.any(1, keepdim=True)
        messages = F.scaled_dot_product_attention(q, k, v, attn_mask=links_BB | ~some_B1)
        return messages[0].transpose(0, 1).flatten(1).masked_fill(~some_B1, 0.0)
