"""Rows and columns of a block's matrices, in whatever form they are held. `name` is a matrix's prefix."""

from __future__ import annotations

from torch import Tensor

from decoupled.errors import SpecError
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.spec import ModelSpec
from decoupled.train.shrink.base import Weights


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


def need_floats(spec: ModelSpec, method: str, *, tables: bool = False) -> None:
    """Raise where matrices (or the token table) are codes, which nothing can cut or average."""
    forms: list[LinearSpec] = []
    for layer in spec.layers:
        forms += [layer.attention_maps, layer.ffn_maps]
    coded = any(form.bits is not None for form in forms)
    if coded or (tables and spec.encoder.embedding.bits is not None):
        raise SpecError(
            f"{method} needs weights in floating point, and these are quantised already; "
            "quantise last"
        )
