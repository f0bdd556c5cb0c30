"""What a method of shrinking is: up to three parts, each of which by default changes nothing.

`rewrite` changes the description, `transfer` the tensors that it names, `during` what happens only while the
model is trained. A method that must look at a model or at data before it can say what to do has `fit`, which
returns another method that says so outright. `apply` puts the parts together; modules are built once, from
the final spec, and every tensor must find its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from decoupled.errors import InputError, SpecError
from decoupled.index.documents import Pair
from decoupled.model.frozen import to_json
from decoupled.model.model import Model, build
from decoupled.model.nn.pair import PairEncoder
from decoupled.model.spec import LayerSpec, ModelSpec, TextSpec
from decoupled.model.tokens import Tokenizer
from decoupled.train.data.batches import Batches
from decoupled.train.data.examples import Examples
from decoupled.train.data.tasks import Task, by_head, examples, task_for
from decoupled.train.forward import Batch
from decoupled.train.loop import Tick

Weights = Mapping[str, Tensor]
FITTED = {"fitted": True}
"""Metadata of a field that `fit` fills in: no option of the command line, and not in the history."""
SAMPLE_TOKENS = 1 << 14
"""Padded tokens of a batch when a method looks at data."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Labelled pairs that a method may look at, tokenised anew for each model it is shown to."""

    task: Task
    read: Callable[[Tokenizer], Examples]
    told: Callable[[int], None] | None = None
    """Told of each batch, as a method reads it, how many groups of pairs it has."""

    @classmethod
    def of(cls, pairs: Iterable[Pair], task: str, model: Model, *, train: bool = True) -> Sample:
        """Pairs as the user gives them, for a task or (`pairs`) what they and the model say it is.

        To train and decide on they are grouped as a loss needs them; `train=False` is for scores.
        """
        given = list(pairs)
        asked = task_for(task, given, model.spec.heads)
        what, listed = by_head(asked, given, model.spec)
        made: dict[tuple[str, TextSpec], Examples] = {}

        def read(tokenizer: Tokenizer) -> Examples:
            key = (tokenizer.json, tokenizer.spec)
            if key not in made:
                made[key] = examples(listed, tokenizer, what, train=train)
            return made[key]

        return cls(task=what, read=read)

    def examples(self, model: Model) -> Examples:
        """All of them, in the model's own tokens."""
        return self.read(model.tokenizer)

    def batches(self, model: Model, *, limit: int | None = None, seed: int = 0) -> Iterator[Batch]:
        """Batches in an order that the seed decides; at most about `limit` groups of pairs in all."""
        if limit is not None and limit < 1:
            raise SpecError(f"examples={limit}; choose 1 or more")
        model.spec.head(self.task.head)
        found = Batches(self.examples(model), model.device, pad=model.spec.text.pad)
        order = found.epoch(seed, 0, size=1, tokens=SAMPLE_TOKENS)
        if limit is not None:
            taken, kept = 0, []
            for groups in order:
                if taken < limit:
                    kept.append(groups[: limit - taken])
                    taken += len(kept[-1])
            order = kept
        for groups, batch in zip(order, found.walk(order), strict=True):
            yield batch
            if self.told is not None:
                self.told(len(groups))


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to make a model smaller. Subclasses are frozen data whose fields are the options."""

    name: ClassVar[str] = ""
    """What the command line calls it; empty for what only `fit` makes."""
    finishes: ClassVar[bool] = False
    """It leaves nothing that could still be trained, so it is applied when training is over."""
    by_training: ClassVar[bool] = False
    """Its work is training: without it nothing has happened, or the model is of no use yet."""

    def fit(self, model: Model, sample: Sample | None) -> Method:
        """The same method with every decision taken."""
        return self

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The smaller description, or a `SpecError` that says why there is none."""
        return spec

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """The tensors of the new description."""
        return weights

    def retokenise(self, json: str) -> str:
        """The tokenizer of the new model."""
        return json

    @property
    def settled(self) -> float:
        """Share of the steps of training after which the method is in full force."""
        return 0.0

    def trains(self, name: str) -> bool:
        """Does the parameter of that name move while the method is in force?"""
        return True

    @contextmanager
    def during(self, student: PairEncoder, teacher: PairEncoder | None) -> Iterator[Tick | None]:
        """In force while the student is trained."""
        yield None

    def told(self) -> dict[str, Any]:
        """What the model's history remembers."""
        options = {f.name: to_json(getattr(self, f.name)) for f in self.options()}
        words = re.sub("(?<!^)(?=[A-Z])", "-", type(self).__name__.lstrip("_")).lower()
        return {"method": self.name or words, **options}

    @classmethod
    def options(cls) -> list[Field[Any]]:
        """The fields that a user may set."""
        return [f for f in fields(cls) if not f.metadata.get("fitted")]


def apply(model: Model, method: Method, sample: Sample | None = None) -> Model:
    """The model that one method makes; the given one stays as it is."""
    fitted = method.fit(model, sample)
    before = model.spec
    after = fitted.rewrite(before)
    with torch.no_grad():
        moved = fitted.transfer(dict(model.net.state_dict()), before, after)
    # Copies, since built modules take tensors as they are and two models must not share them.
    net = build(after, {name: tensor.detach().clone() for name, tensor in moved.items()})
    tokenizer = Tokenizer(fitted.retokenise(model.tokenizer.json), after.text)
    did = [{"did": "shrink", **method.told()}]
    if fitted is not method:
        did.append({"did": "shrink with", **fitted.told()})
    return Model(net.to(model.device), tokenizer, [*model.history, *did])


def needed(sample: Sample | None, method: Method) -> Sample:
    """The sample, or an error that says which method wants one."""
    if sample is None:
        raise InputError(
            f"{method.name} looks at data to decide; give labelled pairs (--data), or other options"
        )
    return sample


def undecided(method: Method) -> SpecError:
    """What `rewrite` says of a method that only `fit` can make definite."""
    return SpecError(
        f"{method.name} looks at the model or at data to decide; apply it to a model, not to its spec"
    )


# Layers and slots ---------------------------------------------------------------------------------


def with_layers(
    spec: ModelSpec, layers: Sequence[LayerSpec], split: int | None = None
) -> ModelSpec:
    """The spec with other layers, and perhaps another split."""
    encoder = replace(spec.encoder, layers=tuple(layers))
    return replace(spec, encoder=encoder, split=spec.split if split is None else split)


def in_slots(weights: Weights, spec: ModelSpec) -> dict[str, Tensor]:
    """The tensors without those of slots that no layer uses."""
    attention = {str(layer.attention_slot) for layer in spec.layers}
    ffn = {str(layer.ffn_slot) for layer in spec.layers}

    def used(name: str) -> bool:
        part, _, rest = name.removeprefix("stack.").partition(".")
        slots = (
            {"attention": attention, "ffn": ffn}.get(part) if name.startswith("stack.") else None
        )
        return slots is None or rest.partition(".")[0] in slots

    return {name: tensor for name, tensor in weights.items() if used(name)}


def slot(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix such as `stack.ffn.3.`, by the rest of their name."""
    return {n[len(prefix) :]: t for n, t in weights.items() if n.startswith(prefix)}


def share_of(total: int, share: float, name: str) -> int:
    """How many of `total` a share is, rounded; the share is checked."""
    if not 0 <= share < 1:
        raise SpecError(f"{name}={share}; choose a share from 0 up to, but not including, 1")
    return round(total * share)
