"""FLOPs as DeFormer counts them: every row of every layer, and nothing else."""

from collections.abc import Sequence
from dataclasses import replace

from decoupled.model.parts.layer import LayerSpec
from decoupled.model.spec import ModelSpec
from decoupled.model.split import with_split


def published_flops(spec: ModelSpec, *, query: int, passage: int, stored: bool = True) -> int:
    """FLOPs of one pair as DeFormer counts them; with `stored` passages their lower layers are free."""
    width = spec.encoder.width

    def layers(some: Sequence[LayerSpec], tokens: int) -> int:
        return sum(layer.macs(width, rows=tokens, tokens=tokens) for layer in some)

    lower, upper = spec.layers[: spec.split], spec.layers[spec.split :]
    # Below the split each text attends to itself alone, so the two never meet in a product.
    alone = layers(lower, query) + (0 if stored else layers(lower, passage))
    return 2 * (alone + layers(upper, query + passage))


def published_speedup(spec: ModelSpec, at: int, *, query: int, passage: int) -> float:
    """Joint FLOPs over those of the split at layer `at` with stored passages, as DeFormer counts them."""
    joint = published_flops(_split(spec, 0), query=query, passage=passage)
    return joint / published_flops(_split(spec, at), query=query, passage=passage)


def token_layers_saved(layers: int, at: int, *, query: int, passage: int) -> float:
    """Share of token-layers that stored passages spare: a first-order proxy of DeFormer's memory figures."""
    both = query + passage
    # Below the split only the query's tokens are left to compute, above it both texts'.
    return 1 - (at * query + (layers - at) * both) / (layers * both)


def _split(spec: ModelSpec, at: int) -> ModelSpec:
    """The bare encoder at another split: no projection, no tables at the split."""
    return with_split(replace(spec, projection=None, cross_embed="none"), at)
