"""`train_reader`: from datasets to one model that ranks, reads and, as a split student, retrieves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from added_parts import with_late, with_vector
from held_out import learn_scores
from lesson import Lesson
from mixture import Dataset
from reader_recipe import ReaderSettings, reader_recipe
from rounds import Teachers

from decoupled.errors import InputError
from decoupled.model import annex
from decoupled.model.model import Model
from decoupled.model.parts.head import HeadDense, HeadKind, HeadSpec
from decoupled.train.loop import checkpoint
from decoupled.train.place import Progress
from decoupled.train.recipe import Recipe, override
from decoupled.train.reshape import teacher_of, with_projection
from decoupled.train.run import Setting, keep

HEADS = (
    HeadSpec(kind="span", null=True),
    HeadSpec(kind="rank", dense=HeadDense(activation="tanh")),
)
"""What a reader has; those that a model lacks are added."""
TEACHER_SHARE = 0.35
"""Of the minutes, for a teacher that must be trained first."""

Guide = Model | Mapping[HeadKind, Model | Sequence[Model]]


def train_reader(  # noqa: PLR0913 (the options of the command)
    model: Model,
    *,
    data: Sequence[str | Path | Dataset],
    at: int | None = None,
    projection: int | None = None,
    vector: int | None = None,
    vector_layers: int = 0,
    late: int | None = None,
    teacher: Guide | None = None,
    retriever: Model | None = None,
    recipe: Recipe | None = None,
    minutes: float | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Model:
    """A copy of the model, trained on a mixture of datasets to rank passages and to read answers in them.

    A dataset is a file of pairs (SQuAD's layout, or jsonl with `query`, `passage` and perhaps `title` and
    `answers`) or of passages alone, for which queries are made; `"pairs.jsonl=2"` counts each query twice.
    Hard negatives are mined by BM25 and by the vectors of `retriever`, a sentence encoder whose similarities
    also soften the labels.

    At split 0 that is an ordinary cross-encoder. `at` another layer (or where the model is split already) it
    is a student of `teacher`; where none is given, the joint model is trained first. Heads may have teachers
    of their own: `{"rank": one, "span": [other, another]}`. The student may have a learned `projection`, a
    `vector` for the first stage (with layers of its own, trained in a last phase) and a projection for `late`
    interaction, each of the given width.

    With `minutes`, the run ends by the clock. With `out` the model is saved there, and the queries that were
    set aside say what its scores mean; what was mined, what the teachers said and the checkpoint lie beside
    it in `out.run`, so that the same call goes on after a stop.
    """
    recipe = reader_recipe() if recipe is None else recipe
    if minutes is not None:
        recipe = override(recipe, {"optimiser.minutes": minutes, "optimiser.epochs": 1e4})
    work = checkpoint.work_folder(out) if out else None
    sets = [one if isinstance(one, Dataset) else Dataset.read(one) for one in data]
    lesson = Lesson(sets, model, retriever, recipe, Setting(out=work, progress=progress))
    student = _with_heads(model, recipe.seed)
    split = model.spec.split if at is None else at
    alone = recipe.objective == "exits"
    if split and teacher is None and not alone:
        first, recipe = _divided(recipe)
        teacher = lesson.joint(teacher_of(student), first)
        student = student if at is None else teacher
    student = student if at is None else Model.split(student, at=at)
    before = student.spec
    if projection is not None:
        student = with_projection(student, projection)
    if vector is not None:
        student = with_vector(student, vector, layers=vector_layers, start=retriever)
    if late is not None:
        student = with_late(student, late)
    if (alone or recipe.of(ReaderSettings).weights.exits) and not student.spec.exits:
        student = annex.load("exits.model").with_exits(student)
    trained = lesson.train(student, recipe, before, _teachers(teacher))
    if alone:  # its scores are what they were
        trained.net.spec = replace(trained.spec, scoring=model.spec.scoring)
    if out is None:
        return trained
    keep(trained, out)
    if split and not alone and learn_scores(out, lesson.mixture, lesson.pool.negatives):
        return Model.load(out)
    return trained


def _with_heads(model: Model, seed: int) -> Model:
    """The model with both heads, those that it lacks at random; its spans learn to say that there is none."""
    own = tuple(
        replace(head, null=True) if head.kind == "span" else head for head in model.spec.heads
    )
    if own != model.spec.heads:
        model = model.rebuild(replace(model.spec, heads=own), {"did": "learn no answer"})
    lacking = [head for head in HEADS if head.kind not in {head.kind for head in own}]
    return model.with_heads(*lacking, seed=seed) if lacking else model


def _divided(recipe: Recipe) -> tuple[Recipe, Recipe]:
    """For teacher and student: the minutes are divided, the epochs are those of each."""
    minutes = recipe.optimiser.minutes
    if minutes is None:
        return recipe, recipe
    own = override(recipe, {"optimiser.minutes": TEACHER_SHARE * minutes})
    return own, override(recipe, {"optimiser.minutes": (1 - TEACHER_SHARE) * minutes})


def _teachers(given: Guide | None) -> Teachers | None:
    if given is None:
        return None
    named = {h.kind: given for h in given.spec.heads} if isinstance(given, Model) else given
    lists = {h: [m] if isinstance(m, Model) else list(m) for h, m in named.items()}
    heads: tuple[HeadKind, ...] = ("rank", "span")
    if not any(lists.get(head) for head in heads):
        raise InputError("the teacher has neither a rank head nor a span head; choose another")
    for head, models in lists.items():
        for model in models:
            model.spec.head(head)
    rank, span = (tuple(model.net for model in lists.get(head, ())) for head in heads)
    return Teachers(rank=rank, span=span)
