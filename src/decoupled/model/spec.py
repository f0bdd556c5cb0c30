"""The architecture as frozen data: what is built, split, shrunk, saved and fingerprinted.

Modules are built once, from the final spec. A variant is another spec: pruning, sharing or a different
split never touches a built module. `to_json` and `from_json` are exact inverses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from decoupled.errors import SpecError
from decoupled.model.jsonable import LATER
from decoupled.model.parts.attention import RelativeSpec
from decoupled.model.parts.embedding import EmbeddingSpec, cross_tensors
from decoupled.model.parts.exits import ExitSpec, check_exits
from decoupled.model.parts.head import HeadKind, HeadSpec
from decoupled.model.parts.late import LateSpec
from decoupled.model.parts.layer import Block, LayerSpec
from decoupled.model.parts.linear import WHOLE, Tensors
from decoupled.model.parts.norm import NormSpec
from decoupled.model.parts.prompt import Prompt, check_prompt
from decoupled.model.parts.prompt import Side as Side
from decoupled.model.parts.structure import Structure
from decoupled.model.scoring import Scoring

Positions = Literal["typical", "restart", "offset", "joint"]
"""Where a passage begins in the input component: after a typical query, at 0, after the longest query, or
(in a joint model) after its own query. In the cross component it follows its own query, but with `offset`."""
CrossEmbed = Literal["none", "add", "add_ln"]
Stored = Literal["state", "kv"]
"""What is stored of a passage: the state at the split, or with it keys and values of the layers below."""
OneWay = Sequence[int] | Literal["auto"]
"""Layers whose passages stay as they were stored, counted from 1; `auto` is all that the heads allow."""

TYPICAL = 10
"""Position of a passage after a typical query: eight tokens and two special ones."""
VECTOR = "vector."
"""Prefix of the names of the tensors of the first-stage vector."""
WIDEST = 1 << 16
"""The widest encoder that is accepted; the largest that exist have a quarter of it."""

FORMAT = 1
"""Version of the JSON written by `to_json`; a reader refuses a newer one."""


@dataclass(frozen=True, kw_only=True)
class DropoutSpec:
    """Probabilities of dropout, active only while training."""

    hidden: float = 0.1
    attention: float = 0.1


@dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """The Transformer itself, before anything is said about splitting it."""

    width: int
    embedding: EmbeddingSpec
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec | None = None
    relative: RelativeSpec | None = None
    dropout: DropoutSpec = DropoutSpec()
    max_tokens: int = 512
    """The longest sequence of query and passage that the model was made for."""
    chunk: int = field(default=0, metadata=LATER)
    """Tokens that a feed-forward map takes at a time; 0 is all. Changes the memory and no result."""

    @property
    def blocks(self) -> list[Block]:
        """The blocks of all layers, in the order of the computation."""
        return [block for layer in self.layers for block in layer.blocks]

    def tensors(self) -> Tensors:
        """Its tensors, by name."""
        return self.embedding.tensors(self.width) | self.layer_tensors()

    def layer_tensors(self) -> Tensors:
        """The tensors of its layers, by name. Slots count once, however many layers use them."""
        tensors: Tensors = {}
        for block in self.blocks:
            tensors |= block.tensors(self.width)
        final = self.final_norm.tensors("stack.norm", self.width) if self.final_norm else {}
        return tensors | (self.relative.tensors(self.width) if self.relative else {}) | final


@dataclass(frozen=True, kw_only=True)
class TextSpec:
    """How a text becomes tokens: `[CLS] query [SEP]` and `passage [SEP]`, each side on its own."""

    query_prefix: tuple[int, ...]
    query_suffix: tuple[int, ...]
    passage_prefix: tuple[int, ...]
    passage_suffix: tuple[int, ...]
    query_type: int = 0
    passage_type: int = 0
    pad: int = 0
    query_tokens: int = 64
    """Longest query, special tokens included; a longer one is cut."""
    passage_tokens: int = 448
    """Longest window of a passage, special tokens included."""
    stride: int = 128
    """Text tokens from the start of one window to the start of the next."""
    structure: Structure | None = field(default=None, metadata={**LATER, "key": "tree"})
    prompt: Prompt | None = field(default=None, metadata=LATER)
    """The words that a decoder reads around both texts, and the text that it reads first."""

    @property
    def passage_first(self) -> bool:
        """Whether the query comes after the passage."""
        return self.prompt is not None and self.prompt.first == "passage"


@dataclass(frozen=True, kw_only=True)
class ProjectionSpec:
    """A learned bottleneck at the split: states leave the input component `width` wide."""

    width: int
    query: bool = True
    """Whether the query passes through it too, so that both sides share their statistics."""
    bits: int | None = field(default=None, metadata=LATER)
    """Bits of the codes that the model was trained to read, and the default of an index; None is 8."""


@dataclass(frozen=True, kw_only=True)
class VectorSpec:
    """A learned map from the mean state of a text to a unit vector for first-stage retrieval."""

    width: int
    layers: tuple[LayerSpec, ...] = field(default=(), metadata=LATER)
    """Layers of its own between the input component, whose states are stored, and the mean."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """An encoder, where it is split, how text enters, and the heads that read it."""

    family: str
    encoder: EncoderSpec
    text: TextSpec
    heads: tuple[HeadSpec, ...] = ()
    split: int = 0
    positions: Positions = "joint"
    store: Stored = field(default="state", metadata=LATER)
    """With `kv` the query reads a passage in every layer, so that no split changes a score."""
    cross_embed: CrossEmbed = "none"
    projection: ProjectionSpec | None = None
    vector: VectorSpec | None = None
    late: LateSpec | None = field(default=None, metadata=LATER)
    exits: tuple[ExitSpec, ...] = field(default=(), metadata=LATER)
    scoring: Scoring | None = field(default=None, metadata=LATER)
    """Calibration of its scores on development data; None leaves logits as they are."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """All layers, input component first."""
        return self.encoder.layers

    @property
    def stacks(self) -> dict[str, EncoderSpec]:
        """Layers of the encoder and of the vector, by what the names of their tensors begin with."""
        stacks = {"": self.encoder}
        if self.vector is not None and self.vector.layers:
            stacks[VECTOR] = replace(self.encoder, layers=self.vector.layers, final_norm=None)
        return stacks

    @property
    def one_way(self) -> tuple[int, ...]:
        """Cross layers whose passages stay as they were stored, counted from 1."""
        cross = enumerate(self.layers[self.split :], self.split + 1)
        return tuple(number for number, layer in cross if layer.passage == "frozen")

    @property
    def memory_windows(self) -> int:
        """Windows of a text that decide the states of the one after them; 0 where each is read alone."""
        return sum(layer.attention.memory_windows for layer in self.layers[: self.split])

    def head(self, kind: HeadKind) -> HeadSpec:
        """The head of that kind, or an error that names those there are."""
        for head in self.heads:
            if head.kind == kind:
                return head
        have = ", ".join(h.kind for h in self.heads) or "none"
        raise SpecError(
            f"this model has no {kind!r} head (it has: {have}); use a model trained for it"
        )

    def reads(self, kind: HeadKind) -> HeadSpec:
        """The head that serves requests of that kind; a classifier with a `rank_label` also ranks."""
        by_kind = {head.kind: head for head in self.heads}
        classes = by_kind.get("classes")
        if kind != "rank" or "rank" in by_kind or classes is None:
            return self.head(kind)
        if not classes.rank_label:
            only = "only models of one value or of two labels do; choose such a model"
            remedy = f"name the label that means relevant: split --rank-label {classes.labels[-1]}"
            two = len(classes.labels) == 2
            raise SpecError(
                f"a classifier of {', '.join(classes.labels)} does not rank passages; "
                f"{remedy if two else only}"
            )
        return classes

    def projected(self, side: Side) -> bool:
        """Whether the states of this side pass through the learned projection."""
        return self.projection is not None and (side == "passage" or self.projection.query)

    def state_width(self, side: Side) -> int:
        """Width of the states that leave the input component."""
        projection = self.projection if self.projected(side) else None
        width = projection.width if projection else self.encoder.width
        return width + (self.cached_width if side == "passage" else 0)

    @property
    def cached_width(self) -> int:
        """Numbers of a passage token's keys and values that are stored beside its state."""
        cached = self.layers[: self.split] if self.store == "kv" else ()
        return sum(layer.attention.cached_width for layer in cached)

    @property
    def codec(self) -> str:
        """How an index stores states where nothing else is said."""
        if self.store == "kv":
            return "fp16"  # keys of many layers share no scale
        return "int4" if self.projection is not None and self.projection.bits == 4 else "int8"

    @property
    def vector_width(self) -> int:
        """Width of the vectors for first-stage retrieval."""
        return self.vector.width if self.vector else self.encoder.width

    def first_position(self, side: Side) -> int:
        """Position of a side's first token in the input component, when it does not depend on the query."""
        if side == "query" or self.positions in ("restart", "joint") or self.text.passage_first:
            return 0
        return self.text.query_tokens if self.positions == "offset" else TYPICAL

    def is_input(self, name: str) -> bool:
        """Whether the tensor of that name belongs to the input component (and so to the fingerprint)."""
        own = ("embedding.", "projection.down.", VECTOR)
        return name.startswith((*own, *_prefixes(self.layers[: self.split])))

    def tensors(self) -> Tensors:
        """Every tensor of the model, by name."""
        width = self.encoder.width
        tensors = self.encoder.embedding.tensors(width)
        for prefix, stack in self.stacks.items():
            tensors |= {prefix + name: tensor for name, tensor in stack.layer_tensors().items()}
        if self.projection is not None:
            tensors |= WHOLE.tensors("projection.down", width, self.projection.width)
            tensors |= WHOLE.tensors("projection.up", self.projection.width, width)
        if self.vector is not None:
            tensors |= WHOLE.tensors("vector", width, self.vector.width, bias=False)
        if self.late is not None:
            tensors |= self.late.tensors(self.state_width("passage"))
        if self.cross_embed != "none":
            norm = self.cross_embed == "add_ln"
            tensors |= cross_tensors(self.encoder.embedding, width, norm=norm)
        for head in self.heads:
            tensors |= head.tensors(width)
        for exit_ in self.exits:
            tensors |= exit_.tensors(self.heads, width)
        return tensors


def _prefixes(layers: Sequence[LayerSpec]) -> set[str]:
    """Prefixes of the names of all tensors that these layers read."""
    blocks = [block for layer in layers for block in layer.blocks]
    relative = {"stack.relative."} if any(block.part.relative for block in blocks) else set()
    return {block.prefix for block in blocks} | relative


def check(spec: ModelSpec) -> None:
    """Raise `SpecError` for a description that cannot be built."""
    count = len(spec.layers)
    _check_bounds(spec)
    if not 0 <= spec.split <= count:
        raise SpecError(
            f"split={spec.split}, but the encoder has {count} layers; choose 0..{count}"
        )
    if spec.positions == "joint" and spec.split > 0:
        raise SpecError(
            f"positions='joint' at split={spec.split}: a stored passage cannot know the length of its "
            "query; choose 'typical', 'restart' or 'offset', or split=0"
        )
    check_prompt(spec)
    embedding, text = spec.encoder.embedding, spec.text
    if spec.cross_embed != "none" and not embedding.positions:
        raise SpecError(
            f"cross_embed={spec.cross_embed!r} copies the learned position table, and a {spec.family} "
            "encoder has none; choose 'none'"
        )
    if embedding.positions:
        room = embedding.positions - embedding.position_start
        need = text.query_tokens + text.passage_tokens
        if spec.positions in ("typical", "restart") and spec.cross_embed == "none":
            start = spec.first_position("passage")
            need = max(text.query_tokens, start + text.passage_tokens)
        if need > room:
            raise SpecError(
                f"query_tokens={text.query_tokens} and passage_tokens={text.passage_tokens} need {need} "
                f"positions, but the table has {room}; lower passage_tokens, or shrink -m lengthen"
            )
    room = text.passage_tokens - len(text.passage_prefix) - len(text.passage_suffix)
    if not 1 <= text.stride <= room:
        raise SpecError(
            f"stride={text.stride}, but a window of {text.passage_tokens} tokens has room for {room} of "
            f"text; choose 1..{room}"
        )
    if spec.late is not None and spec.state_width("query") != spec.state_width("passage"):
        raise SpecError(
            f"late interaction compares states of query and passage, and they are "
            f"{spec.state_width('query')} and {spec.state_width('passage')} wide; project both sides"
        )
    embedding.tokens.check(embedding.vocab, embedding.width)
    kinds = [head.kind for head in spec.heads]
    if len(set(kinds)) < len(kinds):
        raise SpecError(f"heads {', '.join(kinds)}: at most one of each kind")
    reading = [head.kind for head in spec.heads if head.reads_passages]
    if reading and count in spec.one_way:
        raise SpecError(
            f"the last layer ({count}) is one-way, but the {reading[0]} head reads passage rows, which "
            "would never have seen the query; let that layer advance, as one_way='auto' does"
        )
    check_exits(spec.exits, spec.heads, range(spec.split + 1, count))
    _check_blocks(spec)


def _check_bounds(spec: ModelSpec) -> None:
    """Raise for what only damage or malice writes: absurd widths, tokens outside the vocabulary."""
    width, vocab, text = spec.encoder.width, spec.encoder.embedding.vocab, spec.text
    if not 1 <= width <= WIDEST:
        raise SpecError(f"the encoder is {width} wide; expected 1 to {WIDEST}")
    if spec.projection is not None and spec.projection.bits not in (None, 4, 8):
        raise SpecError(f"projection bits={spec.projection.bits}; choose 4, 8 or none")
    special = (*text.query_prefix, *text.query_suffix, *text.passage_prefix, *text.passage_suffix)
    if outside := [token for token in (*special, text.pad) if not 0 <= token < vocab]:
        raise SpecError(
            f"token {outside[0]} is none of the {vocab} of the vocabulary; use ids of its tokenizer"
        )


def _check_blocks(spec: ModelSpec) -> None:
    """Blocks of one slot must agree on the shapes of its parameters, and lower ones read a text alone."""
    shapes: dict[str, object] = {}
    for prefix, stack in spec.stacks.items():
        for number, layer in enumerate(stack.layers):
            for block in layer.blocks:
                block.part.check(stack.width)
                if (prefix or number < spec.split) and not block.part.below_split:
                    place = "the vector" if prefix else f"split={spec.split}"
                    raise SpecError(
                        f"{prefix}layer {number} has {block.part.kind} {block.name}, which reads both "
                        f"texts, and {place} runs it on each alone; choose 0..{number}"
                    )
                if shapes.setdefault(prefix + block.prefix, block.shape()) != block.shape():
                    raise SpecError(
                        f"{prefix}layer {number} shares {block.name} slot {block.slot} with a layer of "
                        "another shape; give it a slot of its own"
                    )
