"""One forward pass for teacher and student alike, keeping what the losses compare.

Both read the same batch in the same order `[query; passage]`, so a token of one is the same token of the
other.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from decoupled.errors import InputError
from decoupled.model.nn.block import Context
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.nn.frame import ALL, Rows
from decoupled.model.nn.head import Head, rows_needed
from decoupled.model.nn.packing import Packing
from decoupled.model.parts.attention.dot import SelfAttention
from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import Side
from decoupled.train.data.batches import Batch, repeated
from decoupled.train.recipe import Precision

EVALUATION_TOKENS = 1 << 16
"""Padded tokens of a batch that needs no gradient."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """How to run: which split, with which states, and what to keep."""

    split: int | None = None
    """None is the spec's own."""
    bits: int | None = None
    bypass: bool = False
    """Leave the learned projection out: the cross component reads the states as they are."""
    hidden: bool = False
    """Keep the outputs of the cross layers."""
    packed: bool = False
    """Run the layers without padding, where every one of them can and nothing of them is kept."""
    scores: bool = False
    """Keep the attention scores of the last layer."""
    all_scores: bool = False
    """Keep the attention scores of every cross layer."""
    exits: bool = False
    """Read the exits of the model as well."""


@dataclass(frozen=True, kw_only=True)
class SideStates:
    """One side at the end of the input component, as it is read alone."""

    before: Tensor
    """`[N,T,D]` states before the learned projection."""
    codes: Tensor
    """States as they are stored, and as codes give them back where that is trained."""
    after: Tensor
    """What projection and codes give back."""
    real: Tensor
    projected: bool
    repeat: int
    """Pairs that each text is in."""


@dataclass(frozen=True, kw_only=True)
class PairOutputs:
    """What a pass yields; parts that were not asked for are empty."""

    by_head: dict[HeadKind, Tensor]
    """Logits `[B,outputs]`, or `[B,1+P,2]` of spans."""
    real: Tensor
    """`[B,T]`."""
    sides: tuple[SideStates, SideStates]
    hidden: tuple[Tensor, ...] = ()
    """Outputs `[B,T,D]` of the cross layers, in order; the last one after the final norm."""
    moved: tuple[Tensor, ...] = ()
    """Per cross layer, `[B,T]` real tokens that it computed: in a one-way layer those of the query."""
    scores: tuple[Tensor, ...] = ()
    """Attention scores `[B,H,T,T]` before the softmax."""
    pooled: Tensor | None = None
    exits: tuple[Tensor, ...] = ()
    """Logits `[B,1]` of the exits, in order."""

    @property
    def logits(self) -> Tensor:
        """Those of the first head."""
        return next(iter(self.by_head.values()))

    @property
    def states(self) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
        """Per projected side: states before the projection, what it gives back, and which are real."""
        return tuple((s.before, s.after, s.real) for s in self.sides if s.projected)


def forward_pair(
    net: PairEncoder, batch: Batch, *heads: HeadKind, how: Pass = Pass()
) -> PairOutputs:
    """Logits of the heads for a batch, with what `how` asks to keep."""
    split = net.spec.split if how.split is None else how.split
    keep = how.hidden or how.scores or how.all_scores
    how = replace(how, packed=how.packed and not keep and packable(net))
    query, passage = (_read_alone(net, side, batch, split, how) for side in ("query", "passage"))
    query_BQD, passage_BPD = (
        repeated(side.before if how.bypass and side.projected else side.after, side.repeat)
        for side in (query, passage)
    )
    x_BTD, frame = net.join(query_BQD, batch.real[0], passage_BPD, batch.real[1], padded=True)
    width, real_BT = query_BQD.shape[1], frame.real_BT
    observed: list[Tensor] = []
    scores: list[Tensor] = []
    scored = split if how.all_scores else max(split, len(net.spec.layers) - 1)

    def observe(context: Context, x_BTD: Tensor, y_BTD: Tensor) -> None:
        observed.append(y_BTD)
        if (how.scores or how.all_scores) and context.number >= scored:
            scores.append(net.stack.attending(context).scores(x_BTD, context))

    rows = ALL if keep or how.packed else rows_needed([net.spec.head(k) for k in heads], width)
    packing = Packing(real_BT, batch.real_tokens[2]) if how.packed else None

    def run(x_BTD: Tensor, first: int, last: int | None, rows: Rows) -> Tensor:
        if packing is not None:
            return net.packed(x_BTD, frame, packing, first=first, last=last)
        watch = observe if keep else None
        return net.stack(
            x_BTD, frame, rows=rows, first=first, last=last, query=width, observe=watch
        )

    exits: list[Tensor] = []
    first = split
    for one in net.spec.exits if how.exits else ():
        x_BTD, first = run(x_BTD, first, one.layer, ALL), one.layer
        exits.append(net.leave(one.layer, x_BTD, real_BT))
    y_BRD = run(x_BTD, first, None, rows)
    head = cast(Head, net.heads[heads[0]])
    pools = how.hidden and head.dense is not None and heads[0] != "span"
    return PairOutputs(
        by_head=net.read(y_BRD, real_BT, rows, width, heads),
        real=real_BT,
        sides=(query, passage),
        hidden=(*observed[:-1], y_BRD) if how.hidden and observed else (),
        moved=_moved(net, split, real_BT, width) if keep else (),
        scores=tuple(scores),
        pooled=head.pool(y_BRD, real_BT) if pools else None,
        exits=tuple(exits),
    )


def forward_text(net: PairEncoder, batch: Batch, *, packed: bool = False) -> Tensor:
    """`[B,T,D]` every row of the last layer, for a batch of pairs or of single texts (no passages)."""
    how, split = Pass(packed=packed and packable(net)), net.spec.split
    sides: list[Side] = ["query", "passage"] if batch.passage_ids.shape[1] else ["query"]
    states = [_read_alone(net, side, batch, split, how).after for side in sides]
    nothing = states[0][:, :0]
    x_BTD, frame = net.join(
        states[0],
        batch.query_real,
        states[1] if len(sides) > 1 else nothing,
        batch.passage_real,
        padded=True,
    )
    if how.packed:
        packing = Packing(frame.real_BT, batch.real_tokens[2])
        return net.packed(x_BTD, frame, packing, first=split)
    return net.stack(x_BTD, frame, first=split, query=states[0].shape[1])


def _read_alone(net: PairEncoder, side: Side, batch: Batch, split: int, how: Pass) -> SideStates:
    """The input component over one side, up to where the cross component begins."""
    query = side == "query"
    ids, real = (
        (batch.query_ids, batch.query_real) if query else (batch.passage_ids, batch.passage_real)
    )
    repeat = batch.query_repeat if query else batch.passage_repeat
    length: Tensor | int = 0
    if net.spec.positions == "joint":
        if split:
            raise InputError(
                f"split={split} with joint positions; split the model with positions='restart' first"
            )
        if not query:
            # Positions after a query differ from pair to pair, so nothing can be shared yet.
            ids, real, repeat = repeated(ids, repeat), repeated(real, repeat), 1
            length = batch.real[0].sum(1, keepdim=True)
    packing = None
    if how.packed and split:
        packing = Packing(real, batch.real_tokens[0 if query else 1])
    before = net.hidden(
        side, ids, real, query_length=length, split=split, padded=True, packing=packing
    )
    codes = net.compress(side, before)
    if how.bits is not None and not query:
        codes = fake_quantise(codes, how.bits)
    projected, after = net.spec.projected(side), net.restore(side, codes)
    return SideStates(
        before=before, codes=codes, after=after, real=real, projected=projected, repeat=repeat
    )


def packable(net: PairEncoder) -> bool:
    """Can its layers run without padding? Those can that look at every token of a text and move them all."""
    return all(
        isinstance(layer.attention, SelfAttention)
        and layer.attention.window is None
        and layer.passage == "advance"
        and not layer.more
        for layer in net.spec.layers
    )


def _moved(net: PairEncoder, split: int, real_BT: Tensor, query: int) -> tuple[Tensor, ...]:
    """Per cross layer, the real tokens that it computes: in a one-way layer those of the query."""
    query_BT = real_BT.clone()
    query_BT[:, query:] = False
    layers = net.spec.layers[split:]
    return tuple(real_BT if layer.passage == "advance" else query_BT for layer in layers)


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """bf16 matrix products where the recipe asks for them, fp32 weights always."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def fake_quantise(x: Tensor, bits: int) -> Tensor:
    """`x` as codes of a store give it back: a symmetric grid with one fp16 scale per token.

    The gradient passes unchanged.
    """
    top = float(2 ** (bits - 1) - 1)
    with torch.no_grad():
        values = x.float()
        scale = (values.abs().amax(-1, keepdim=True) / top).half().float().clamp(min=6e-8)
        codes = (values / scale).round().clamp(-top, top)
        change = (codes * scale - values).to(x.dtype)
    return x + change
