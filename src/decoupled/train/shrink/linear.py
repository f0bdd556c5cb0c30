"""The matrices of linear layers: rows and columns in whatever form they are held, and changes in training.

`name` is a matrix's prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.errors import MissingDependency, SpecError
from decoupled.model.parts.layer import Block
from decoupled.model.spec import ModelSpec
from decoupled.train.shrink.base import Weights

Change = Callable[[Tensor], Tensor]
_CHANGES = "_weight_changes"


def whole(weights: Weights, name: str) -> Tensor:
    """`[O,I]` the matrix, multiplied out if it is held as two factors."""
    if f"{name}.weight" in weights:
        return weights[f"{name}.weight"]
    return weights[f"{name}.second.weight"] @ weights[f"{name}.first.weight"]


def outputs(weights: Weights, name: str, index: Tensor) -> dict[str, Tensor]:
    """The tensors of a matrix with the given output rows alone, bias included."""
    last = f"{name}.second" if f"{name}.second.weight" in weights else name
    found = {f"{last}.weight": weights[f"{last}.weight"][index]}
    if f"{last}.bias" in weights:
        found[f"{last}.bias"] = weights[f"{last}.bias"][index]
    return found


def inputs(weights: Weights, name: str, index: Tensor) -> dict[str, Tensor]:
    """The tensors of a matrix with the given input columns alone."""
    first = f"{name}.first" if f"{name}.first.weight" in weights else name
    return {f"{first}.weight": weights[f"{first}.weight"][:, index]}


def bias_of(name: str, weights: Weights) -> str:
    """Name of a matrix's bias."""
    return f"{name}.second.bias" if f"{name}.second.weight" in weights else f"{name}.bias"


def blocks_of(spec: ModelSpec, name: str) -> dict[int, Block]:
    """The block of each slot."""
    return {(block := layer.block(name)).slot: block for layer in spec.layers}


def rows_of(units: Sequence[int], width: int) -> Tensor:
    """Rows that belong to some units of that width."""
    first = torch.tensor(units, dtype=torch.long)[:, None] * width
    return (first + torch.arange(width)).flatten()


def keep_units(
    weights: Weights, block: Block, width: int, kept: Sequence[int]
) -> dict[str, Tensor]:
    """The tensors with these heads or neurons of a block alone, in this order."""
    found = dict(weights)
    for name, m in block.part.matrices(width).items():
        own = rows_of([u - m.first for u in kept if u >= m.first], block.part.unit_width)
        prefix = block.prefix + name
        if m.units == "inputs":
            found |= inputs(weights, prefix, own)
        else:
            found = cut(found, prefix, own)
    return found


def cut(weights: Weights, name: str, index: Tensor) -> dict[str, Tensor]:
    """The tensors with the given output rows of a matrix; without any it is gone."""
    if len(index):
        return dict(weights) | outputs(weights, name, index)
    return {n: t for n, t in weights.items() if not n.startswith(f"{name}.")}


def need_floats(spec: ModelSpec, method: str, *, tables: bool = False) -> None:
    """Raise where matrices (or the token table) are quantised, which nothing can cut or average."""
    blocks = [block for layer in spec.layers for block in layer.blocks]
    quantised = any(block.linear.bits is not None for block in blocks)
    if quantised or (tables and spec.encoder.embedding.bits is not None):
        raise SpecError(
            f"{method} needs weights in floating point, and these are quantised already; "
            "quantise last"
        )


def assignment(cost_MN: Tensor) -> list[tuple[int, int]]:
    """Pairs (row, column) that use each at most once, every row or every column, with the least sum."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise MissingDependency("scipy", "train") from None
    rows, columns = linear_sum_assignment(cost_MN.double().cpu().numpy())
    return [(int(r), int(c)) for r, c in zip(rows, columns, strict=True)]


# In training --------------------------------------------------------------------------------------


@contextmanager
def seen_as(module: nn.Linear, change: Change) -> Iterator[None]:
    """Within the block the map multiplies by `change(weight)`; blocks within blocks change one after another.

    The parameter itself stays where and as it is, so names, optimisers and checkpoints know nothing of it.
    """
    changes: list[Change] = module.__dict__.setdefault(_CHANGES, [])

    def forward(x: Tensor) -> Tensor:
        weight: Tensor = module.weight
        for one in changes:
            weight = one(weight)
        return F.linear(x, weight, module.bias)

    if not changes:
        module.__dict__["forward"] = forward
    changes.append(change)
    try:
        yield
    finally:
        changes.remove(change)
        if not changes:
            del module.__dict__["forward"], module.__dict__[_CHANGES]


@contextmanager
def held(module: nn.Module, value: Tensor) -> Iterator[Tensor]:
    """Within the block the module has the value among its buffers, so checkpoints keep and restore it."""
    name = next(f"held_{n}" for n in count() if not hasattr(module, f"held_{n}"))
    module.register_buffer(name, value)
    try:
        yield value
    finally:
        delattr(module, name)
