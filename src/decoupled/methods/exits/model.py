"""A model that gets exits: rank heads below its last layer."""

from __future__ import annotations

from dataclasses import replace

from decoupled.model.model import Model
from decoupled.model.parts.exits import ExitSpec


def with_exits(model: Model) -> Model:
    """The model with an exit after every cross layer but the last, which start as copies of the rank head.

    Its scores stay what they were.
    """
    layers = range(model.spec.split + 1, len(model.spec.layers))
    spec = replace(model.spec, exits=tuple(ExitSpec(layer=layer) for layer in layers))
    changed = model.rebuild(spec, {"did": "add exits", "layers": list(layers)})
    for head in changed.net.exits.values():
        # A head that ranks already is nearer to what an exit must say than a random one.
        head.load_state_dict(changed.net.heads["rank"].state_dict())
    changed.net.spec = replace(spec, scoring=model.spec.scoring)
    return changed
