"""Arithmetic of the race in FLOPs: matrix products of the layers, two for a multiplication with its sum."""

from __future__ import annotations

from decoupled.lab.bench.shapes import Shape
from decoupled.measure.flops import layer_macs
from decoupled.model.spec import FeedForwardSpec, LayerSpec, SelfAttention


def layer_flops(shape: Shape, tokens: int, rows: int) -> int:
    """One layer that computes `rows` of `tokens`: keys and values of all, the rest of its rows."""
    layer = LayerSpec(
        attention=SelfAttention(heads=shape.heads, head_width=shape.width // shape.heads),
        ffn=FeedForwardSpec(width=shape.ffn, gated=shape.family == "modernbert"),
        attention_slot=0,
        ffn_slot=0,
    )
    return 2 * layer_macs(layer, shape.width, tokens=tokens, rows=rows)


def joint_flops(shape: Shape, tokens: int) -> int:
    """One pair through the whole encoder, every row of every layer, as joint models compute it."""
    return shape.layers * layer_flops(shape, tokens, tokens)


def query_flops(shape: Shape, query: int, passage: int, *, one_way: bool) -> int:
    """One pair through the cross component of a ranking model; the last layer computes one row."""
    tokens, last = query + passage, shape.layers - 1
    rows = query if one_way else tokens
    before = (last - shape.split) * layer_flops(shape, tokens, rows)
    return before + layer_flops(shape, tokens, 1)
