"""An encoder-decoder made of the package's own parts, described first and built from the description.

A variant is a list of methods joined by `+`, such as `shared+factorised+tied`; `base` has none.
Shape suffixes: B batch, S source tokens, T target tokens, D width, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from decoupled.errors import InputError
from decoupled.methods.bands.part import Banded
from decoupled.methods.decoder.part import Causal, Cross
from decoupled.methods.delight.part import scaled
from decoupled.methods.factorise.part import Factorised
from decoupled.methods.fixed_heads.part import PATTERNS, FixedPatterns
from decoupled.methods.lsra.part import LongShort
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.nn.block import Context, Source
from decoupled.model.nn.embedding import Embedding
from decoupled.model.nn.encoder import positions
from decoupled.model.nn.frame import Frame
from decoupled.model.nn.stack import Run, Stack
from decoupled.model.parts.attention import Attention, SelfAttention
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.feed_forward import FeedForwardSpec
from decoupled.model.parts.layer import Block, LayerSpec
from decoupled.model.parts.norm import NormSpec
from decoupled.model.parts.table import Table
from decoupled.model.spec import DropoutSpec, EncoderSpec

PAD, START, END = 0, 1, 2
"""Token ids that every vocabulary of this example begins with."""
NORM = NormSpec(eps=1e-5)
ROTARY = 10_000.0
MOST = 128
"""Tokens of a text, special ones included; a longer one is cut."""
SPEC, WEIGHTS = "spec.json", "weights.safetensors"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the methods change; `describe` makes a description of it."""

    vocab: int = 8000
    width: int = 512
    ffn: int = 2048
    heads: int = 8
    layers: tuple[int, int] = (6, 6)
    """Of encoder and decoder."""
    table: Table | None = None
    tied: bool = False
    """Do source and target have one token table? The output always shares the target's."""
    shared: bool = False
    """Do all layers of a stack have the parameters of one?"""
    mixing: Literal["dot", "fixed", "lsra", "delight"] = "dot"
    """What layers mix tokens with; fixed patterns look ahead, so the decoder has none."""
    positions: int = MOST
    """Rows of a learned position table, beside the rotary angles, which cross-attention does not see."""
    dropout: float = 0.3


BIG = Plan(vocab=40_000, width=1024, ffn=4096, heads=16, positions=0)
"""Transformer-big of the slides on compression, whose positions have no parameters."""


def _banded(plan: Plan) -> Plan:
    head = plan.vocab // 8
    sizes = head, 3 * head, plan.vocab - 4 * head
    widths = plan.width, plan.width // 4, plan.width // 16
    return replace(plan, table=Banded(sizes=sizes, widths=widths))


METHODS: dict[str, Callable[[Plan], Plan]] = {
    "tied": lambda plan: replace(plan, tied=True),
    "factorised": lambda plan: replace(plan, table=Factorised(rank=plan.width // 4)),
    "factorised8": lambda plan: replace(plan, table=Factorised(rank=plan.width // 8)),
    "banded": _banded,
    "shared": lambda plan: replace(plan, shared=True),
    "vocabulary": lambda plan: replace(plan, vocab=plan.vocab * 3 // 20),
    "ffn": lambda plan: replace(plan, ffn=plan.ffn // 2),
    "12e3d": lambda plan: replace(plan, layers=(2 * plan.layers[0], plan.layers[1] // 2)),
    "12e6d": lambda plan: replace(plan, layers=(2 * plan.layers[0], plan.layers[1])),
    "narrow": lambda plan: replace(plan, width=plan.width * 3 // 4, heads=plan.heads * 3 // 4),
    "fixed": lambda plan: replace(plan, mixing="fixed"),
    "lsra": lambda plan: replace(plan, mixing="lsra", ffn=plan.width),
    "delight": lambda plan: replace(plan, mixing="delight", ffn=plan.width // 4),
}


def planned(variant: str, plan: Plan = Plan()) -> Plan:
    """The plan that the methods of a variant make of the given one, in the written order."""
    for name in variant.split("+") if variant != "base" else ():
        if name not in METHODS:
            raise InputError(
                f"method {name!r} of variant {variant!r} is unknown; join some of {', '.join(METHODS)} with +"
            )
        plan = METHODS[name](plan)
    return plan


@dataclass(frozen=True, kw_only=True)
class TranslatorSpec:
    """Both stacks with their token tables; with `tied` the source is read with the target's."""

    source: EncoderSpec
    target: EncoderSpec
    tied: bool = False


def describe(plan: Plan) -> TranslatorSpec:
    """Pre-norm stacks with rotary positions; each decoder layer looks at the source between its two parts."""
    shape = {"heads": plan.heads, "head_width": plan.width // plan.heads}
    cross = Cross(**shape)
    if plan.mixing == "delight":
        cross = Cross(heads=1, head_width=plan.width // 2)
    return TranslatorSpec(
        source=_stack(plan, _mixing(plan, plan.layers[0], decoder=False)),
        target=_stack(plan, _mixing(plan, plan.layers[1], decoder=True), cross),
        tied=plan.tied,
    )


def _mixing(plan: Plan, count: int, *, decoder: bool) -> Sequence[Attention]:
    """The attention of each layer; a decoder's frame is causal whatever it is."""
    heads, head_width = plan.heads, plan.width // plan.heads
    if plan.mixing == "lsra":
        # Kernels grow with depth, and each half of the columns has half of the heads.
        kernels = (3, 7, 15, *[31] * count)[:count]
        return [LongShort(heads=heads // 2, head_width=head_width, kernel=n) for n in kernels]
    if plan.mixing == "delight":
        return scaled(plan.width, 4, 8, 2.0, count)
    if decoder:
        return [Causal(heads=heads, head_width=head_width, rotary=ROTARY)] * count
    if plan.mixing == "fixed":
        # All heads of a layer but one, as in the paper that found it enough.
        patterns = tuple(PATTERNS[n % 7] for n in range(heads - 1))
        return [
            FixedPatterns(heads=heads, head_width=head_width, patterns=patterns, rotary=ROTARY)
        ] * count
    return [SelfAttention(heads=heads, head_width=head_width, rotary=ROTARY)] * count


def _stack(plan: Plan, mixing: Sequence[Attention], cross: Cross | None = None) -> EncoderSpec:
    def layer(slot: int) -> LayerSpec:
        looks = (
            (Block(name="source", part=cross, slot=slot, norm=NORM, after="attention"),)
            if cross
            else ()
        )
        return LayerSpec(
            attention=mixing[slot],
            ffn=FeedForwardSpec(width=plan.ffn, activation="relu"),
            attention_slot=slot,
            ffn_slot=slot,
            norm=NORM,
            order="pre",
            more=looks,
        )

    table = EmbeddingSpec(
        vocab=plan.vocab,
        width=plan.width,
        positions=plan.positions,
        norm=NORM,
        table=plan.table,
    )
    return EncoderSpec(
        width=plan.width,
        embedding=table,
        layers=tuple(layer(0 if plan.shared else n) for n in range(len(mixing))),
        final_norm=NORM,
        dropout=DropoutSpec(hidden=plan.dropout, attention=0.1),
    )


def macs(spec: TranslatorSpec, *, source: int, target: int) -> int:
    """Multiply-adds of one pair of so many tokens, all of the target at once; the output's included."""
    total = target * spec.target.width * spec.target.embedding.vocab
    for stack, tokens in ((spec.source, source), (spec.target, target)):
        total += tokens * stack.embedding.macs(stack.width)
        for block in stack.blocks:
            seen = source if block.part.reads_source else tokens
            total += block.part.macs(block.linear, stack.width, rows=tokens, tokens=seen)
    return total


class Translator(nn.Module):
    """Source ids to states, and the target's next tokens from them."""

    def __init__(self, spec: TranslatorSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embeddings = nn.ModuleDict({"target": Embedding(spec.target)})
        if not spec.tied:
            self.embeddings["source"] = Embedding(spec.source)
        self.encoder = Stack(spec.source)
        self.decoder = Stack(spec.target)

    def initialise(self) -> Translator:
        """Begin anew, from torch's generator: rows whose products with a normalised state are of size 1."""
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        return self

    def encode(self, ids_BS: Tensor, real_BS: Tensor, *, keep: bool = False) -> Source:
        """What the decoder looks at; with `keep` its keys and values are computed once."""
        embedding = self.embeddings["target" if self.spec.tied else "source"]
        position_BS = positions(real_BS)
        x_BSD = embedding(ids_BS, position_BS, ids_BS)
        states = self.encoder(x_BSD, Frame(position_BS, real_BS, padded=True))
        return Source(states=states, real=real_BS, keep=keep)

    def decode(self, ids_BT: Tensor, source: Source) -> Tensor:
        """`[B,T,D]` states after each target token; padding stands on the right, where no token looks."""
        frame = _everything(ids_BT)
        x_BTD = self.embeddings["target"](ids_BT, frame.position_BT, ids_BT)
        return self.decoder(x_BTD, frame, source=source)

    def rows(self) -> Tensor:
        """`[V,D]` the target's token table, however it is held: what the output multiplies with."""
        table = self.embeddings["target"].tokens
        if isinstance(table, nn.Embedding):
            return table.weight
        device = next(table.parameters()).device
        return table(torch.arange(self.spec.target.embedding.vocab, device=device))

    def forward(self, source_BS: Tensor, real_BS: Tensor, target_BT: Tensor) -> Tensor:
        """`[B,T,V]` logits of the token after each one of the target."""
        return self.decode(target_BT, self.encode(source_BS, real_BS)) @ self.rows().T

    def matrices(self) -> int:
        """Numbers in its matrices, as the slides count: without biases and norms."""
        return sum(p.numel() for p in self.parameters() if p.ndim > 1)

    def save(self, folder: Path) -> None:
        """Description and weights."""
        folder.mkdir(parents=True, exist_ok=True)
        described = json.dumps(to_json(self.spec), indent=1)
        (folder / SPEC).write_text(described, encoding="utf-8")
        tensors = {name: t.detach().cpu().contiguous() for name, t in self.state_dict().items()}
        save_file(tensors, folder / WEIGHTS)

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Translator:
        """What `save` wrote."""
        if not (folder / SPEC).is_file():
            raise InputError(f"{folder} holds no translator; train one with train.py --out")
        described = json.loads((folder / SPEC).read_text(encoding="utf-8"))
        made = cls(from_json(TranslatorSpec, described))
        made.load_state_dict(load_file(folder / WEIGHTS))
        return made.to(device).eval()


class Steps:
    """A decoder that is given one token at a time: each layer keeps what it has read, and computes one row.

    Layers of any kind can do this, since a layer computes only the rows it is asked for.
    """

    def __init__(self, translator: Translator, source: Source) -> None:
        self.translator, self.source = translator, source
        self.ids_BT: Tensor | None = None
        self._read: dict[int, Tensor] = {}

    def step(self, ids_B: Tensor) -> Tensor:
        """`[B,D]` states after one more token."""
        ids_BT = ids_B[:, None]
        self.ids_BT = ids_BT if self.ids_BT is None else torch.cat([self.ids_BT, ids_BT], 1)
        frame, decoder = _everything(self.ids_BT), self.translator.decoder
        embedding = self.translator.embeddings["target"]
        x_B1D = embedding(ids_BT, frame.position_BT[:, -1:], ids_BT)
        with decoder.hook(self._layer):
            return decoder(x_B1D, frame, source=self.source)[:, 0]

    def _layer(self, context: Context, x_B1D: Tensor, run: Run) -> Tensor:
        before = self._read.get(context.number)
        x_BTD = x_B1D if before is None else torch.cat([before, x_B1D], 1)
        self._read[context.number] = x_BTD
        return run(replace(context, rows=(slice(x_BTD.shape[1] - 1, None),)), x_BTD)

    def reorder(self, rows_B: Tensor) -> None:
        """Go on from these rows; each must have the source of the row that it takes the place of."""
        assert self.ids_BT is not None
        self.ids_BT = self.ids_BT[rows_B]
        self._read = {number: x_BTD[rows_B] for number, x_BTD in self._read.items()}


def _everything(ids_BT: Tensor) -> Frame:
    place_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device).expand_as(ids_BT)
    return Frame(place_BT, torch.ones_like(ids_BT, dtype=torch.bool), padded=False, causal=True)
