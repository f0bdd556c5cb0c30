"""What a method of shrinking is: up to three parts, each of which by default changes nothing.

`rewrite` changes the description, `transfer` the tensors that it names, `hook` adds what happens only while
it is trained. A method that must look at a model or at data before it can say what to do has `fit`, which
returns another method that says so outright. `apply` puts the parts together; modules are built once, from
the final spec, and every tensor must find its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from decoupled.errors import InputError, SpecError
from decoupled.model.jsonable import to_json
from decoupled.model.model import Model, build
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.layer import Block, LayerSpec, in_slot
from decoupled.model.spec import ModelSpec
from decoupled.model.tokens import Tokenizer
from decoupled.train.data.prepare import Prepared
from decoupled.train.loop.loop import BeforeStep

Weights = Mapping[str, Tensor]
BeforeSteps = Iterator[BeforeStep | None]
"""What a hook yields: a function to call before each step of training, or nothing."""
FITTED = {"fitted": True}
"""Metadata of a field that `fit` fills in: no option of the command line, and not in the history."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to make a model smaller. Subclasses are frozen data whose fields are the options."""

    name: ClassVar[str] = ""
    """The name on the command line; empty for methods that only `fit` makes."""
    finishes: ClassVar[bool] = False
    """It leaves nothing that could still be trained, so it is applied when training is over."""
    by_training: ClassVar[bool] = False
    """Its work is training: without it nothing has happened, or the model is of no use yet."""

    def fit(self, model: Model, sample: Prepared | None) -> Method:
        """The method with every decision taken, from the model and the data."""
        return self

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The smaller description, or a `SpecError` that says why there is none."""
        if type(self).fit is not Method.fit:
            raise self.undecided()
        return spec

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """The tensors of the new description; those of slots that it does not use may stay."""
        return weights

    def retokenise(self, json: str) -> str:
        """The tokenizer file of the new model."""
        return json

    @property
    def settled(self) -> float:
        """The share of training steps after which the method is in full force."""
        return 0.0

    def trains(self, name: str) -> bool:
        """Whether the parameter of that name is trained while the method is in force."""
        return True

    @contextmanager
    def hook(self, student: PairEncoder, teacher: PairEncoder | None) -> BeforeSteps:
        """A context that is active while the student is trained; it may yield a function for each step."""
        yield None

    def needed(self, sample: Prepared | None) -> Prepared:
        """The sample, or an error that says which method wants one."""
        if sample is None:
            raise InputError(
                f"{self.name} looks at data to decide; give labelled pairs (data), or other options"
            )
        return sample

    def undecided(self) -> SpecError:
        """The error of `rewrite` for a method that only `fit` can make definite."""
        return SpecError(
            f"{self.name} looks at the model or at data to decide; apply it to a model, not to its spec"
        )

    def summary(self) -> dict[str, Any]:
        """The entry for the model's history: the method and its options."""
        options = {f.name: to_json(getattr(self, f.name)) for f in self.options()}
        words = re.sub("(?<!^)(?=[A-Z])", "-", type(self).__name__.lstrip("_")).lower()
        return {"method": self.name or words, **options}

    @classmethod
    def options(cls) -> list[Field[Any]]:
        """The fields that a user may set."""
        return [f for f in fields(cls) if not f.metadata.get("fitted")]


def apply(model: Model, method: Method, sample: Prepared | None = None) -> Model:
    """The model that one method makes; the given one stays as it is."""
    fitted = method.fit(model, sample)
    after = replace(fitted.rewrite(model.spec), scoring=None)  # other weights, other scores
    with torch.no_grad():
        moved = fitted.transfer(dict(model.net.state_dict()), model.spec, after)
    # Tensors of slots that no layer uses any more would be surplus to the new spec.
    used = tuple(block.prefix for layer in after.layers for block in layer.blocks)
    kept = {n: t for n, t in moved.items() if not in_slot(n) or n.startswith(used)}
    # Copies, since built modules take tensors as they are and two models must not share them.
    net = build(after, {name: tensor.detach().clone() for name, tensor in kept.items()})
    tokenizer = Tokenizer(fitted.retokenise(model.tokenizer.json), after.text)
    did = [{"did": "shrink", **method.summary()}]
    if fitted is not method:
        did.append({"did": "shrink with", **fitted.summary()})
    return Model(net.to(model.device), tokenizer, [*model.history, *did])


# Layers and slots ---------------------------------------------------------------------------------


def with_layers(
    spec: ModelSpec, layers: Sequence[LayerSpec], split: int | None = None
) -> ModelSpec:
    """The spec with other layers, and perhaps another split."""
    encoder = replace(spec.encoder, layers=tuple(layers))
    return replace(spec, encoder=encoder, split=spec.split if split is None else split)


def with_blocks(spec: ModelSpec, change: Callable[[Block], Block]) -> ModelSpec:
    """The spec with every block of its layers changed."""
    return with_layers(spec, changed(spec.layers, change))


def changed(layers: Sequence[LayerSpec], change: Callable[[Block], Block]) -> tuple[LayerSpec, ...]:
    """The layers with every block of theirs changed."""
    return tuple(layer.put(*map(change, layer.blocks)) for layer in layers)


def parts_of(which: str) -> tuple[str, ...]:
    """Names of the blocks that an option `all`, `attention` or `ffn` means."""
    return ("attention", "ffn") if which == "all" else (which,)


def check_count(count: int, most: int, problem: str) -> None:
    """Raise `SpecError` with the problem and the range to choose from, unless the count is 1 to `most`."""
    if not 1 <= count <= most:
        raise SpecError(f"{problem}; choose 1..{most}")
