"""One forward pass for teacher and student alike, keeping what the losses compare.

Both read the same batch in the same order `[query; passage]`, so a token of one is the same token of the
other.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from decoupled.errors import InputError
from decoupled.model.nn.block import Context
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.nn.frame import ALL
from decoupled.model.nn.head import Head, rows_needed
from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import ModelSpec, Side
from decoupled.train.data.batches import Batch, repeated
from decoupled.train.recipe import Precision

EVALUATION_TOKENS = 1 << 16
"""Padded tokens of a batch that needs no gradient."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """How to run a forward pass, and what to keep."""

    bits: int | None = None
    """Bits of the codes through which passage states pass; None leaves them as they are."""
    hidden: bool = False
    """Whether to keep the outputs of the cross layers."""
    input_states: bool = False
    """Whether to keep also the input of the first cross layer."""
    scores: bool = False
    """Whether to keep the attention scores of the last layer."""
    exits: bool = False
    """Whether to read the exits of the model as well."""


@dataclass(frozen=True, kw_only=True)
class SideStates:
    """The states of one side at the end of the input component."""

    before: Tensor
    """`[N,T,D]` states before the learned projection."""
    codes: Tensor
    """States as they are stored, rounded to codes where that is trained."""
    after: Tensor
    """States as the cross component reads them: codes through the upper half of the projection."""
    real: Tensor
    projected: bool
    repeat: int
    """The number of pairs that each text is in."""


@dataclass(frozen=True, kw_only=True)
class PairOutputs:
    """The results of a pass; parts that were not asked for are empty."""

    by_head: dict[HeadKind, Tensor]
    """Logits `[B,outputs]`, or `[B,1+P,2]` of spans."""
    real: Tensor
    """`[B,T]`, true for real tokens."""
    sides: tuple[SideStates, ...]
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
        """The logits of the first head."""
        return next(iter(self.by_head.values()))

    @property
    def states(self) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
        """Per projected side: states before the projection, restored states, and which tokens are real."""
        return tuple((s.before, s.after, s.real) for s in self.sides if s.projected)


def check_split(spec: ModelSpec) -> None:
    """Raise where a split model cannot be trained as it is."""
    if spec.split and spec.positions == "joint":
        raise InputError(
            f"split={spec.split} with joint positions; split the model with positions='restart' first"
        )
    if spec.store == "kv":
        raise InputError(
            "a model that stores keys and values scores as the joint one does, so that there is nothing to "
            "learn; split it with store='state' first"
        )


def forward_pair(
    net: PairEncoder, batch: Batch, *heads: HeadKind, how: Pass = Pass()
) -> PairOutputs:
    """Logits of the heads for a batch, with what `how` asks to keep."""
    check_split(net.spec)
    split = net.spec.split
    keep = how.hidden or how.scores
    query, passage = (read_alone(net, side, batch, how) for side in ("query", "passage"))
    query_BQD, passage_BPD = (repeated(side.after, side.repeat) for side in (query, passage))
    x_BTD, frame = net.join(query_BQD, batch.real[0], passage_BPD, batch.real[1], padded=True)
    frame.links_BB = batch.links
    width, real_BT = query_BQD.shape[1], frame.real_BT
    observed: list[Tensor] = []
    scores: list[Tensor] = []
    scored = max(split, len(net.spec.layers) - 1)

    def observe(context: Context, x_BTD: Tensor, y_BTD: Tensor) -> None:
        observed.append(y_BTD)
        if how.scores and context.number >= scored:
            scores.append(net.stack.attending(context).scores(x_BTD, context))

    rows = ALL if keep else rows_needed([net.spec.head(k) for k in heads], width)
    exits: list[Tensor] = []
    given_BTD = x_BTD
    run = partial(net.stack, frame=frame, query=width, observe=observe if keep else None)
    first = split
    for one in net.spec.exits if how.exits else ():
        x_BTD, first = run(x_BTD, first=first, last=one.layer), one.layer
        exits.append(net.leave(one.layer, x_BTD, real_BT))
    y_BRD: Tensor = run(x_BTD, rows=rows, first=first)
    return PairOutputs(
        by_head=net.read(y_BRD, real_BT, rows, width, heads),
        real=real_BT,
        sides=(query, passage),
        hidden=_kept(given_BTD, observed, y_BRD, how),
        moved=_moved(net, real_BT, width, how) if keep else (),
        scores=tuple(scores),
        pooled=_pooled(net, heads, y_BRD, real_BT) if how.hidden else None,
        exits=tuple(exits),
    )


def _pooled(
    net: PairEncoder, heads: Sequence[HeadKind], y_BRD: Tensor, real_BT: Tensor
) -> Tensor | None:
    """The vector that the first head pools, where it has a layer of its own before its logits."""
    head = cast(Head, net.heads[heads[0]])
    return head.pool(y_BRD, real_BT) if head.dense is not None and heads[0] != "span" else None


def _kept(first: Tensor, observed: list[Tensor], last: Tensor, how: Pass) -> tuple[Tensor, ...]:
    """Hidden states in order; the last ones after the final norm."""
    if not (how.hidden and observed):
        return ()
    return (*((first,) if how.input_states else ()), *observed[:-1], last)


def read_alone(net: PairEncoder, side: Side, batch: Batch, how: Pass) -> SideStates:
    """The input component over one side, up to where the cross component begins."""
    query = side == "query"
    ids, real = (
        (batch.query_ids, batch.query_real) if query else (batch.passage_ids, batch.passage_real)
    )
    repeat = batch.query_repeat if query else batch.passage_repeat
    length: Tensor | int = 0
    if net.spec.positions == "joint" and not query:
        # Positions after a query differ from pair to pair, so nothing can be shared yet.
        ids, real, repeat = repeated(ids, repeat), repeated(real, repeat), 1
        length = batch.real[0].sum(1, keepdim=True)
    before = _hidden(net, side, ids, real, length, None if query else batch)
    codes = net.compress(side, before)
    if how.bits is not None and not query:
        codes = fake_quantise(codes, how.bits)
    projected, after = net.spec.projected(side), net.restore(side, codes)
    return SideStates(
        before=before, codes=codes, after=after, real=real, projected=projected, repeat=repeat
    )


def _hidden(
    net: PairEncoder,
    side: Side,
    ids: Tensor,
    real: Tensor,
    length: Tensor | int,
    batch: Batch | None,
) -> Tensor:
    """States at the split, computed with the earlier windows of each text if the model has a memory."""
    before_B, count = None, len(ids)
    if (
        net.spec.split
        and batch
        and batch.earlier_ids is not None
        and batch.earlier_real is not None
    ):
        # [W,B,P] -> [W·B,P]: earlier windows follow the texts, so the one before row n is row n +
        # count.
        ids = torch.cat([ids, batch.earlier_ids.flatten(0, 1)])
        real = torch.cat([real, batch.earlier_real.flatten(0, 1)])
        follows = torch.arange(len(ids), device=ids.device) + count
        # The last block has no windows before it.
        there = torch.cat([real[count:].any(1), real.new_zeros(count)])
        before_B = torch.where(there, follows, -1)
    return net.hidden(side, ids, real, query_length=length, padded=True, before_B=before_B)[:count]


def _moved(net: PairEncoder, real_BT: Tensor, query: int, how: Pass) -> tuple[Tensor, ...]:
    """Per hidden state, the real tokens that were computed: in a one-way layer those of the query."""
    query_BT = real_BT.clone()
    query_BT[:, query:] = False
    layers = net.spec.layers[net.spec.split :]
    moved = (real_BT if layer.passage == "advance" else query_BT for layer in layers)
    return (*((real_BT,) if how.input_states else ()), *moved)


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """bf16 matrix products where the recipe asks for them, fp32 weights always."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def fake_quantise(x: Tensor, bits: int) -> Tensor:
    """`x` after rounding to the codes of a store: a symmetric grid with one fp16 scale per token.

    The gradient passes unchanged (a straight-through estimator, Bengio et al., 2013).
    """
    top = float(2 ** (bits - 1) - 1)
    with torch.no_grad():
        values = x.float()
        # 6e-8 is the smallest positive fp16: an all-zero token must not divide by zero.
        scale = (values.abs().amax(-1, keepdim=True) / top).half().float().clamp(min=6e-8)
        codes = (values / scale).round().clamp(-top, top)
        change = (codes * scale - values).to(x.dtype)
    # The rounding error is a constant to autograd, so the derivative is that of x.
    return x + change
