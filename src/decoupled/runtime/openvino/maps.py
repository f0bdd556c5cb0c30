"""The maps of the layers by name: which of them are codes, and all of them made so."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from decoupled.model.parts.linear import LinearSpec
from decoupled.model.spec import EncoderSpec
from decoupled.runtime.openvino.graph import LEAST_STEP, Tensors


def coded_forms(spec: EncoderSpec) -> dict[str, tuple[LinearSpec, int]]:
    """Form and inputs of the maps that are codes."""
    return {name: (form, inputs) for name, form, inputs in _maps(spec) if form.bits is not None}


def rounded_maps(spec: EncoderSpec, tensors: Tensors) -> Tensors:
    """The same weights with every map of floats as int8 codes, as `shrink` with `quantise` leaves them."""
    found = dict(tensors)
    for name, _, _ in _maps(spec):
        weight = found.pop(f"{name}.weight", None)
        if weight is not None:
            weight_OI = np.asarray(weight, np.float32)
            largest_O1 = np.abs(weight_OI).max(1, keepdims=True)
            scale_O1 = np.maximum(largest_O1 / np.float32(127), LEAST_STEP)
            found[f"{name}.codes"] = np.rint(weight_OI / scale_O1).astype(np.int8)
            found[f"{name}.scale_OG"] = scale_O1
    return found


def _maps(spec: EncoderSpec) -> Iterator[tuple[str, LinearSpec, int]]:
    """Name, form and inputs of every map of the layers; of thin ones, both factors."""
    for layer in spec.layers:
        place, form = f"stack.attention.{layer.attention_slot}.attention", layer.attention_maps
        for one in ("query", "key", "value", "relative_key", "relative_query"):
            yield from _factors(f"{place}.{one}", form, spec.width)
        yield from _factors(
            f"{place}.out", form, layer.attention.heads * layer.attention.head_width
        )
        place, form = f"stack.ffn.{layer.ffn_slot}", layer.ffn_maps
        for one in ("up", "gate"):
            yield from _factors(f"{place}.{one}", form, spec.width)
        yield from _factors(f"{place}.down", form, layer.ffn.width)


def _factors(name: str, form: LinearSpec, inputs: int) -> Iterator[tuple[str, LinearSpec, int]]:
    if form.rank is None:
        yield name, form, inputs
    else:
        yield f"{name}.first", form, inputs
        yield f"{name}.second", form, form.rank
