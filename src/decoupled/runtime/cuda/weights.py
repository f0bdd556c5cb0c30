"""A model arranged for the CUDA runtime: fused maps, folded matrices, one compute type.

Folding is done in fp32 before anything is rounded. Shapes: W width of the codes, D of the model, I of all
heads together.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from decoupled.model.codec import Affine
from decoupled.model.nn.attention import AttentionBlock
from decoupled.model.nn.embedding import CrossEmbedding, Embedding
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.nn.feed_forward import FeedForwardBlock
from decoupled.model.nn.head import Head
from decoupled.model.nn.stack import Stack
from decoupled.model.parts.attention import Attention, SelfAttention
from decoupled.model.parts.feed_forward import Activation
from decoupled.model.parts.head import HeadKind
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.linear import WHOLE
from decoupled.model.spec import ModelSpec
from decoupled.runtime.cuda.ops import Linear, Norm, ProductShape

M = TypeVar("M", bound=nn.Module)

Place = tuple[torch.device, torch.dtype]
EXACT: Place = (torch.device("cpu"), torch.float32)
WIDEST_HEAD = 128
"""Wider heads do not fit the attention kernel's registers."""


@singledispatch
def declined(kind: Attention) -> str | None:
    """Why the fast path cannot compute this attention; None for a registered kind that it can compute."""
    return f"it lacks {kind.kind} attention"


@declined.register
def _(kind: SelfAttention) -> str | None:
    if kind.rotary is not None or kind.window is not None:
        return "its attention is rotary or windowed"
    if kind.head_width > WIDEST_HEAD:
        return f"its heads are {kind.head_width} wide, and at most {WIDEST_HEAD} fit"
    return None


def unsupported_reason(spec: ModelSpec) -> str | None:
    """Why this model cannot take the fast path; None when it can."""
    for layer in (layer for stack in spec.stacks.values() for layer in stack.layers):
        if why := declined(layer.attention):
            return why
        if layer.more:
            return f"it lacks {layer.more[0].part.kind} blocks"
        if layer.order != "post" or not layer.attention_norm:
            return "its norms come before the layers"
        if layer.ffn.gated:
            return "its feed-forward layers are gated"
    blocks = [block for stack in spec.stacks.values() for block in stack.blocks]
    # Folding needs whole matrices; low-rank and quantised ones run through torch.
    if any(block.linear != WHOLE or not block.part.alike for block in blocks):
        return "some of its matrices are low-rank or quantised"
    if spec.encoder.final_norm is not None:
        return "it ends with a norm"
    if any(head.reads_all for head in spec.heads):
        return "a head pools over all rows"
    if spec.text.structure is not None:
        return f"it lacks {spec.text.structure.kind} rows beside tokens"
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """The parameters of one layer, fused as the kernels read them."""

    qkv: Linear
    """The query, key and value maps as one layer, in this order."""
    out: Linear
    up: Linear
    down: Linear
    attention_norm: Norm
    ffn_norm: Norm
    activation: Activation
    shape: ProductShape
    frozen: bool
    """Whether passage rows stay as they are."""

    @property
    def query(self) -> Linear:
        """The query map alone."""
        return self.qkv.rows(0, self.shape.inner)

    @property
    def key_value(self) -> Linear:
        """The key and value maps."""
        return self.qkv.rows(self.shape.inner, 3 * self.shape.inner)


@dataclass(frozen=True, kw_only=True, eq=False)
class Restore:
    """How codes become rows of the cross component, also folded into the maps of its first layers."""

    states: Linear
    """`[D,W]` map from codes to rows."""
    folded: tuple[Linear, ...]
    """Query, key and value maps of codes, for each layer up to the first that moves passage rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceWeights:
    """All weights of a model on the device."""

    spec: ModelSpec
    device: torch.device
    dtype: torch.dtype
    embedding: Embedding
    """The embedding in fp32: its rows are few, and everything depends on them."""
    layers: tuple[Layer, ...]
    down: Linear | None
    up: Linear | None
    vector: Tensor | None
    vector_layers: tuple[Layer, ...]
    """The layers that only the first-stage vector has."""
    cross_embedding: CrossEmbedding | None
    heads: dict[HeadKind, Head]
    exits: dict[str, Head]
    """Heads of the exits by the layer that each stands after; in fp32, since their outputs are compared."""
    exact_qkv: tuple[Linear, ...]
    """Query, key and value maps of each cross layer in fp32 on the CPU, for `restore`."""
    exact_up: Linear | None

    def restore(self, affine: Affine | None) -> Restore | None:
        """The map from codes to passage rows: the codec's matrix, the model's own, both, or neither."""
        matrix_WD, bias_D = _compose(affine, self.exact_up)
        if matrix_WD is None or bias_D is None:
            return None
        folded = []
        # Tables that are added to the rows stand between the codes and the maps, so nothing can be
        # folded.
        if self.cross_embedding is None:
            layers = self.layers[self.spec.split :]
            for layer, exact in zip(layers, self.exact_qkv, strict=True):
                # W(M'z + b) + c = (W M')z + (W b + c).
                bias = bias_D @ exact.weight.T
                bias = bias if exact.bias is None else bias + exact.bias
                folded.append(self._place((matrix_WD @ exact.weight.T).T, bias))
                # After a layer that moves the passages they are no longer linear in the codes.
                if not layer.frozen:
                    break
        return Restore(states=self._place(matrix_WD.T, bias_D), folded=tuple(folded))

    def _place(self, weight: Tensor, bias: Tensor) -> Linear:
        return Linear(
            weight=weight.contiguous().to(self.device, self.dtype),
            bias=bias.to(self.device, self.dtype),
        )


def arrange(net: PairEncoder, *, device: torch.device, dtype: torch.dtype) -> DeviceWeights:
    """The weights of a whole model, copied to the device; the model itself is left alone."""
    spec, projection, place = net.spec, net.projection, (device, dtype)
    deeper = net.vector.stack if net.vector is not None else None
    down, up = (
        [cast(nn.Linear, projection[n])] if n in projection else None for n in ("down", "up")
    )
    return DeviceWeights(
        spec=spec,
        device=device,
        dtype=dtype,
        embedding=_copy(net.embedding, device),
        layers=tuple(_layer(layer, net.stack, place) for layer in spec.layers),
        down=_linear(down, *place) if down else None,
        up=_linear(up, *place) if up else None,
        vector=None if net.vector is None else net.vector.weight.detach().float().to(device),
        vector_layers=tuple(_layer(own, deeper, place) for own in deeper.spec.layers)
        if deeper is not None
        else (),
        cross_embedding=_copy(net.cross_embedding, device) if net.cross_embedding else None,
        heads={head.kind: _copy(cast(Head, net.heads[head.kind]), device) for head in spec.heads},
        exits={
            name: _copy(cast(Head, head), device)
            for name, head in net.exits.items()
            if name.isdigit()  # other heads are for the torch runtime alone
        },
        exact_qkv=tuple(_linear(_qkv(own, net.stack), *EXACT) for own in spec.layers[spec.split :]),
        exact_up=_linear(up, *EXACT) if up else None,
    )


def _compose(affine: Affine | None, up: Linear | None) -> tuple[Tensor | None, Tensor | None]:
    """The matrix and bias of `x_D = z_W @ matrix + bias`: the codec's map followed by the model's."""
    matrix_WD = bias_D = None
    if affine is not None:
        matrix_WD = torch.from_numpy(np.ascontiguousarray(affine.matrix))
        bias_D = torch.from_numpy(np.ascontiguousarray(affine.bias))
    if up is not None:
        assert up.bias is not None
        matrix_WD = up.weight.T if matrix_WD is None else matrix_WD @ up.weight.T
        bias_D = up.bias if bias_D is None else bias_D @ up.weight.T + up.bias
    return matrix_WD, bias_D


def _linear(maps: Sequence[nn.Linear], device: torch.device, dtype: torch.dtype) -> Linear:
    """One layer that computes several maps of the same rows."""
    weight = torch.cat([m.weight.detach() for m in maps]).to(device)
    biases = [m.bias.detach() for m in maps if m.bias is not None]
    bias = torch.cat(biases).to(device, dtype) if biases else None
    return Linear(weight=weight.to(dtype).contiguous(), bias=bias)


def _norm(norm: nn.LayerNorm, device: torch.device) -> Norm:
    """The norm in fp32, as it is computed."""
    bias = None if norm.bias is None else norm.bias.detach().float().to(device)
    return Norm(weight=norm.weight.detach().float().to(device), bias=bias, eps=norm.eps)


def _layer(spec: LayerSpec, stack: Stack, place: Place) -> Layer:
    block = cast(AttentionBlock, stack.attention[str(spec.attention_slot)])
    ffn = cast(FeedForwardBlock, stack.ffn[str(spec.ffn_slot)])
    return Layer(
        qkv=_linear(_qkv(spec, stack), *place),
        out=_linear([cast(nn.Linear, block.attention.out)], *place),
        up=_linear([cast(nn.Linear, ffn.up)], *place),
        down=_linear([cast(nn.Linear, ffn.down)], *place),
        attention_norm=_norm(cast(nn.LayerNorm, block.norm), place[0]),
        ffn_norm=_norm(cast(nn.LayerNorm, ffn.norm), place[0]),
        activation=spec.ffn.activation,
        shape=ProductShape(heads=spec.attention.heads, width=spec.attention.head_width),
        frozen=spec.passage == "frozen",
    )


def _qkv(spec: LayerSpec, stack: Stack) -> list[nn.Linear]:
    """Maps of an attention block, which are whole matrices: `unsupported_reason` refuses others."""
    attention = cast(AttentionBlock, stack.attention[str(spec.attention_slot)]).attention
    return [cast(nn.Linear, getattr(attention, name)) for name in ("query", "key", "value")]


def _copy(module: M, device: torch.device) -> M:
    return copy.deepcopy(module).float().to(device).eval().requires_grad_(False)
