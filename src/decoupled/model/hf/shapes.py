"""The tensors that a spec asks for, by name and shape, without building a module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from decoupled.errors import SpecError
from decoupled.model.parts.attention import Disentangled, SelfAttention
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.head import HeadSpec
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.norm import NormSpec
from decoupled.model.spec import EncoderSpec

Shape: TypeAlias = tuple[int, ...]


def expected(encoder: EncoderSpec, heads: Iterable[HeadSpec]) -> dict[str, Shape]:
    """Name and shape of every tensor of the whole model at split 0; ordinary forms only."""
    if not encoder.plain:
        raise SpecError(
            "the encoder has thin, coded or fixed parts (model.parts), and a checkpoint holds whole "
            "matrices and tables; use the model folder instead"
        )
    shapes = dict(_embedding(encoder.embedding, encoder.width))
    for layer in encoder.layers:
        shapes.update(_layer(layer, encoder.width))
    if encoder.relative is not None:
        shapes["stack.relative.table.weight"] = (encoder.relative.rows, encoder.width)
        if encoder.relative.norm is not None:
            shapes.update(_norm("stack.relative.norm", encoder.width, encoder.relative.norm))
    if encoder.final_norm is not None:
        shapes.update(_norm("stack.norm", encoder.width, encoder.final_norm))
    for head in heads:
        shapes.update(_head(head, encoder.width))
    return shapes


def _linear(
    name: str, rows: int, columns: int, *, bias: bool = True
) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def _norm(name: str, width: int, norm: NormSpec) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (width,)
    if norm.bias:
        yield f"{name}.bias", (width,)


def _embedding(spec: EmbeddingSpec, width: int) -> Iterator[tuple[str, Shape]]:
    yield "embedding.tokens.weight", (spec.vocab, spec.width)
    if spec.positions:
        yield "embedding.positions.weight", (spec.positions, spec.width)
    if spec.types:
        yield "embedding.types.weight", (spec.types, spec.width)
    norm_width = width if spec.project == "before_norm" else spec.width
    yield from _norm("embedding.norm", norm_width, spec.norm)
    if spec.project != "none":
        yield from _linear("embedding.project", width, spec.width, bias=spec.project_bias)


def _layer(layer: LayerSpec, width: int) -> Iterator[tuple[str, Shape]]:
    block = f"stack.attention.{layer.attention_slot}"
    kind = layer.attention
    inner = kind.heads * kind.head_width
    bias = kind.bias if isinstance(kind, SelfAttention) else True
    maps = ["query", "key", "value"]
    if isinstance(kind, Disentangled) and not kind.shared:
        maps += ["relative_key"] if "c2p" in kind.terms else []
        maps += ["relative_query"] if "p2c" in kind.terms else []
    for name in maps:
        yield from _linear(f"{block}.attention.{name}", inner, width, bias=bias)
    yield from _linear(f"{block}.attention.out", width, inner, bias=bias)
    if layer.attention_norm:
        yield from _norm(f"{block}.norm", width, layer.norm)
    block, ffn = f"stack.ffn.{layer.ffn_slot}", layer.ffn
    for name in ("up", "gate") if ffn.gated else ("up",):
        yield from _linear(f"{block}.{name}", ffn.width, width, bias=ffn.bias)
    yield from _linear(f"{block}.down", width, ffn.width, bias=ffn.bias)
    yield from _norm(f"{block}.norm", width, layer.norm)


def _head(head: HeadSpec, width: int) -> Iterator[tuple[str, Shape]]:
    block = f"heads.{head.kind}"
    if head.dense is not None:
        yield from _linear(f"{block}.dense", width, width, bias=head.dense.bias)
        if head.dense.norm is not None:
            yield from _norm(f"{block}.norm", width, head.dense.norm)
    yield from _linear(f"{block}.out", head.outputs, width)
