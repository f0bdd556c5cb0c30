"""Parameters, bytes and arithmetic of a spec: what a method saves, before anything is trained.

One MAC is a multiplication with its addition; norms, softmax, activations and biases do not count.
"""

from __future__ import annotations

import torch

from decoupled.forms import FixedPatterns, LinearSpec
from decoupled.nn.pair import PairEncoder
from decoupled.spec import LayerSpec, ModelSpec


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


def layer_macs(layer: LayerSpec, width: int, tokens: int, rows: int | None = None) -> int:
    """MACs of a layer that reads `tokens` and computes `rows` of them (all by default)."""
    rows = tokens if rows is None else rows
    kind, maps = layer.attention, layer.attention_maps
    inner = kind.heads * kind.head_width
    fixed = len(kind.patterns) if isinstance(kind, FixedPatterns) else 0
    learned = (kind.heads - fixed) * kind.head_width
    total = rows * _map(maps, width, learned) + tokens * _map(maps, width, learned)
    total += tokens * _map(maps, width, inner) + rows * _map(maps, inner, width)
    # Scores and mixing of learned heads; a pattern is a shift or a running sum, linear in the tokens.
    total += 2 * rows * tokens * learned
    ffn = layer.ffn
    first = 2 if ffn.gated else 1
    form = layer.ffn_maps
    return total + rows * (first * _map(form, width, ffn.width) + _map(form, ffn.width, width))


def _map(form: LinearSpec, inputs: int, outputs: int) -> int:
    if not inputs or not outputs:
        return 0
    return inputs * outputs if form.rank is None else form.rank * (inputs + outputs)


def pair_macs(spec: ModelSpec, query: int, passage: int, rows: int | None = None) -> dict[str, int]:
    """MACs once per passage, once per query, and for each pair; `rows` are read of the last layer."""
    width, layers, split = spec.encoder.width, spec.layers, spec.split
    lower = {
        side: sum(layer_macs(layer, width, tokens) for layer in layers[:split])
        for side, tokens in (("query", query), ("passage", passage))
    }
    joined = query + passage
    cross = 0
    for number, layer in enumerate(layers[split:], split):
        last = number == len(layers) - 1
        cross += layer_macs(layer, width, joined, rows if last else None)
    return {**lower, "cross": cross}


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
