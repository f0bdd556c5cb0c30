"""Parts that the starter's recipe adds to a split model: a vector of each text, and late interaction."""

from __future__ import annotations

from dataclasses import replace

from decoupled.errors import SpecError
from decoupled.model.model import Model
from decoupled.model.nn.stack import Stack
from decoupled.model.parts.late import LateSpec
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.spec import VectorSpec


def with_vector(model: Model, width: int, *, layers: int = 0, start: Model | None = None) -> Model:
    """The model with a learned vector of that width for each text; its map starts at random.

    `layers` of its own come before it, for a better vector at more work per text. They start as copies of
    those above the split, in the order of the encoder: of the model's own, or of `start`, where its layers
    have the same shape.
    """
    upper = model.spec.layers[model.spec.split :]
    if not 0 <= layers <= len(upper):
        raise SpecError(
            f"layers={layers}, but {len(upper)} stand above the split; choose 0..{len(upper)}"
        )
    # Slots from 0: these layers have parameters of their own, even as copies.
    own = tuple(replace(one, passage="advance").in_slot(n) for n, one in enumerate(upper[:layers]))
    spec = replace(model.spec, vector=VectorSpec(width=width, layers=own))
    with_new = model.rebuild(spec, {"did": "add vector", "width": width, "layers": layers})
    if with_new.net.vector is not None and (stack := with_new.net.vector.stack) is not None:
        # Another model's layers are copied only where the encoders agree in every shape.
        like = start if start is not None and start.spec.encoder == model.spec.encoder else model
        for new, source in zip(own, like.spec.layers[model.spec.split :], strict=False):
            copy_layer(like.net.stack, source, stack, new)
        if stack.relative is not None and like.net.stack.relative is not None:
            stack.relative.load_state_dict(like.net.stack.relative.state_dict())
    return with_new


def with_late(model: Model, width: int) -> Model:
    """The model with a projection of that width for late interaction; it starts at random."""
    spec = replace(model.spec, late=LateSpec(width=width))
    return model.rebuild(spec, {"did": "add late interaction", "width": width})


def copy_layer(stack: Stack, source: LayerSpec, target: Stack, to: LayerSpec) -> None:
    """Copy the parameters of a layer into another of the same shape."""
    for old, new in zip(source.blocks, to.blocks, strict=True):
        weights = stack.get_submodule(f"{old.name}.{old.slot}").state_dict()
        target.get_submodule(f"{new.name}.{new.slot}").load_state_dict(weights)
