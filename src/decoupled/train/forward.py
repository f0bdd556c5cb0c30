"""One forward pass for teacher and student alike, keeping what the losses compare.

Both read the same batch in the same order `[query; passage]`, so a token of one is the same token of the
other.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from decoupled.errors import InputError
from decoupled.model.nn.context import Context
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.nn.frame import ALL, Frame
from decoupled.model.nn.head import Head, rows_needed
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
    scores: bool = False
    """Keep the attention scores of the last layer."""
    all_scores: bool = False
    """Keep the attention scores of every cross layer."""


@dataclass(frozen=True, kw_only=True)
class PairOutputs:
    """What a pass yields; parts that were not asked for are empty."""

    logits: Tensor
    real: Tensor
    """`[B,T]`."""
    hidden: tuple[Tensor, ...] = ()
    """Outputs `[B,T,D]` of the cross layers, in order; the last one after the final norm."""
    moved: tuple[Tensor, ...] = ()
    """Per cross layer, `[B,T]` real tokens that it computed: in a one-way layer those of the query."""
    scores: tuple[Tensor, ...] = ()
    """Attention scores `[B,H,T,T]` before the softmax."""
    pooled: Tensor | None = None
    states: tuple[tuple[Tensor, Tensor, Tensor], ...] = field(default=())
    """Per squeezed side: states before the projection, what it gives back, and which are real."""


def forward_pair(net: PairEncoder, batch: Batch, head: HeadKind, how: Pass = Pass()) -> PairOutputs:
    """Logits of one head for a batch, `[B,outputs]` or `[B,1+P,2]`, with what `how` asks to keep."""
    split = net.spec.split if how.split is None else how.split
    query_real, passage_real = batch.real
    query, kept_query = states_of(net, "query", batch, split, how)
    passage, kept_passage = states_of(net, "passage", batch, split, how)
    x_BTD, frame = net.join(query, query_real, passage, passage_real, padded=True)
    return _cross(
        net, x_BTD, frame, head, split, how, kept_query + kept_passage, query_real.shape[1]
    )


def states_of(
    net: PairEncoder, side: Side, batch: Batch, split: int, how: Pass
) -> tuple[Tensor, tuple[tuple[Tensor, Tensor, Tensor], ...]]:
    """`[B,T,D]` at the start of the cross component, and the states around the projection."""
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
    h = net.hidden(side, ids, real, query_length=length, split=split, padded=True)
    codes = net.compress(side, h)
    if how.bits is not None and not query:
        codes = fake_quantise(codes, how.bits)
    back, projected = net.restore(side, codes), net.spec.projected(side)
    kept = ((h, back, real),) if projected else ()
    return repeated(h if how.bypass and projected else back, repeat), kept


def _cross(
    net: PairEncoder,
    x_BTD: Tensor,
    frame: Frame,
    kind: HeadKind,
    split: int,
    how: Pass,
    states: tuple[tuple[Tensor, Tensor, Tensor], ...],
    query: int,
) -> PairOutputs:
    head = cast(Head, net.heads[kind])
    observed: list[Tensor] = []
    scores: list[Tensor] = []
    first_scored = max(split, len(net.spec.layers) - 1) if not how.all_scores else split

    def observe(context: Context, x_BTD: Tensor, y_BTD: Tensor) -> None:
        observed.append(y_BTD)
        if (how.scores or how.all_scores) and context.number >= first_scored:
            scores.append(net.stack.attending(context).scores(x_BTD, context))

    keep = how.hidden or how.scores or how.all_scores
    rows = ALL if keep else rows_needed([head.spec], query)
    y_BRD = net.stack(
        x_BTD, frame, rows=rows, first=split, query=query, observe=observe if keep else None
    )
    logits = net.read(y_BRD, frame.real_BT, rows, query, [kind])[kind]
    pooled = None
    if how.hidden and head.dense is not None and kind != "span":
        pooled = head.pool(y_BRD, frame.real_BT)
    hidden = (*observed[:-1], y_BRD) if how.hidden and observed else ()
    moved = moved_rows(net, split, frame.real_BT, query) if keep else ()
    return PairOutputs(
        logits=logits,
        real=frame.real_BT,
        hidden=hidden,
        moved=moved,
        scores=tuple(scores),
        pooled=pooled,
        states=states,
    )


def moved_rows(net: PairEncoder, split: int, real_BT: Tensor, query: int) -> tuple[Tensor, ...]:
    """Per cross layer, the real tokens that it computes: in a one-way layer those of the query."""
    query_BT = real_BT.clone()
    query_BT[:, query:] = False
    return tuple(
        real_BT if layer.passage == "advance" else query_BT for layer in net.spec.layers[split:]
    )


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
