"""Models with more layers."""

from __future__ import annotations

from dataclasses import replace

from added_parts import copy_layer

from decoupled.errors import InputError
from decoupled.model.model import Model


def deepen(model: Model, extra: int = 1) -> Model:
    """Repeat the last layer `extra` times, each copy with its own parameters: deeper at query time only."""
    layers = model.spec.layers
    if extra < 1:
        raise InputError(f"extra={extra}; choose at least one more layer")
    slot = 1 + max(block.slot for layer in layers for block in layer.blocks)
    more = tuple(layers[-1].in_slot(slot + i) for i in range(extra))
    encoder = replace(model.spec.encoder, layers=(*layers, *more))
    spec = replace(model.spec, encoder=encoder)
    deeper = model.rebuild(spec, {"did": "deepen", "extra": extra})
    for layer in more:
        copy_layer(deeper.net.stack, layers[-1], deeper.net.stack, layer)
    return deeper
