"""Another split of the same encoder: where it is split, which layers are one-way, or not at all."""

from collections.abc import Sequence
from dataclasses import replace

from decoupled.errors import SpecError
from decoupled.model.spec import (
    VECTOR,
    CrossEmbed,
    EncoderSpec,
    ModelSpec,
    OneWay,
    Positions,
    Stored,
)


def with_split(
    spec: ModelSpec,
    at: int,
    *,
    positions: Positions | None = None,
    cross_embed: CrossEmbed = "none",
    one_way: OneWay = (),
    store: Stored = "state",
) -> ModelSpec:
    """The same encoder split at layer `at`; positions default to joint at 0 and typical elsewhere.

    Every cross layer advances the passages but those in `one_way`. Layers of a vector, late interaction
    and exits were made for the states of one split; at another the model has none of them.
    """
    chosen: Positions = positions or ("joint" if at == 0 else "typical")
    if at != spec.split:
        kept = None if VECTOR in spec.stacks else spec.vector
        spec = replace(spec, late=None, exits=(), vector=kept)
    moved = replace(spec, encoder=_frozen(spec.encoder, ()))
    split = replace(moved, split=at, positions=chosen, cross_embed=cross_embed, store=store)
    return with_one_way(split, one_way) if one_way else split


def with_one_way(spec: ModelSpec, layers: OneWay) -> ModelSpec:
    """The same split with these cross layers one-way and the others advancing."""
    first, last = spec.split + 1, len(spec.layers)
    if spec.split == 0:
        raise SpecError(
            "one-way layers read stored passages, and a joint model (split 0) stores none; split it first"
        )
    chosen: Sequence[int]
    if layers == "auto":
        chosen = range(first, last + (not any(head.reads_passages for head in spec.heads)))
    else:
        chosen = [int(layer) for layer in layers]
        if outside := [layer for layer in chosen if not first <= layer <= last]:
            raise SpecError(
                f"layer {outside[0]} cannot be one-way: layers 1..{spec.split} run on each text alone and "
                f"the encoder has {last}; choose {first}..{last}"
            )
    if not chosen:
        raise SpecError(
            f"split {spec.split} of {last} leaves no layer that can be one-way: the head needs the last "
            "one to advance; split lower"
        )
    return replace(spec, encoder=_frozen(spec.encoder, chosen))


def _frozen(encoder: EncoderSpec, layers: Sequence[int]) -> EncoderSpec:
    changed = tuple(
        replace(layer, passage="frozen" if number in layers else "advance")
        for number, layer in enumerate(encoder.layers, 1)
    )
    return replace(encoder, layers=changed)


def unsplit(spec: ModelSpec) -> ModelSpec:
    """The joint model with the same weights, as it was before the split."""
    return with_split(replace(spec, projection=None), 0)
