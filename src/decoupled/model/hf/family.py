"""A family of encoders: a Hugging Face config as our spec, and the names of its tensors.

Reading refuses what the encoder cannot compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from decoupled.errors import SpecError
from decoupled.model.jsonable import LARGE, MANY, JsonObject
from decoupled.model.parts.feed_forward import Activation
from decoupled.model.parts.head import HeadKind, HeadSpec, rank_label_of
from decoupled.model.spec import EncoderSpec

if TYPE_CHECKING:
    from torch import Tensor

Modules: TypeAlias = Mapping[str, tuple[str, ...]]
"""A module of theirs → the modules of ours that it holds, joined along the rows in that order."""

_CLASSES: dict[HeadKind, str] = {
    "rank": "ForSequenceClassification",
    "classes": "ForSequenceClassification",
    "span": "ForQuestionAnswering",
    "choice": "ForMultipleChoice",
}
# The tanh approximation of gelu has three names in transformers; all mean the same function.
_ACTIVATIONS: dict[str, Activation] = {
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


def one(**modules: str) -> Modules:
    """A table of modules written as `ours="theirs"`, with double underscores for the dots of ours."""
    return {theirs: (ours.replace("__", "."),) for ours, theirs in modules.items()}


BUFFERS = (r"(.*\.)?position_ids", r"(.*\.)?token_type_ids")
POOLER = r"(.*\.)?pooler\..*"
QA = one(out="qa_outputs")


def by_head(
    pooled: Modules, *, span: Modules = QA, choice: Modules | None = None
) -> Mapping[HeadKind, Modules]:
    """The modules of each kind of head; a ranking, classes and (by default) a choice are pooled."""
    return {"rank": pooled, "classes": pooled, "choice": choice or pooled, "span": span}


def numbered(layer: str) -> Callable[[Config, int], list[str]]:
    """A function that names layers which differ only in their number."""
    return lambda config, count: [f"{layer}.{i}" for i in range(count)]


class Config(JsonObject):
    """The options of a config.json; each accessor raises for one that is absent, ill-typed or unknown."""

    def refused(self, key: str, expected: str) -> SpecError:
        """The error for an option that the encoder cannot follow."""
        return SpecError(
            f"config.json has {key}={self.get(key)!r}, which this encoder does not support; "
            f"expected {expected}: use a checkpoint trained without it"
        )

    def size(self, key: str, *, least: int = 1) -> int:
        """A whole number that must be there; more than a thousand layers are made to harm."""
        value, most = self.get(key), MANY if key.endswith("layers") else LARGE
        # In Python a bool is an int, and `true` is no size.
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise SpecError(
                f"config.json has {key}={value!r:.60}; expected a whole number of at least {least} and at "
                f"most {most}: complete the config"
            )
        return value

    def number(self, key: str) -> float:
        """A number that must be there."""
        value = self.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise SpecError(
                f"config.json has {key}={value!r}; expected a number: complete the config"
            )
        return float(value)

    def activation(self, key: str) -> Activation:
        """An activation by our name."""
        name = self.get(key)
        if name not in _ACTIVATIONS:
            raise SpecError(
                f"config.json has {key}={name!r}, which is no known activation; expected one of "
                f"{', '.join(_ACTIVATIONS)}: use a checkpoint trained with one of them"
            )
        return _ACTIVATIONS[name]

    def heads(self) -> JsonObject:
        """How many heads the attention has, and the width of each."""
        width, count = self.size("hidden_size"), self.size("num_attention_heads")
        if width % count:
            raise SpecError(
                f"config.json has hidden size {width} and {count} attention heads; "
                "expected a size that the heads divide: correct the config"
            )
        return {"heads": count, "head_width": width // count}

    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in order of their logits."""
        named, count = self.get("id2label"), self.get("num_labels")
        if isinstance(named, Mapping) and named:
            # JSON makes the ids strings, and "10" would sort before "2".
            return tuple(str(named[key]) for key in sorted(named, key=int))
        return tuple(f"LABEL_{i}" for i in range(count if isinstance(count, int) else 2))


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type`: how its configs are read, and where its tensors are.

    Weights and biases carry the same suffix on both sides.
    """

    name: str
    title: str
    """First part of the names of its transformers classes, such as `Bert`."""
    prefix: str
    """Name of the encoder inside a model with a head; a bare encoder has none."""
    modules: Modules
    """The modules of the encoder outside its layers."""
    layers: Callable[[Config, int], list[str]]
    """Gives the names, inside the encoder, of the modules that hold each of so many layers."""
    blocks: Mapping[str, Modules]
    """The modules inside a layer, by the block of ours that holds them."""
    heads: Mapping[HeadKind, Modules]
    ignored: tuple[str, ...]
    """Patterns of tensors that no head of ours reads: objectives of pre-training, poolers."""
    defaults: Mapping[str, Any]
    """Values of options that config.json leaves out."""
    read: Callable[[Config], EncoderSpec]
    read_head: Callable[[Config, HeadKind], HeadSpec]
    scored: Callable[[Config, dict[str, Tensor], tuple[int, ...]], dict[str, Tensor]] | None = None
    """For decoders: the tensors with a value head made of the tokens whose logits are the score."""

    plain: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    """Gives tensors that are no matrices of weights as such, where a family has some."""

    def complete(self, config: Mapping[str, Any]) -> Config:
        """A config in which an option that was left out has the family's default."""
        return Config({**self.defaults, **config})

    def encoder(self, options: Mapping[str, Any]) -> EncoderSpec:
        """The encoder that a config describes."""
        config = self.complete(options)
        # Each changes the computation, or the shapes, in a way that the spec cannot describe.
        for key in ("is_decoder", "add_cross_attention", "pruned_heads", "quantization_config"):
            if config.get(key):
                raise config.refused(key, "false or absent")
        if config.get("position_embedding_type") not in (None, "absolute"):
            raise config.refused("position_embedding_type", "'absolute'")
        return self.read(config)

    def head(self, options: Mapping[str, Any], architecture: str) -> tuple[HeadSpec, ...]:
        """The head of a model class as a tuple of one; empty for a class that has no head of ours."""
        config = self.complete(options)
        own = architecture.removesuffix("Simple")
        kind = next((k for k, name in _CLASSES.items() if own.endswith(name)), None)
        # A language model scores a pair by the logits of a token or two, which are a value.
        if self.scored is not None and architecture.endswith("ForCausalLM"):
            return (self.read_head(config, "rank"),)
        # One class serves ranking and classification; the number of labels tells them apart.
        if kind == "rank" and len(config.labels()) > 1:
            labels = config.labels()
            head = self.read_head(config, "classes")
            return (replace(head, labels=labels, rank_label=rank_label_of(labels)),)
        return (self.read_head(config, kind),) if kind else ()
