"""Values of a Hugging Face config; an error for each that is absent, ill-typed or unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from decoupled.errors import SpecError
from decoupled.model.parts.feed_forward import Activation

Config: TypeAlias = Mapping[str, Any]

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

ACTIVATION_NAMES: dict[Activation, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "tanh": "tanh",
}


def check_options(config: Config) -> None:
    """Refuse what no family computes."""
    for key in ("is_decoder", "add_cross_attention", "pruned_heads", "quantization_config"):
        if config.get(key):
            raise refused(config, key, "false or absent")
    if config.get("position_embedding_type") not in (None, "absolute"):
        raise refused(config, "position_embedding_type", "'absolute'")


def refused(config: Config, key: str, expected: str) -> SpecError:
    """The error for an option that the encoder cannot follow."""
    return SpecError(
        f"config.json has {key}={config.get(key)!r}, which this encoder does not support; "
        f"expected {expected}: use a checkpoint trained without it"
    )


def size(config: Config, key: str, *, least: int = 1) -> int:
    """A whole number that must be there."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecError(
            f"config.json has {key}={value!r}; expected a whole number of at least {least}: "
            "complete the config"
        )
    return value


def number(config: Config, key: str) -> float:
    """A number that must be there."""
    value = config.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise SpecError(f"config.json has {key}={value!r}; expected a number: complete the config")
    return float(value)


def head_width(config: Config, width: int, heads: int) -> int:
    """Width of one attention head."""
    if width % heads:
        raise SpecError(
            f"config.json has hidden size {width} and {heads} attention heads; "
            "expected a size that the heads divide: correct the config"
        )
    return width // heads


def activation(config: Config, key: str) -> Activation:
    """An activation by our name."""
    name = config.get(key)
    if name not in ACTIVATIONS:
        raise SpecError(
            f"config.json has {key}={name!r}, which is no known activation; "
            f"expected one of {', '.join(ACTIVATIONS)}: use a checkpoint trained with one of them"
        )
    return ACTIVATIONS[name]


def labels(config: Config) -> tuple[str, ...]:
    """The names of the classes, in order of their logits."""
    named = config.get("id2label")
    if isinstance(named, Mapping) and named:
        return tuple(str(named[key]) for key in sorted(named, key=int))
    count = config.get("num_labels")
    return tuple(f"LABEL_{i}" for i in range(count if isinstance(count, int) else 2))
