"""`train_reader`: one model that ranks, reads and, as a split student, retrieves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoupled.index.documents import Pair
from decoupled.model.model import Model
from decoupled.model.parts.head import HeadDense, HeadSpec
from decoupled.model.spec import Side
from decoupled.model.states import Ragged, batches_by_length
from decoupled.model.tokens import Tokenizer
from decoupled.train.data.batches import Batches
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import answer_rows
from decoupled.train.data.tasks import TASKS
from decoupled.train.forward import EVALUATION_TOKENS, autocast
from decoupled.train.loop import Phase, Progress, accelerator_for, fit
from decoupled.train.objectives.codec import codec_phase, start_projection
from decoupled.train.objectives.reader import Neighbours, Reader
from decoupled.train.recipe import READER, Optimiser, Recipe
from decoupled.train.run import compile_layers

TASK = replace(TASKS["squad"], null=True)
HEADS = (
    HeadSpec(kind="span", null=True),
    HeadSpec(kind="rank", dense=HeadDense(activation="tanh")),
)
"""What a model must have to be trained as a reader; `Model.with_heads` adds them."""


Row = tuple[int, int, int, int, int]
"""Question, window, rows of start and end, and whether the window is the question's own."""


class Questions:
    """Answered questions and all passages, tokenised once; negatives are drawn anew for each epoch.

    `negatives[question]` are numbers of passages that a search found, -1 where there are no more; where they
    run out, any of the first `drawn_from` passages will do.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        texts: Sequence[str],
        negatives: npt.NDArray[np.int64],
        tokenizer: Tokenizer,
        *,
        drawn_from: int | None = None,
    ) -> None:
        self.pairs, self.texts, self.negatives = pairs, texts, negatives
        self.number = {text: n for n, text in enumerate(texts)}
        self.drawn_from = drawn_from or len(texts)
        self.windows = tokenizer.windows(texts)
        self.first = np.concatenate([[0], np.cumsum([len(w) for w in self.windows])[:-1]])
        self.passages = Ragged.stack([w.ids for windows in self.windows for w in windows])
        self.queries = Ragged.stack(tokenizer.queries([pair.query for pair in pairs]))

    def groups(self, epochs: int, negatives: int, *, first: int = 0, seed: int = 0) -> Examples:
        """Every question once in each of the epochs from `first` on, with other negatives each time."""
        rows: list[Row] = []
        for epoch in range(first, first + epochs):
            draw = np.random.default_rng([seed, epoch])
            for number, pair in enumerate(self.pairs):
                rows += self._group(number, pair, negatives, draw)
        table = np.asarray(rows, np.int32)
        return Examples(
            queries=self.queries,
            passages=self.passages,
            query_of=table[:, 0],
            passage_of=table[:, 1],
            label=table[:, 2:4],
            score=table[:, 4].astype(np.float32),
            question=table[:, 0],
            part=table[:, 0],
            per_group=1 + negatives,
            share="query",
        )

    def _group(
        self, number: int, pair: Pair, negatives: int, draw: np.random.Generator
    ) -> list[Row]:
        """The question's own window with its answer, then windows of passages without the answer."""
        gold = self.number[pair.passage]
        labels = ((n, answer_rows(pair, window)) for n, window in enumerate(self.windows[gold]))
        own = next(((n, label) for n, label in labels if label is not None), None)
        if own is None:
            return []
        rows = [(number, int(self.first[gold]) + own[0], *own[1], 1)]
        answer = pair.answers[0].text.lower()
        hard = [int(i) for i in draw.permutation(self.negatives[number]) if i >= 0 and i != gold]
        while len(rows) <= negatives:
            if not hard:
                # Nothing is left that a search confused with it: any other one to train on will do.
                other = int(draw.integers(self.drawn_from))
            elif answer in self.texts[other := hard.pop()].lower():
                continue
            if other == gold:
                continue
            shift = int(draw.integers(len(self.windows[other])))
            rows.append((number, int(self.first[other]) + shift, 0, 0, 0))
        return rows


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
        alone = replace(recipe, optimiser=Optimiser(batch=recipe.optimiser.batch))
        first = Batches(one, device, pad=model.spec.text.pad)
        fit(codec_phase(student.net, TASK, alone, first), accelerator_for(recipe))
    guide = teacher.net.to(device).requires_grad_(False) if teacher else None
    if device.type == "cuda":
        compile_layers(student.net, guide)
    near = _neighbours(retriever, questions, groups, device) if retriever else None
    objective = Reader(student.net, TASK, recipe, teacher=guide, neighbours=near)
    phase = Phase(objective=objective, batches=batches, recipe=recipe, progress=progress)
    fit(phase, accelerator_for(recipe))
    return student


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
