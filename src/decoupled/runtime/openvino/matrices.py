"""The matrices of the layers by name: which of them are quantised, and all of them made so."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from decoupled.model.parts.linear import LinearSpec
from decoupled.model.spec import EncoderSpec
from decoupled.runtime.openvino.graph import LEAST_STEP, Tensors


def quantised_forms(spec: EncoderSpec) -> dict[str, tuple[LinearSpec, int]]:
    """Form and inputs of the matrices that are quantised."""
    return {name: (form, inputs) for name, form, inputs in _matrices(spec) if form.bits is not None}


def rounded_matrices(spec: EncoderSpec, tensors: Tensors) -> Tensors:
    """The same weights with every matrix of floats as int8 codes, as `shrink` with `quantise` leaves them."""
    found = dict(tensors)
    for name, _, _ in _matrices(spec):
        weight = found.pop(f"{name}.weight", None)
        if weight is not None:
            weight_OI = np.asarray(weight, np.float32)
            largest_O1 = np.abs(weight_OI).max(1, keepdims=True)
            scale_O1 = np.maximum(largest_O1 / np.float32(127), LEAST_STEP)
            found[f"{name}.codes"] = np.rint(weight_OI / scale_O1).astype(np.int8)
            found[f"{name}.scale_OG"] = scale_O1
    return found


def _matrices(spec: EncoderSpec) -> Iterator[tuple[str, LinearSpec, int]]:
    """Name, form and inputs of every matrix of the layers; of low-rank ones, both factors."""
    for block in (block for layer in spec.layers for block in layer.blocks):
        for name, m in block.part.matrices(spec.width).items():
            for factor, inputs, _ in block.linear.factors(block.prefix + name, m.inputs, m.outputs):
                yield factor, block.linear, inputs
