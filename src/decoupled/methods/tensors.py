"""The tensors of slots, rows and columns of their matrices in whatever form, and changes in training.

`name` is a matrix's prefix.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.errors import MissingDependency, SpecError
from decoupled.methods.method import Weights
from decoupled.model.parts.layer import Block, LayerSpec, in_slot
from decoupled.model.spec import ModelSpec

Change = Callable[[Tensor], Tensor]
_CHANGES = "_weight_changes"


def in_layers(weights: Weights, layers: Iterable[tuple[LayerSpec, LayerSpec]]) -> dict[str, Tensor]:
    """The tensors of the second layer of each pair, copied from the first; other tensors stay."""
    tensors = {n: t for n, t in weights.items() if not in_slot(n)}
    for source, target in layers:
        for old, new in zip(source.blocks, target.blocks, strict=True):
            own = slot(weights, old.prefix)
            tensors |= {f"{new.prefix}{name}": tensor for name, tensor in own.items()}
    return tensors


def slot(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix such as `stack.ffn.3.`, by the rest of their name."""
    return {n[len(prefix) :]: t for n, t in weights.items() if n.startswith(prefix)}


def whole(weights: Weights, name: str) -> Tensor:
    """`[O,I]` the matrix, multiplied out if it is held as two factors."""
    if f"{name}.weight" in weights:
        return weights[f"{name}.weight"]
    return weights[f"{name}.second.weight"] @ weights[f"{name}.first.weight"]


def bias_of(name: str, weights: Weights) -> str:
    """Name of a matrix's bias."""
    return f"{name}.second.bias" if f"{name}.second.weight" in weights else f"{name}.bias"


def matrix_names(weights: Weights, prefix: str = "") -> list[str]:
    """Names of the matrices of the layers, and of each factor where they are held as two."""
    names = [n.removesuffix(".weight") for n in slot(weights, prefix) if n.endswith(".weight")]
    return [prefix + n for n in names if in_slot(n) and not n.endswith(".norm")]


def linears(net: nn.Module) -> dict[str, nn.Linear]:
    """The linear modules of these matrices, by name."""
    return {n: m for n, m in net.named_modules() if in_slot(n) and isinstance(m, nn.Linear)}


def blocks_of(spec: ModelSpec, name: str) -> dict[int, Block]:
    """The block of that name in each slot."""
    return {(block := layer.block(name)).slot: block for layer in spec.layers}


def rows_of(units: Sequence[int], width: int) -> Tensor:
    """The rows that belong to these units of that width."""
    first = torch.tensor(units, dtype=torch.long)[:, None] * width
    return (first + torch.arange(width)).flatten()


def keep_units(
    weights: Weights, block: Block, width: int, kept: Sequence[int]
) -> dict[str, Tensor]:
    """The tensors with these heads or neurons of a block alone, in this order."""
    tensors = dict(weights)
    for name, m in block.part.matrices(width).items():
        own = rows_of([u - m.first for u in kept if u >= m.first], block.part.unit_width)
        prefix = block.prefix + name
        if m.units == "outputs":
            tensors = cut(tensors, prefix, own)
        else:
            # Units lie on the inputs of the first factor, and on the outputs of the second.
            first = f"{prefix}.first" if f"{prefix}.first.weight" in weights else prefix
            tensors[f"{first}.weight"] = weights[f"{first}.weight"][:, own]
    return tensors


def cut(weights: Weights, name: str, index: Tensor) -> dict[str, Tensor]:
    """The tensors with the given output rows of a matrix; without any it is gone."""
    if not len(index):
        return {n: t for n, t in weights.items() if not n.startswith(f"{name}.")}
    last = f"{name}.second" if f"{name}.second.weight" in weights else name
    rows = {n: weights[n][index] for n in (f"{last}.weight", f"{last}.bias") if n in weights}
    return {**weights, **rows}


def need_floats(spec: ModelSpec, method: str, *, tables: bool = False) -> None:
    """Raise where matrices (or the token table) are quantised, which nothing can cut or average."""
    blocks = [block for stack in spec.stacks.values() for block in stack.blocks]
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
        # Set on the instance, which hides the class's forward without touching the class.
        module.__dict__["forward"] = forward
    changes.append(change)
    try:
        yield
    finally:
        changes.remove(change)
        if not changes:
            del module.__dict__["forward"], module.__dict__[_CHANGES]


@contextmanager
def held(module: nn.Module, value: Tensor) -> Iterator[None]:
    """Within the block the module has the value among its buffers, so checkpoints keep and restore it."""
    name = next(f"held_{n}" for n in count() if not hasattr(module, f"held_{n}"))
    module.register_buffer(name, value)
    try:
        yield
    finally:
        delattr(module, name)
