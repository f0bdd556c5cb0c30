"""Layers of another kind in place of ordinary ones: what may be replaced, and new tensors for it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.methods.method import Weights
from decoupled.methods.tensors import need_floats
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.attention.relative import Bucketed, Segmented
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.linear import WHOLE
from decoupled.model.spec import ModelSpec


def plain_layers(spec: ModelSpec, method: str) -> Sequence[LayerSpec]:
    """The layers, checked to have ordinary attention and positions that come with the embedding."""
    need_floats(spec, method)
    embedding = spec.encoder.embedding
    placed = any(isinstance(one.attention, Bucketed | Segmented) for one in spec.layers)
    if placed or not (embedding.positions or embedding.tokens.placed):
        raise SpecError(
            f"{method} layers take positions from the embedding, and in a {spec.family} encoder they are "
            "in the attention; choose a model with a position table"
        )
    keyless = any("attention.key" not in one.attention.matrices(1) for one in spec.layers)
    if keyless or any(b.linear != WHOLE or not b.part.alike for b in spec.encoder.blocks):
        raise SpecError(f"{method} starts from plain layers; apply {method} first")
    return spec.layers


def fresh(after: ModelSpec, copied: Weights, seed: int) -> dict[str, Tensor]:
    """Random tensors for the new spec, replaced by known ones where the shape is the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random = PairEncoder(after).state_dict()
    fits = {n: t for n, t in copied.items() if n in random and t.shape == random[n].shape}
    return random | fits
