"""The objective of a model that ranks, reads and retrieves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from decoupled.model.model import Model
from decoupled.model.parts.head import HeadDense, HeadSpec
from decoupled.model.spec import VectorSpec
from decoupled.train.data.batches import Batch
from decoupled.train.data.tasks import TASKS
from decoupled.train.objectives.reader import Neighbours, Reader, read_groups
from decoupled.train.reader import Questions, train_reader
from decoupled.train.recipe import READER, READER_STUDENT, ReaderWeights, Squeeze, override
from decoupled.train.reshape import with_projection
from toy import span_pairs

GROUPS, EACH = 3, 4
TASK = TASKS["squad"]


@pytest.fixture
def reader(model) -> Model:
    rank = HeadSpec(kind="rank", dense=HeadDense(activation="tanh"))
    return model("bert", "bare").with_heads(HeadSpec(kind="span", null=True), rank, seed=1)


@pytest.fixture
def batch() -> Batch:
    draw = torch.Generator().manual_seed(0)
    pairs = GROUPS * EACH
    label = torch.zeros(pairs, 2, dtype=torch.long)
    label[::EACH] = torch.tensor([2, 4])
    real = torch.ones(pairs, 9, dtype=torch.bool)
    real[1, 6:] = False
    return Batch(
        query_ids=torch.randint(5, 900, (GROUPS, 5), generator=draw),
        query_real=torch.ones(GROUPS, 5, dtype=torch.bool),
        passage_ids=torch.randint(5, 900, (pairs, 9), generator=draw),
        passage_real=real,
        label=label,
        score=(torch.arange(pairs) % EACH == 0).float(),
        rows=torch.arange(pairs),
        per_group=EACH,
        query_repeat=EACH,
    )


def student_of(reader: Model) -> Model:
    split = Model.split(reader, at=1)
    spec = replace(split.spec, vector=VectorSpec(width=8))
    return with_projection(split.rebuild(spec, {"did": "add vector"}), 16)


def test_outputs_have_the_shapes_of_the_groups(reader, batch):
    out = read_groups(student_of(reader).net, batch)
    assert out.span.shape == (GROUPS * EACH, 10, 2) and out.rank.shape == (GROUPS, EACH)
    queries, passages = out.vectors
    assert queries.shape == (GROUPS, 8) and passages.shape == (GROUPS * EACH, 8)
    assert torch.allclose(passages.norm(dim=-1), torch.ones(GROUPS * EACH), atol=1e-5)


def test_groups_are_scored_as_the_model_scores_pairs(reader, batch):
    split = Model.split(reader, at=1)
    out = read_groups(split.net, batch)
    repeat = lambda x: x.repeat_interleave(EACH, 0)  # noqa: E731
    query, _ = split.net.input("query", repeat(batch.query_ids), repeat(batch.query_real))
    passage, _ = split.net.input("passage", batch.passage_ids, batch.passage_real)
    logits = split.net.cross(
        query, repeat(batch.query_real), passage, batch.passage_real, heads=["rank", "span"]
    )
    assert torch.allclose(out.rank.flatten(), logits["rank"][:, 0], atol=1e-5)
    assert torch.allclose(out.span[0], logits["span"][0], atol=1e-5)


def test_imitation_costs_nothing_when_student_is_teacher(reader, batch):
    joint = Model.split(reader, at=0)
    only = ReaderWeights(span=0, rank=0, certainty=0, span_kd=1.0, rank_kd=1.0, lrs=1.0)
    recipe = replace(READER, reader=only)
    objective = Reader(joint.net.eval(), TASK, recipe, teacher=joint.net)
    total, parts = objective(batch)
    assert set(parts) == {"span_kd", "rank_kd", "lrs"}
    assert float(total.detach()) == pytest.approx(0, abs=1e-6)


def test_every_loss_reaches_what_it_trains(reader, batch):
    student = student_of(reader).net
    neighbours = Neighbours(
        queries=torch.nn.functional.normalize(torch.randn(GROUPS, 6), dim=-1),
        passages=torch.nn.functional.normalize(torch.randn(GROUPS * EACH, 6), dim=-1),
        query_of=torch.arange(GROUPS * EACH) // EACH,
        passage_of=torch.arange(GROUPS * EACH),
    )
    recipe = replace(READER_STUDENT, squeeze=Squeeze())
    teacher = Model.split(reader, at=0).net
    objective = Reader(student, TASK, recipe, teacher=teacher, neighbours=neighbours)
    total, parts = objective(batch)
    assert set(parts) == {
        "span", "rank", "certainty", "vector", "vector_kd", "span_kd", "rank_kd", "lrs", "reconstruction",
    }  # fmt: skip
    total.backward()
    for name, parameter in student.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    assert all(p.grad is None for p in teacher.parameters())


def test_a_passage_that_two_questions_share_is_wrong_for_neither(reader, batch):
    net = Model.split(reader, at=1).net.eval()
    only = ReaderWeights(span=0, rank=0, certainty=0, vector=1.0)
    objective = Reader(net, TASK, replace(READER, reader=only))
    apart = batch.passage_ids.clone()
    apart[EACH + 1] = apart[0]
    queries, passages = read_groups(net, replace(batch, passage_ids=apart)).vectors
    scores = 20.0 * queries @ passages.T
    scores[0, EACH + 1] = -1e9
    expected = torch.nn.functional.cross_entropy(scores, torch.arange(GROUPS) * EACH)
    total, _ = objective(replace(batch, passage_ids=apart))
    assert torch.allclose(total, expected, atol=1e-5)


def test_negatives_are_told_that_there_is_no_answer(reader, batch):
    """Raising the no-answer logits of the negatives lowers the loss; of the positives it raises it."""
    net = Model.split(reader, at=0).net.eval()
    objective = Reader(net, TASK, READER)
    out = read_groups(net, batch)
    before = objective._span(batch, out)
    bonus = torch.zeros_like(out.span)
    bonus[:, 0] = 3.0
    negatives = (torch.arange(GROUPS * EACH) % EACH > 0)[:, None, None]
    assert objective._span(batch, replace(out, span=out.span + bonus * negatives)) < before
    assert objective._span(batch, replace(out, span=out.span + bonus * ~negatives)) > before


# From questions to a model -------------------------------------------------------------------------


@pytest.fixture
def questions(reader) -> Questions:
    pairs = span_pairs(12)
    texts = list(dict.fromkeys(pair.passage for pair in pairs))
    found = np.full((12, 3), -1)
    found[:, 0] = np.arange(12) % len(texts)
    return Questions(pairs, texts, found, reader.tokenizer)


def test_groups_begin_with_the_answer_and_go_on_without_it(questions):
    groups = questions.groups(2, 3, seed=1)
    assert groups.per_group == 4 and groups.groups == 24 and groups.share == "query"
    assert groups.score.reshape(-1, 4)[:, 0].all() and not groups.score.reshape(-1, 4)[:, 1:].any()
    assert (groups.label[::4] > 0).all()
    for row, (question, window) in enumerate(zip(groups.question, groups.passage_of, strict=True)):
        pair = questions.pairs[question]
        own = questions.texts[window] == pair.passage
        assert own == (row % 4 == 0), "short passages have one window"
    again = questions.groups(1, 3, first=1, seed=1)
    assert np.array_equal(again.passage_of, groups.passage_of[48:]), "an epoch is its number's"


def test_a_reader_and_its_student_are_trained_copies(reader, questions):
    lines = []
    whole = Model.split(reader, at=0)
    recipe = override(READER, {"optimiser.batch": 4, "watch.log_every": 1})
    teacher = train_reader(
        whole, questions, questions.groups(1, 2), recipe=recipe, progress=lines.append
    )
    assert [line["step"] for line in lines] == [1, 2, 3] and "rank" in lines[0]
    before, after = whole.net.state_dict(), teacher.net.state_dict()
    assert all(before[n].shape == after[n].shape for n in before)
    assert any(not torch.equal(before[n], after[n]) for n in before)
    student = train_reader(
        student_of(teacher),
        questions,
        questions.groups(1, 2),
        teacher=teacher,
        retriever=reader,
        recipe=replace(READER_STUDENT, optimiser=recipe.optimiser),
        progress=lines.append,
    )
    assert {"vector_kd", "span_kd", "lrs", "reconstruction"} <= set(lines[-1])
    assert student.spec == student_of(teacher).spec
