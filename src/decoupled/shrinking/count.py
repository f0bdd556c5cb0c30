"""Parameters, bytes and arithmetic of a spec: what a method saves, before anything is trained."""

from __future__ import annotations

from dataclasses import asdict

import torch

from decoupled.measure.flops import work
from decoupled.nn.pair import PairEncoder
from decoupled.spec import ModelSpec


def parameters(spec: ModelSpec) -> int:
    """Numbers that the model holds: weights, biases, codes; scales of codes are not counted."""
    return sum(count for count, _, scale in _tensors(spec) if not scale)


def weight_bytes(spec: ModelSpec) -> int:
    """Bytes of the tensors as they are saved, scales included."""
    return sum(size for _, size, _ in _tensors(spec))


def _tensors(spec: ModelSpec) -> list[tuple[int, int, bool]]:
    """Numbers, bytes, and whether they are scales, per tensor."""
    with torch.device("meta"):
        tensors = PairEncoder(spec).state_dict()
    found = []
    for name, tensor in tensors.items():
        # A byte of 4-bit codes holds two weights.
        count = tensor.numel() * (2 if tensor.dtype == torch.uint8 else 1)
        size = tensor.numel() * tensor.element_size()
        found.append((count, size, "scale" in name.rpartition(".")[2]))
    return found


def pair_macs(spec: ModelSpec, query: int, passage: int) -> dict[str, int]:
    """MACs once per passage, once per query, and for each pair as the first head reads it."""
    return asdict(work(spec, query=query, passage=passage))


def translation_parameters(
    *,
    vocab: int = 40_000,
    width: int = 1024,
    ffn: int = 4096,
    encoder: int = 6,
    decoder: int = 6,
    shared: bool = False,
    narrow: int | None = None,
    tied: bool = False,
) -> int:
    """Weights of an encoder-decoder, counted as slides on compression do: no biases, no norms.

    `shared` layers count once per stack, `narrow` factorises the tables, `tied` uses one for both languages.
    """
    table = vocab * width if narrow is None else vocab * narrow + narrow * width
    encoders, decoders = (1, 1) if shared else (encoder, decoder)
    layer = 4 * width * width + 2 * width * ffn
    tables = table if tied else 2 * table
    return tables + encoders * layer + decoders * (layer + 4 * width * width)
