"""Parameters, bytes and arithmetic of a spec: what a method saves, before anything is trained."""

from __future__ import annotations

from dataclasses import asdict
from math import prod

from decoupled.measure.counts import weights_in, work
from decoupled.model.spec import ModelSpec


def parameters(spec: ModelSpec) -> int:
    """Numbers that the model holds: weights, biases, codes; scales of codes are not counted."""
    return sum(
        weights_in(name, prod(tensor.shape), tensor.dtype)
        for name, tensor in spec.tensors().items()
    )


def weight_bytes(spec: ModelSpec) -> int:
    """Bytes of the tensors as they are saved, scales included."""
    sizes = {"float32": 4, "int8": 1, "uint8": 1}
    return sum(prod(tensor.shape) * sizes[tensor.dtype] for tensor in spec.tensors().values())


def pair_macs(spec: ModelSpec, query: int, passage: int) -> dict[str, int]:
    """MACs once per passage, once per query, and for each pair as the first head reads it."""
    return asdict(work(spec, query=query, passage=passage))
