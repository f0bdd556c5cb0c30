"""Parameters, bytes and arithmetic of a spec: what a method saves, before anything is trained."""

from __future__ import annotations

from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

from decoupled.measure.flops import work
from decoupled.measure.parameters import weights_in
from decoupled.model.folder import WEIGHTS
from decoupled.model.model import Model
from decoupled.model.spec import ModelSpec
from decoupled.train.shrink.weights import sparse_bytes

TOKENS = (16, 128)
"""Query and passage that the arithmetic is counted for."""


def size_facts(model: Model, in_file: int | None, *, sparse: bool) -> dict[str, Any]:
    """What a shrunk model is compared by; `sparse` also counts bytes without the zeros."""
    macs = pair_macs(model.spec, *TOKENS)
    facts = {
        "parameters": parameters(model.spec),
        "weight_bytes": weight_bytes(model.spec),
        "file_bytes": in_file,
        "layers": len(model.spec.layers),
        "passage_macs": macs["passage"],
        "online_macs": macs["query"] + macs["cross"],
    }
    if sparse:
        # The folder holds zeros as they are; this is what a format for them would take.
        facts["sparse_bytes"] = sparse_bytes(model.net.state_dict())
    return facts


def file_bytes(path: Path) -> int | None:
    """Of the weights as a model folder holds them; a checkpoint of another kind has none."""
    file = path / WEIGHTS
    return file.stat().st_size if file.is_file() else None


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
