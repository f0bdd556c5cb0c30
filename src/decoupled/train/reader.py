"""`train_reader`: one model that ranks, reads and, as a split student, retrieves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoupled.model.model import Model
from decoupled.model.parts.head import HeadDense, HeadSpec
from decoupled.model.spec import Side
from decoupled.model.states import Ragged, batches_by_length
from decoupled.train.data.batches import Batches
from decoupled.train.data.examples import Examples
from decoupled.train.data.questions import Questions
from decoupled.train.data.tasks import TASKS
from decoupled.train.forward import EVALUATION_TOKENS, autocast
from decoupled.train.loop import Phase, Progress, accelerator_for, fit
from decoupled.train.objectives.codec import Codec, start_projection
from decoupled.train.objectives.reader import Neighbours, Reader
from decoupled.train.recipe import READER, Optimiser, Recipe
from decoupled.train.run import compile_layers

TASK = replace(TASKS["squad"], null=True)
HEADS = (
    HeadSpec(kind="span", null=True),
    HeadSpec(kind="rank", dense=HeadDense(activation="tanh")),
)
"""What a model must have to be trained as a reader; `Model.with_heads` adds them."""


def train_reader(
    model: Model,
    questions: Questions,
    groups: Examples,
    *,
    teacher: Model | None = None,
    retriever: Model | None = None,
    recipe: Recipe = READER,
    progress: Progress | None = None,
) -> Model:
    """A trained copy of a model with both `HEADS`, on groups that hold every epoch.

    A student takes `READER_STUDENT` and its teacher. Its vectors follow those of `retriever`, a sentence
    encoder; its projection, where it has one, is first trained alone.
    """
    accelerator = accelerator_for(replace(recipe, precision="fp32"))
    device = accelerator.device
    if device.type == "cpu":
        recipe = replace(recipe, precision="fp32")
    student = model.rebuild(model.spec, {"did": "train reader"}).to(device)
    batches = Batches(groups, device, pad=model.spec.text.pad)
    if model.spec.projection is not None:
        start_projection(student.net, batches, TASK, recipe)
        one = questions.groups(1, groups.per_group - 1, seed=recipe.seed)
        fit(_codec(student, one, recipe, device), accelerator_for(recipe))
    guide = teacher.net.to(device).requires_grad_(False) if teacher else None
    if device.type == "cuda":
        compile_layers(student.net)
        if guide is not None:
            compile_layers(guide)
    near = _neighbours(retriever, questions, groups, device) if retriever else None
    objective = Reader(student.net, TASK, recipe, teacher=guide, neighbours=near)
    phase = Phase(objective=objective, batches=batches, recipe=recipe, progress=progress)
    fit(phase, accelerator_for(recipe))
    return student


def _codec(student: Model, groups: Examples, recipe: Recipe, device: torch.device) -> Phase:
    settings, squeeze = recipe.optimiser, recipe.squeeze
    own = Optimiser(lr=squeeze.lr, epochs=squeeze.epochs, batch=settings.batch, decay=0.0)
    return Phase(
        objective=Codec(student.net, TASK, recipe),
        batches=Batches(groups, device, pad=student.spec.text.pad),
        recipe=replace(recipe, optimiser=own),
        name="codec",
    )


def _neighbours(
    retriever: Model, questions: Questions, groups: Examples, device: torch.device
) -> Neighbours:
    """Vectors of a base encoder read as the sentence encoder that it is: whole depth, mean of all."""
    whole = Model.split(retriever, at=len(retriever.spec.layers), positions="restart").to(device)
    start = np.asarray(retriever.spec.text.query_prefix, np.int32)
    texts = [np.concatenate([start, ids.astype(np.int32)])[:256] for ids in questions.passages]
    return Neighbours(
        queries=vectors_of(whole, list(questions.queries)),
        passages=vectors_of(whole, texts),
        query_of=torch.from_numpy(groups.query_of).long().to(device),
        passage_of=torch.from_numpy(groups.passage_of).long().to(device),
    )


@torch.inference_mode()
def vectors_of(model: Model, texts: Sequence[npt.NDArray[Any]], side: Side = "query") -> Tensor:
    """Unit vectors of tokenised texts on the model's device, in half precision."""
    device = model.device
    lengths = np.fromiter((len(text) for text in texts), np.int64, len(texts))
    found = torch.zeros(len(texts), model.spec.vector_width, dtype=torch.half, device=device)
    for batch in batches_by_length(lengths, EVALUATION_TOKENS):
        padded, real = Ragged.stack([texts[i] for i in batch]).pad()
        ids = torch.from_numpy(padded.astype(np.int64)).to(device)
        mask = torch.from_numpy(real).to(device)
        with autocast(device, "bf16" if device.type == "cuda" else "fp32"):
            h = model.net.hidden(side, ids, mask)
        found[torch.from_numpy(batch).to(device)] = model.net.pool(h.float(), mask).half()
    return found
