"""A family of encoders: a Hugging Face config ↔ our spec, and the names of its tensors.

Reading refuses what the encoder cannot compute. Writing checks nothing: whoever writes a config reads it back
and compares, which finds everything that the family cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from decoupled.errors import SpecError
from decoupled.model.parts.feed_forward import Activation
from decoupled.model.parts.head import HeadKind, HeadSpec
from decoupled.model.spec import EncoderSpec, ModelSpec

Config: TypeAlias = Mapping[str, Any]
Modules: TypeAlias = Mapping[str, tuple[str, ...]]
"""A module of theirs with the modules of ours that it holds, joined along the rows in that order."""

_CLASSES: dict[HeadKind, str] = {
    "rank": "ForSequenceClassification",
    "classes": "ForSequenceClassification",
    "span": "ForQuestionAnswering",
    "choice": "ForMultipleChoice",
}


def one(**modules: str) -> Modules:
    """Ours by keyword (dots as double underscores), theirs by value."""
    return {theirs: (ours.replace("__", "."),) for ours, theirs in modules.items()}


def by_head(
    pooled: Modules, span: Modules, choice: Modules | None = None
) -> Mapping[HeadKind, Modules]:
    """The modules of each kind of head; a ranking, classes and (by default) a choice are pooled."""
    return {"rank": pooled, "classes": pooled, "choice": choice or pooled, "span": span}


BUFFERS = (r"(.*\.)?position_ids", r"(.*\.)?token_type_ids")
POOLER = r"(.*\.)?pooler\..*"
QA = one(out="qa_outputs")


@dataclass(frozen=True, kw_only=True)
class Names:
    """Where a family keeps its tensors. Weights and biases carry the same suffix on both sides."""

    prefix: str
    """Name of the encoder inside a model with a head; a bare encoder has none."""
    encoder: Modules
    layer: str
    """Name of a layer inside the encoder, with `{layer}`, or `{group}` and `{inner}`."""
    blocks: Mapping[str, Modules]
    """Inside a layer: the modules of ours in the slot of each block."""
    heads: Mapping[HeadKind, Modules]
    ignored: tuple[str, ...]
    """Patterns of tensors that no head of ours reads: objectives of pre-training, poolers."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type`: how its configs are read and written, and where its tensors are."""

    name: str
    title: str
    """First part of the names of its classes."""
    names: Names
    defaults: Config
    """What an option that config.json leaves out means."""
    read: Callable[[Config], EncoderSpec]
    read_head: Callable[[Config, HeadKind], HeadSpec]
    write: Callable[[ModelSpec], dict[str, Any]]
    groups: Callable[[Config, int], list[tuple[int, int]]] | None = None
    """Group of each of so many layers and its place there, where layers share modules."""

    def encoder(self, config: Config) -> EncoderSpec:
        """The encoder that a config describes; an option that it leaves out has the family's default."""
        for key in ("is_decoder", "add_cross_attention", "pruned_heads", "quantization_config"):
            if config.get(key):
                raise refused(config, key, "false or absent")
        if config.get("position_embedding_type") not in (None, "absolute"):
            raise refused(config, "position_embedding_type", "'absolute'")
        return self.read({**self.defaults, **config})

    def head(self, config: Config, architecture: str) -> HeadSpec | None:
        """The head of a class of models; None for one that has no head of ours."""
        kind = next((k for k, name in _CLASSES.items() if architecture.endswith(name)), None)
        if kind is None:
            return None
        classes = labels(config)
        kind = "classes" if kind == "rank" and len(classes) > 1 else kind
        head = self.read_head({**self.defaults, **config}, kind)
        return replace(head, labels=classes) if kind == "classes" else head

    def architecture(self, heads: Sequence[HeadSpec]) -> str:
        """The class that loads a model with that head."""
        return self.title + (_CLASSES[heads[0].kind] if heads else "Model")

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        """The config.json of a model with at most one head."""
        config: dict[str, Any] = {
            "architectures": [self.architecture(spec.heads)],
            "model_type": self.name,
            "dtype": "float32",
            "vocab_size": spec.encoder.embedding.vocab,
            "pad_token_id": spec.text.pad,
            **self.write(spec),
        }
        for head in spec.heads:
            two = ("LABEL_0", "LABEL_1")
            named = {"rank": two[:1], "classes": head.labels}.get(head.kind, two)
            config["id2label"] = {str(i): label for i, label in enumerate(named)}
            config["label2id"] = {label: i for i, label in enumerate(named)}
        return config

    def layer_names(self, config: Config, count: int) -> list[str]:
        """Name of the module that holds each of `count` layers."""
        if self.groups is None:
            return [self.names.layer.format(layer=i) for i in range(count)]
        places = self.groups({**self.defaults, **config}, count)
        return [self.names.layer.format(group=group, inner=inner) for group, inner in places]


# Values of a config: an error for each that is absent, ill-typed or unknown ------------------------

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


def activation_name(activation: Activation) -> str:
    """What Hugging Face calls an activation."""
    return "gelu_new" if activation == "gelu_tanh" else activation


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


def heads(config: Config) -> dict[str, Any]:
    """How many heads the attention has, and the width of each."""
    width, count = size(config, "hidden_size"), size(config, "num_attention_heads")
    if width % count:
        raise SpecError(
            f"config.json has hidden size {width} and {count} attention heads; "
            "expected a size that the heads divide: correct the config"
        )
    return {"heads": count, "head_width": width // count}


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
