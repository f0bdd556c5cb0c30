"""A layer: blocks in order, each with the slot of its parameters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from decoupled.errors import SpecError
from decoupled.model.jsonable import LATER
from decoupled.model.parts.attention import Attention
from decoupled.model.parts.feed_forward import FeedForwardSpec
from decoupled.model.parts.linear import WHOLE, LinearSpec, Tensors
from decoupled.model.parts.norm import NormSpec
from decoupled.model.parts.part import Part


def in_slot(name: str) -> bool:
    """Whether the tensor of that name belongs to the slot of a block."""
    return name.startswith("stack.") and not name.startswith(("stack.norm.", "stack.relative."))


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of a layer with residual and norm, where its parameters are, and how its matrices are held."""

    name: str
    """Its name; every layer has the blocks `attention` and `ffn`."""
    part: Part
    slot: int
    linear: LinearSpec = WHOLE
    norm: NormSpec | None = NormSpec()
    after: Literal["attention", "ffn"] = field(default="ffn", metadata=LATER)
    """The block that an additional block follows; a decoder's cross-attention follows `attention`."""

    @property
    def prefix(self) -> str:
        """Prefix of the names of its tensors."""
        return f"stack.{self.name}.{self.slot}."

    def tensors(self, width: int) -> Tensors:
        """Its tensors, by name."""
        tensors: Tensors = {}
        for name, m in self.part.matrices(width).items():
            tensors |= self.linear.tensors(self.prefix + name, m.inputs, m.outputs, bias=m.bias)
        tensors |= {self.prefix + name: t for name, t in self.part.others(width).items()}
        return tensors | (self.norm.tensors(f"{self.prefix}norm", width) if self.norm else {})

    def shape(self) -> tuple[object, ...]:
        """The part of its description that layers which share the slot must agree on."""
        return self.part.shape(), self.linear, self.norm


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One layer. Layers that name the same slot share its parameters."""

    attention: Attention
    ffn: FeedForwardSpec
    attention_slot: int
    ffn_slot: int
    norm: NormSpec = NormSpec()
    order: Literal["post", "pre"] = "post"
    attention_norm: bool = True
    """ModernBERT's first layer has none: its embedding is already normalised."""
    passage: Literal["advance", "frozen"] = "advance"
    """Above the split: do passage rows move, or only serve as keys and values?"""
    attention_maps: LinearSpec = field(default=WHOLE, metadata=LATER)
    ffn_maps: LinearSpec = field(default=WHOLE, metadata=LATER)

    more: tuple[Block, ...] = field(default=(), metadata=LATER)
    """Additional blocks, each after the one that it names."""
    reversible: bool = field(default=False, metadata=LATER)
    """Whether the layer has two streams, each block adding to one what it makes of the other."""

    def __post_init__(self) -> None:
        if self.reversible and (self.order != "pre" or self.passage == "frozen"):
            raise SpecError(
                f"a reversible layer of order {self.order!r} with {self.passage} passages; it normalises "
                "before its blocks ('pre') and all rows advance"
            )
        outside = [b.part.kind for b in self.blocks if b.part.relative or b.part.reads_source]
        if self.reversible and outside:
            raise SpecError(
                f"a reversible layer with {outside[0]} attention, which reads more than its input; only "
                "what comes from the input can be computed again"
            )

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks, in the order of the computation."""
        attention = Block(
            name="attention",
            part=self.attention,
            slot=self.attention_slot,
            linear=self.attention_maps,
            norm=self.norm if self.attention_norm else None,
        )
        slot, linear = self.ffn_slot, self.ffn_maps
        ffn = Block(name="ffn", part=self.ffn, slot=slot, linear=linear, norm=self.norm)
        between = (block for block in self.more if block.after == "attention")
        last = (block for block in self.more if block.after == "ffn")
        return attention, *between, ffn, *last

    def block(self, name: str) -> Block:
        """The block of that name."""
        return next(block for block in self.blocks if block.name == name)

    def put(self, *blocks: Block) -> LayerSpec:
        """The same layer with these blocks in place of its own of the same names."""
        replaced = {block.name: block for block in blocks}
        changes: dict[str, Any] = {"more": tuple(replaced.get(b.name, b) for b in self.more)}
        for name in ("attention", "ffn"):
            if block := replaced.get(name):
                own = {"": block.part, "_slot": block.slot, "_maps": block.linear}
                changes |= {f"{name}{end}": value for end, value in own.items()}
        return replace(self, **changes)

    def in_slot(self, slot: int) -> LayerSpec:
        """The same layer with that slot for each of its blocks."""
        return self.put(*(replace(block, slot=slot) for block in self.blocks))

    def macs(self, width: int, *, rows: int, tokens: int, table: int = 0) -> int:
        """Multiply-adds of `rows` of `tokens`, with so many rows of relative positions."""
        return sum(
            block.part.macs(block.linear, width, rows=rows, tokens=tokens, table=table)
            for block in self.blocks
        )
