"""Structured pruning: what heads and neurons share, the score of each unit and the cut."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.methods.importance import BlockName, importance
from decoupled.methods.method import Weights, with_blocks
from decoupled.methods.tensors import blocks_of, keep_units, whole
from decoupled.model.model import Model
from decoupled.model.parts.layer import Block
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared

Kept = tuple[tuple[int, tuple[int, ...]], ...]
"""The units that stay, for each slot."""


def unit_scores(
    method: Any, model: Model, sample: Prepared | None, name: BlockName
) -> dict[int, Tensor]:
    """A score of each unit by slot, as the method's `by` says."""
    blocks, weights = blocks_of(model.spec, name), model.net.state_dict()
    if method.by == "random":
        draw = torch.Generator().manual_seed(method.seed)
        return {n: torch.rand(block.part.units, generator=draw) for n, block in blocks.items()}
    if method.by == "importance":
        data = method.needed(sample)
        scores = importance(model, data, name, limit=method.examples, seed=method.seed)
    elif name == "attention":
        outs = {n: whole(weights, f"{block.prefix}attention.out") for n, block in blocks.items()}
        scores = {n: w.T.reshape(blocks[n].part.units, -1).norm(dim=1) for n, w in outs.items()}
    else:
        pairs = {
            n: [whole(weights, b.prefix + end) for end in ("up", "down")] for n, b in blocks.items()
        }
        # |W1_j|·|W2_j|: a neuron counts by what enters and what leaves it.
        scores = {n: up.norm(dim=1) * down.norm(dim=0) for n, (up, down) in pairs.items()}
    return {n: score.cpu() for n, score in scores.items()}


def slots_above(spec: ModelSpec, name: BlockName) -> set[int]:
    """Slots above the split; one that both components use counts as above."""
    return {layer.block(name).slot for layer in spec.layers[spec.split :]}


def share_of(method: Any, total: int, *, above: bool) -> int:
    """How many of `total` units of a component go: by its own share, or by that of both."""
    name = "above" if above else "below"
    name = "share" if getattr(method, name) is None else name
    share = getattr(method, name)
    if not 0 <= share < 1:
        raise SpecError(f"{name}={share}; choose a share from 0 up to, but not including, 1")
    return round(total * share)


def narrowed(spec: ModelSpec, name: BlockName, kept: Kept) -> ModelSpec:
    """The spec whose blocks of that name have these units alone."""
    table = dict(kept)

    def keep(block: Block) -> Block:
        units = table.get(block.slot) if block.name == name else None
        return block if units is None else replace(block, part=block.part.keep(units))

    return with_blocks(spec, keep)


def cut_units(weights: Weights, spec: ModelSpec, name: BlockName, kept: Kept) -> Weights:
    """The tensors without the rows and columns of units that are removed."""
    blocks = blocks_of(spec, name)
    for number, units in kept:
        weights = keep_units(weights, blocks[number], spec.encoder.width, units)
    return weights
