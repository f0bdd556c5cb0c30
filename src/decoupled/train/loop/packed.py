"""A pass without padding: the tokens of all texts in one row, and then those of all pairs.

Below the split queries and passages are texts of one row, so that each layer runs once. Above it the row
holds each pair's query and passage one after the other. Attention has no dropout here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from decoupled.model.nn.encoder import PairEncoder, positions
from decoupled.model.nn.frame import Frame
from decoupled.model.nn.packing import HAS_VARLEN, Ends, Packing
from decoupled.model.nn.stack import Observe
from decoupled.model.parts.attention.dot import SelfAttention
from decoupled.model.spec import Side
from decoupled.train.data.batches import Batch, repeated

Coded = Callable[[Tensor], Tensor]
"""Rounds the states of passages to codes."""


def packable(net: PairEncoder) -> bool:
    """Whether its layers can run without padding: they see every token of a text and move them all."""
    return not net.spec.stand_in and all(
        isinstance(layer.attention, SelfAttention)
        and layer.attention.window is None
        and layer.passage == "advance"
        and all(block.part.rowwise for block in layer.blocks if block.part is not layer.attention)
        for layer in net.spec.layers
    )


def pays(x: Tensor) -> bool:
    """Whether a pass without padding is faster here: on a GPU in half precision."""
    return x.is_cuda and HAS_VARLEN and torch.is_autocast_enabled("cuda")


@dataclass(frozen=True, kw_only=True)
class PackedSide:
    """The texts of one side, packed in one row."""

    before: Tensor
    """`[1,N,D]` states before the learned projection."""
    codes: Tensor
    after: Tensor
    packing: Packing
    repeat: int


@dataclass(frozen=True, kw_only=True)
class PackedPairs:
    """The results of a packed pass."""

    inputs: Tensor
    """`[1,N,D]` input of the cross component."""
    last: Tensor
    """`[1,N,D]` every row of the last layer."""
    packing: Packing
    """The packing of the pairs."""
    sides: tuple[PackedSide, ...]


def read_packed(
    net: PairEncoder,
    batch: Batch,
    split: int,
    *,
    coded: Coded | None = None,
    bypass: bool = False,
    observe: Observe | None = None,
) -> PackedPairs:
    """Both components over a batch of pairs, or of queries alone where the passages are 0 wide."""
    sides = _lower(net, batch, split, coded)
    shift, rows, states = 0, list[Tensor](), list[Tensor]()
    for name, side in zip(("query", "passage"), sides, strict=False):
        projected = net.spec.projected("query" if name == "query" else "passage")
        states.append(side.before if bypass and projected else side.after)
        # Where each token of a pair lies in the row of both sides; texts in several pairs are
        # repeated.
        rows.append(repeated(side.packing.row_BT + shift, side.repeat))
        shift += side.packing.count
    real_BQ, real_BP = batch.real
    frame = net.frame(real_BQ, real_BP, padded=False)
    pairs = Packing(frame.real_BT, batch.real_tokens[2])
    # [B,Q+P] -> [N]: the rows of the real tokens, pair after pair.
    row_N = pairs.pack(torch.cat(rows, 1))[0]
    x_1ND = torch.cat(states, 1)[0].index_select(0, row_N)[None]
    packed = frame.packed(pairs)
    if net.cross_embedding is not None:
        side_BT = torch.zeros_like(frame.position_BT)
        side_BT[:, real_BQ.shape[1] :] = 1
        x_1ND = net.cross_embedding(x_1ND, packed.position_BT, pairs.pack(side_BT))
    last = net.stack(x_1ND, packed, first=split, observe=observe)
    return PackedPairs(inputs=x_1ND, last=last, packing=pairs, sides=sides)


def _lower(
    net: PairEncoder, batch: Batch, split: int, coded: Coded | None
) -> tuple[PackedSide, ...]:
    """The input component over the texts of both sides at once."""
    texts = _texts(net, batch)
    row = torch.cat([net.embed(side, ids, position) for side, ids, position, _, _ in texts], 1)
    if split:
        position = torch.cat([position for _, _, position, _, _ in texts], 1)
        widths = [packing.real.shape[1] for *_, packing, _ in texts]
        # Queries and passages are texts of one row, so attention needs only where each ends.
        ends = Ends.of(*(p.real.sum(1) for *_, p, _ in texts), longest=max(widths))
        frame = Frame(
            position, torch.ones_like(position, dtype=torch.bool), padded=False, pack=ends
        )
        row = net.stack(row, frame, first=0, last=split)
    sides, start = [], 0
    for side, _, _, packing, repeat in texts:
        before = row[:, start : start + packing.count]
        start += packing.count
        codes = net.compress(side, before)
        if coded is not None and side == "passage":
            codes = coded(codes)
        after = net.restore(side, codes)
        sides.append(
            PackedSide(before=before, codes=codes, after=after, packing=packing, repeat=repeat)
        )
    return tuple(sides)


def _texts(net: PairEncoder, batch: Batch) -> list[tuple[Side, Tensor, Tensor, Packing, int]]:
    """Per side: its ids and positions in a row, their packing, and the number of pairs a text is in."""
    query, passage, _ = batch.real_tokens
    packing = Packing(batch.query_real, query)
    start = net.spec.first_position("query")
    place = packing.pack(positions(batch.query_real) + start)
    sides: list[tuple[Side, Tensor, Tensor, Packing, int]] = [
        ("query", packing.pack(batch.query_ids), place, packing, batch.query_repeat)
    ]
    if not batch.passage_ids.shape[1]:
        return sides
    ids, real, repeat = batch.passage_ids, batch.passage_real, batch.passage_repeat
    after: Tensor | int = net.spec.first_position("passage")
    if net.spec.positions == "joint":
        # Positions after a query differ from pair to pair, so nothing can be shared.
        ids, real, after = (
            repeated(ids, repeat),
            repeated(real, repeat),
            batch.real[0].sum(1, keepdim=True),
        )
        passage, repeat = passage * repeat, 1
    packing = Packing(real, passage)
    place = packing.pack(positions(real) + after)
    return [*sides, ("passage", packing.pack(ids), place, packing, repeat)]
