"""Models made ready for training: their teacher, a projection at the split, a vector, other lengths."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from decoupled.errors import InputError, SpecError
from decoupled.measure.pairs import Pair
from decoupled.model import annex
from decoupled.model.model import Model
from decoupled.model.spec import CrossEmbed, ModelSpec, OneWay, ProjectionSpec
from decoupled.model.split import unsplit, with_one_way
from decoupled.model.written import one_way_layers
from decoupled.train.recipe import Recipe
from decoupled.train.settings import PairTraining

SCRATCH = "pretrain.scratch"
"""The module, among the methods, of models that begin at random."""


def teacher_of(model: Model) -> Model:
    """The joint model with the same weights, as it was before the split."""
    return model.rebuild(unsplit(model.spec), {"did": "unsplit"})


def reshaped(model: Model, *, at: int | None, one_way: OneWay, projection: int | None) -> Model:
    """The model split, with one-way layers and with a projection, as far as they are given."""
    if at is not None:
        model = Model.split(model, at=at)
    if one_way:
        model = with_one_way_layers(model, one_way)
    return model if projection is None else with_projection(model, projection)


@dataclass(frozen=True, kw_only=True)
class OpenedTraining:
    """A student with its data, its recipe and, where one is named, its teacher."""

    student: Model
    teacher: Model | None
    recipe: Recipe
    pairs: list[Pair]


def open_training(
    options: PairTraining, changes: Mapping[str, Any], pairs: list[Pair]
) -> OpenedTraining:
    """The models and the recipe that the options of a command name, for these pairs."""
    from decoupled.train.run import recipe

    chosen = recipe(options.recipe, changes, pairs=len(pairs))
    student, teacher = open_models(options, chosen.seed)
    return OpenedTraining(student=student, teacher=teacher, recipe=chosen, pairs=pairs)


def open_models(options: PairTraining, seed: int) -> tuple[Model, Model | None]:
    """The student as a command wants it trained, and its teacher where one is named.

    By a `spec` the student begins at random, and the model is its teacher.
    """
    student = whole = Model.open(options.model)
    guide = Model.open(options.teacher) if options.teacher else None
    if options.spec is not None:
        student = annex.load(SCRATCH).described(whole, options.spec, seed)
        guide = guide or (None if options.recipe == "plain" else whole)
    split = whole.spec.split if options.at is None else options.at
    if not split and guide is None and options.recipe != "plain":
        raise InputError(
            f"{options.model} is not split, so its teacher would be itself; give at=K, name a teacher, or "
            "train on the labels alone with the recipe plain"
        )
    one_way = one_way_layers(options.one_way)
    student = reshaped(student, at=options.at, one_way=one_way, projection=options.projection)
    if guide is not None and not same_tokens(guide, student):
        raise InputError(
            f"{options.teacher} has another tokenizer than {options.model}; choose a teacher that reads "
            "the same tokens"
        )
    return student, guide


def same_tokens(a: Model, b: Model) -> bool:
    """Whether both models read texts as the same tokens."""
    # Settings around the vocabulary may differ, such as padding; token ids must not.
    one, other = (json.loads(model.tokenizer.json)["model"]["vocab"] for model in (a, b))
    return bool(one == other)


def with_one_way_layers(model: Model, layers: OneWay) -> Model:
    """The model with these cross layers one-way (counted from 1, or `auto`); the weights stay."""
    spec = with_one_way(model.spec, layers)
    return model.rebuild(spec, {"did": "one way", "layers": list(spec.one_way)})


def with_projection(model: Model, width: int, *, query: bool = True) -> Model:
    """The model with a learned bottleneck of that width at its split; it starts at random."""
    if not 1 <= width <= model.spec.encoder.width:
        raise SpecError(
            f"projection width={width}, but states are {model.spec.encoder.width} wide; "
            f"choose 1..{model.spec.encoder.width}"
        )
    spec = replace(model.spec, projection=ProjectionSpec(width=width, query=query))
    return model.rebuild(spec, {"did": "add projection", "width": width})


def with_tables(model: Model, tables: CrossEmbed) -> Model:
    """The split model with tables at its split, which start as those of its input.

    A joint model, one that has tables and one without learned positions stay as they are.
    """
    spec = model.spec
    if not spec.split or spec.cross_embed != "none" or not spec.encoder.embedding.positions:
        return model
    return model.rebuild(replace(spec, cross_embed=tables), {"did": "add tables"})


def with_bits(spec: ModelSpec, bits: int | None) -> ModelSpec:
    """The spec of a model whose learned projection is trained with codes of so many bits."""
    if spec.projection is None or bits is None:
        return spec
    return replace(spec, projection=replace(spec.projection, bits=bits))


def with_text(
    model: Model,
    *,
    query_tokens: int | None = None,
    passage_tokens: int | None = None,
    stride: int | None = None,
) -> Model:
    """The model with other lengths of query and window; the stride is kept within the window."""
    text = model.spec.text
    text = replace(
        text,
        query_tokens=query_tokens or text.query_tokens,
        passage_tokens=passage_tokens or text.passage_tokens,
    )
    room = text.passage_tokens - len(text.passage_prefix) - len(text.passage_suffix)
    text = replace(text, stride=min(stride or text.stride, room))
    return model.rebuild(replace(model.spec, text=text), {"did": "set lengths"})
