"""A model that gets exits: heads below its last layer."""

from dataclasses import replace

from decoupled.model.model import Model
from decoupled.model.parts.exits import ExitSpec
from decoupled.model.parts.head import HeadKind


def with_exits(
    model: Model, heads: tuple[HeadKind, ...] = ("rank",), *, halts: bool = False
) -> Model:
    """The model with an exit after every cross layer but the last, which start as copies of its heads.

    Its scores stay what they were. `halts` adds the maps of learned halting.
    """
    layers = range(model.spec.split + 1, len(model.spec.layers))
    exits = tuple(ExitSpec(layer=layer, heads=heads, halts=halts) for layer in layers)
    spec = replace(model.spec, exits=exits)
    changed = model.rebuild(spec, {"did": "add exits", "layers": list(layers)})
    for one in exits:
        for kind in heads:
            # A trained head is nearer to what an exit must say than a random one.
            start = changed.net.heads[kind].state_dict()
            changed.net.exits[one.key(kind)].load_state_dict(start)
    changed.net.spec = replace(spec, scoring=model.spec.scoring)
    return changed
