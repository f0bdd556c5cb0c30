"""The attention of a decoder as modules."""

import math

import torch
from torch import Tensor

from decoupled.errors import InputError
from decoupled.methods.decoder.part import Causal, Cross
from decoupled.model.nn.attention.base import AttentionModule, build_attention
from decoupled.model.nn.attention.dot import DotProductAttention
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import take


@build_attention.register(Causal)
class CausalAttention(DotProductAttention):
    """A row may be computed as soon as the tokens before it are known, and stays as it is after that."""

    def mask(self, context: Context) -> Tensor | None:
        return self.rows_of(context.frame.mask(None, causal=True), context)


@build_attention.register(Cross)
class CrossAttention(AttentionModule):
    """Queries come from the rows, keys and values from the other text; neither has positions of its own."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        q_BHRK = self.split_heads(self.query(take(x_BTD, context.rows)))
        k_BHSK, v_BHSK = self._keys_and_values(x_BTD, context)
        return self.join(self.attend(q_BHRK, k_BHSK, v_BHSK, self.mask(context)))

    def scores(self, x_BTD: Tensor, context: Context) -> Tensor:
        k_BHSK, _ = self._keys_and_values(x_BTD, context)
        return self.split_heads(self.query(x_BTD)) @ k_BHSK.mT / math.sqrt(self.head_width)

    def mask(self, context: Context) -> Tensor:
        if context.source is not None:
            return context.source.real[:, None, None, :]
        if not context.query:
            raise InputError(
                f"layer {context.number} has cross attention, and there is no other text to look at; run it "
                "on a pair, or give the stack a source"
            )
        real_BT = context.frame.real_BT
        asks_T = torch.arange(real_BT.shape[1], device=real_BT.device) < context.query
        # Each side sees the real tokens of the other side alone.
        mask = real_BT[:, None, None, :] & (asks_T[:, None] != asks_T)
        return take(mask, context.rows, 2)

    def _keys_and_values(self, x_BTD: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        source = context.source
        # A source that does not change is mapped once, however many tokens are decoded.
        if source is not None and self in source.kept:
            return source.kept[self]
        states = x_BTD if source is None else source.states
        keys_values = self.split_heads(self.key(states)), self.split_heads(self.value(states))
        if source is not None and source.keep:
            source.kept[self] = keys_values
        return keys_values
