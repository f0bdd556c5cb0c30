"""The objective of a model that ranks, reads and retrieves."""

from __future__ import annotations

from dataclasses import replace

import held_out
import pytest
import torch
from added_parts import with_late, with_vector
from lesson import Lesson
from mixture import Dataset
from reader import HEADS, train_reader
from reader_objective import Reader, all_spans, rank_target
from reader_recipe import READER, ReaderSettings, ReaderWeights, Sampling, as_student
from rounds import ReaderBatch, Teachers
from vector_objective import nearest_turn, principal_axes

from decoupled.errors import InputError
from decoupled.methods.exits.model import with_exits
from decoupled.model.jsonable import to_json
from decoupled.model.model import Model
from decoupled.model.scoring import Scoring
from decoupled.train.data.tasks import TASKS
from decoupled.train.loop import checkpoint
from decoupled.train.loop.forward import Pass
from decoupled.train.losses import UNLABELLED
from decoupled.train.objectives.adapt import read_groups
from decoupled.train.objectives.base import read_recipe
from decoupled.train.recipe import Optimiser, Recipe, override, recipe_from
from decoupled.train.reshape import with_projection
from decoupled.train.run import Setting
from toy import reader_sets

GROUPS, EACH = 3, 4
TASK = TASKS["squad"]


@pytest.fixture
def reader(model) -> Model:
    return model("bert", "bare").with_heads(*HEADS, seed=1)


@pytest.fixture
def batch() -> ReaderBatch:
    draw = torch.Generator().manual_seed(0)
    pairs = GROUPS * EACH
    label = torch.zeros(pairs, 2, dtype=torch.long)
    label[::EACH] = torch.tensor([2, 4])
    real = torch.ones(pairs, 9, dtype=torch.bool)
    real[1, 6:] = False
    unit = torch.nn.functional.normalize
    return ReaderBatch(
        query_ids=torch.randint(5, 900, (GROUPS, 5), generator=draw),
        query_real=torch.ones(GROUPS, 5, dtype=torch.bool),
        passage_ids=torch.randint(5, 900, (pairs, 9), generator=draw),
        passage_real=real,
        label=label,
        score=(torch.arange(pairs) % EACH == 0).float(),
        rows=torch.arange(pairs),
        per_group=EACH,
        query_repeat=EACH,
        soft=torch.tensor([0.4, 0.85, 1.0]),
        aims=(unit(torch.randn(GROUPS, 6), dim=-1), unit(torch.randn(pairs, 6), dim=-1)),
    )


def taught(batch: ReaderBatch, teacher: Model) -> ReaderBatch:
    rank, span = Teachers(rank=[teacher.net], span=[teacher.net]).logits(batch)
    return replace(batch, rank=rank, span=span)


def weighted(weights: ReaderWeights) -> Recipe:
    return replace(READER, settings=ReaderSettings(weights=weights))


def student_of(reader: Model) -> Model:
    split = with_exits(with_projection(Model.split(reader, at=1), 16))
    return with_late(with_vector(split, 6, layers=1), 4)


def test_outputs_have_the_shapes_of_the_groups(reader, batch):
    out = read_groups(student_of(reader).net, batch)
    assert out.span.shape == (GROUPS * EACH, 10, 2) and out.rank.shape == (GROUPS, EACH)
    queries, passages = out.vectors
    assert queries.shape == (GROUPS, 6) and passages.shape == (GROUPS * EACH, 6)
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
    none = dict.fromkeys(("span", "no_answer", "rank", "certainty"), 0.0)
    only = ReaderWeights(**none, span_kd=1.0, rank_kd=1.0, margin=1.0, lrs=1.0)
    objective = Reader(joint.net.eval(), TASK, weighted(only), teacher=joint.net)
    total, parts = objective(taught(batch, joint))
    assert set(parts) == {"span_kd", "rank_kd", "margin", "lrs"}
    assert float(total.detach()) == pytest.approx(0, abs=1e-6)


def test_every_loss_reaches_what_it_trains(reader, batch):
    student, teacher = student_of(reader).net, Model.split(reader, at=0)
    recipe = as_student(READER)
    weights = replace(recipe.settings.weights, lrs=0.5, exits=0.5)
    recipe = replace(recipe, settings=replace(recipe.settings, weights=weights))
    total, parts = Reader(student, TASK, recipe, teacher=teacher.net)(taught(batch, teacher))
    assert set(parts) == set(vars(weights)), "each has a weight"
    total.backward()
    for name, parameter in student.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    assert all(p.grad is None for p in teacher.net.parameters())


def test_the_target_of_a_ranking_is_the_label_as_far_as_there_is_one(batch):
    target, known = rank_target(batch)
    assert torch.allclose(target.sum(1), torch.ones(GROUPS)) and known.all()
    near = torch.einsum("gv,gcv->gc", batch.aims[0], batch.aims[1].view(GROUPS, EACH, -1))
    soft = (20 * near).softmax(1)
    assert torch.allclose(target[2], soft[2], atol=1e-6), "nothing is labelled there"
    assert torch.allclose(target[0, 1:], 0.4 * soft[0, 1:], atol=1e-6)
    target, known = rank_target(replace(batch, aims=None))
    assert target[:, 0].tolist() == [1, 1, 1] and known.tolist() == [True, True, False]


def test_all_spans_are_weighed_against_no_answer():
    logits = torch.randn(2, 7, 2, generator=torch.Generator().manual_seed(0))
    real = torch.ones(2, 6, dtype=torch.bool)
    real[1, 4:] = False
    found = all_spans(logits, real, 1, 1, longest=2)
    for row, last in enumerate((4, 2)):
        spans = [
            logits[row, 1 + a, 0] + logits[row, 1 + b, 1]
            for a in range(1, last + 1)
            for b in range(a, min(a + 2, last + 1))
        ]
        expected = torch.stack(spans).logsumexp(0) - logits[row, 0].sum()
        assert float(found[row]) == pytest.approx(float(expected), abs=1e-5)


def test_a_passage_that_two_questions_share_is_wrong_for_neither(reader, batch):
    net = Model.split(reader, at=1).net.eval()
    only = ReaderWeights(span=0, no_answer=0, rank=0, certainty=0, vector=1.0)
    objective = Reader(net, TASK, weighted(only))
    apart = batch.passage_ids.clone()
    apart[EACH + 1] = apart[0]
    queries, passages = read_groups(net, replace(batch, passage_ids=apart)).vectors
    scores = 20.0 * queries @ passages.T
    scores[0, EACH + 1] = -1e9
    # What is known to hold no answer has nothing to find.
    own = torch.arange(GROUPS) * EACH
    expected = torch.nn.functional.cross_entropy(scores[:2], own[:2])
    total, _ = objective(replace(batch, passage_ids=apart))
    assert torch.allclose(total, expected, atol=1e-5)


def test_negatives_are_told_that_there_is_no_answer(reader, batch):
    """Raising the no-answer logits of the negatives lowers the losses; of the positives it raises them."""
    net = Model.split(reader, at=0).net.eval()
    objective = Reader(net, TASK, READER)
    out = read_groups(net, batch)
    bonus = torch.zeros_like(out.span)
    bonus[:, 0] = 3.0
    negatives = (torch.arange(GROUPS * EACH) % EACH > 0)[:, None, None]
    for loss in (objective._span, objective._no_answer):
        before = loss(batch, out.span)
        assert loss(batch, out.span + bonus * negatives) < before
        assert loss(batch, out.span + bonus * ~negatives) > before
    unknown = replace(batch, label=torch.full_like(batch.label, UNLABELLED))
    assert float(objective._no_answer(unknown, out.span)) == 0


def test_vectors_are_turned_without_a_change_of_their_angles():
    draw = torch.Generator().manual_seed(0)
    given = torch.nn.functional.normalize(torch.randn(200, 6, generator=draw), dim=-1)
    given[:, :2] *= 4
    axes = principal_axes(given)
    assert torch.allclose(axes.T @ axes, torch.eye(6), atol=1e-5)
    spread = (given @ axes).square().mean(0)
    assert (spread[:-1] >= spread[1:] - 1e-6).all(), "the first values say most"
    turn = nearest_turn(given, (given @ axes)[:, :4])
    assert torch.allclose((given @ turn)[:, :4], (given @ axes)[:, :4], atol=1e-4)
    assert torch.allclose(turn.T @ turn, torch.eye(6), atol=1e-5)


# From datasets to a model --------------------------------------------------------------------------

TINY = replace(
    READER,
    optimiser=Optimiser(lr=3e-3, epochs=2.0, batch=4, accumulate=2, ema=0.9),
    settings=ReaderSettings(
        sampling=Sampling(read=8, passages=4, tokens=64, steps=6, rounds=2, mined=6)
    ),
    precision="fp32",
)
SHAPE = {"at": 1, "projection": 16, "vector": 8, "vector_layers": 1, "late": 4}


@pytest.fixture(scope="module")
def base(model) -> Model:
    return model("bert", "bare", initializer_range=0.08)


def test_the_loss_falls_and_teacher_and_student_are_trained_copies(base):
    lines = []
    recipe = override(TINY, {"optimiser.epochs": 3.0, "watch.log_every": 8, "drawing.rounds": 1})
    made = train_reader(
        base, data=reader_sets(), retriever=base, recipe=recipe, progress=lines.append, **SHAPE
    )
    assert made.spec.split == 1 and made.spec.vector_width == 8 and made.spec.late.width == 4
    assert {head.kind for head in made.spec.heads} == {"span", "rank"}
    order = list(dict.fromkeys(line["phase"] for line in lines))
    vectors = ["query vectors", "passage vectors"]
    mined = ["bm25", "dense", "signatures", "negatives"]
    assert order == [*vectors, *mined, "train", "read-0", "rank-0", "vector"]
    told = [line for line in lines if "loss" in line]
    again = next(n for n, line in enumerate(told) if n and line["step"] < told[n - 1]["step"])
    teacher, student = told[:again], [line for line in told[again:] if line["phase"] == "train"]
    assert teacher[-1]["loss"] < 0.8 * teacher[0]["loss"] and "rank_kd" not in teacher[0]
    assert student[-1]["rank_kd"] < student[0]["rank_kd"]
    assert student[-1]["vector_kd"] < student[0]["vector_kd"]
    vector = [line for line in told if line["phase"] == "vector"]
    assert vector[-1]["loss"] < vector[0]["loss"]


def test_exits_alone_learn_what_the_last_layer_says(base):
    """Nothing else moves, and what was learnt about the scores stays."""
    split = Model.split(base.with_heads(*HEADS, seed=1), at=1)
    split.net.spec = replace(split.spec, scoring=Scoring(bm25=0.5))
    lines = []
    changes = {"objective": "exits", "optimiser.epochs": 3.0, "optimiser.lr": 2e-2}
    recipe = override(TINY, changes | {"watch.log_every": 8, "drawing.rounds": 1})
    made = train_reader(split, data=reader_sets(), recipe=recipe, progress=lines.append)
    assert [one.layer for one in made.spec.exits] == [2] and made.spec.scoring == split.spec.scoring
    before, after = split.net.state_dict(), made.net.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    told = [line["exits"] for line in lines if "exits" in line]
    assert told[-1] < 0.6 * told[0]


def test_exits_are_those_of_the_model(reader, batch):
    split = with_exits(Model.split(reader, at=1))
    torch.nn.init.normal_(split.net.exits["2"].out.weight)
    out = read_groups(split.net, batch, Pass(exits=True))
    repeat = lambda x: x.repeat_interleave(EACH, 0)  # noqa: E731
    query, _ = split.net.input("query", repeat(batch.query_ids), repeat(batch.query_real))
    passage, _ = split.net.input("passage", batch.passage_ids, batch.passage_real)
    sides = query, repeat(batch.query_real), passage, batch.passage_real
    for last, found in ((2, out.exits[0]), (None, out.rank)):
        logits = split.net.cross(*sides, heads=["rank"], last=last)["rank"]
        assert torch.allclose(found.flatten(), logits[:, 0], atol=1e-5)


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_ends_with_the_same_bits(base, tmp_path):
    recipe = override(TINY, {"watch.log_every": 4, "watch.save_every": 4})
    asked = {"data": reader_sets(), "retriever": base, "recipe": recipe, **SHAPE}
    whole = train_reader(base, out=tmp_path / "whole", **asked)
    for phase, at, before in (("train", 8, 0), ("rank-0", 0, 1), ("train", 8, 1), ("vector", 4, 1)):
        seen = {"teachers": 0}

        def die(line, phase=phase, at=at, before=before, seen=seen):
            seen["teachers"] += line["phase"] == "rank-0"
            later = seen["teachers"] >= before and (before or not seen["teachers"])
            if line["phase"] == phase and line["step"] > at and later:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_reader(base, out=tmp_path / "cut", progress=die, **asked)
    again = train_reader(base, out=tmp_path / "cut", **asked)
    ours, theirs = again.net.state_dict(), whole.net.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    loaded = Model.load(tmp_path / "cut").net.state_dict()
    assert all(torch.equal(loaded[name], theirs[name]) for name in theirs)
    assert not checkpoint.exists(tmp_path / "cut.run")


def test_kept_targets_are_what_the_teachers_say(base, tmp_path):
    lesson = Lesson(reader_sets(), base, None, TINY, Setting(out=tmp_path))
    readers = [base.with_heads(*HEADS, seed=n) for n in (1, 2)]
    nets = [Model.split(reader, at=0).net for reader in readers]
    for teachers in (
        Teachers(rank=nets[:1], span=nets[1:]),
        Teachers(rank=nets),
        Teachers(span=nets[:1]),
    ):
        rounds = lesson._rounds(readers[0], TINY, base.spec, teachers)
        for batch in rounds.walk(rounds.epoch(0, 1)):
            rank, span = teachers.logits(batch)
            assert (rank is None) == (batch.rank is None) and (span is None) == (batch.span is None)
            if rank is not None:
                assert torch.allclose(batch.rank, rank, atol=2e-3, rtol=2e-3)
            if span is not None:
                real = batch.span_real
                assert torch.allclose(batch.span[real], span[real], atol=2e-3, rtol=2e-3)
                assert not batch.span[~real].any()
    alone = Teachers(rank=nets[1:])
    apart, both = (alone.logits(batch)[0], Teachers(rank=nets).logits(batch)[0])
    assert not torch.allclose(apart, both), "several teachers are averaged"


def test_a_round_that_comes_again_asks_no_teacher(base, tmp_path, monkeypatch):
    lesson = Lesson(reader_sets(), base, None, TINY, Setting(out=tmp_path))
    net = Model.split(base.with_heads(*HEADS), at=0).net
    rounds = lesson._rounds(base, TINY, base.spec, Teachers(rank=[net]))
    first = [batch.rank for batch in rounds.walk(rounds.epoch(0, 0))]
    rounds.epoch(0, 1)
    monkeypatch.setattr(Teachers, "logits", None)
    again = [batch.rank for batch in rounds.walk(rounds.epoch(0, 2))]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_queries_that_were_set_aside_say_what_scores_mean(base, tmp_path, monkeypatch):
    monkeypatch.setattr(held_out, "QUERIES", 3)
    recipe = override(TINY, {"drawing.held": 0.65})
    out = tmp_path / "m"
    made = with_vector(Model.split(base.with_heads(*HEADS), at=1), 8)
    made.save(out)
    pairs = Dataset(name="pairs", pairs=reader_sets()[1].pairs)
    lesson = Lesson([pairs], base, None, recipe, Setting())
    assert held_out.learn_scores(out, lesson.mixture, lesson.pool.negatives)
    assert Model.load(out).spec.scoring is not None
    lesson = Lesson(reader_sets(), base, None, recipe, Setting())
    reading, pairs = held_out.held_fields(lesson.mixture, lesson.pool.negatives)
    assert (reading.name, pairs.name) == ("reading", "pairs")
    held = {asked.query for asked in lesson.mixture.asked if asked.held}
    assert {query.text for query in (*reading.queries, *pairs.queries)} <= held
    assert any(not pair.answers for pair in reading.pairs), "also those that have no answer"
    assert len(pairs.passages) > len(pairs.queries), "what was mined stands in the corpus"


def test_a_model_whose_scores_mean_nothing_is_kept_all_the_same(
    base, tmp_path, monkeypatch, caplog
):
    def always_wrong(*given):
        raise InputError("all judgments are alike")

    monkeypatch.setattr(held_out, "QUERIES", 3)
    monkeypatch.setattr(held_out, "fit_scoring", always_wrong)
    recipe = override(TINY, {"optimiser.epochs": 0.4, "drawing.held": 0.5})
    out = tmp_path / "m"
    train_reader(
        base, data=reader_sets(), at=1, teacher=base.with_heads(*HEADS), recipe=recipe, out=out
    )
    assert Model.load(out).spec.split == 1
    assert "are not calibrated: all judgments are alike" in caplog.text


def test_weights_set_by_hand_stay_for_a_student():
    plain, given = (
        as_student(READER).settings.weights,
        override(READER, {"reader.lrs": 0.5, "reader.rank": 0.7}),
    )
    assert plain.span_kd == 1.0 and plain.lrs == 0
    assert as_student(given).settings.weights == replace(plain, lrs=0.5, rank=0.7)


def test_reading_counts_as_much_as_ranking():
    weights = READER.settings.weights
    assert (weights.span, weights.rank, weights.certainty) == (1.0, 1.0, 0.2)
    assert not TASKS["squad"].swap


def test_a_recipe_of_an_earlier_version_is_this_one():
    plain = to_json(READER)
    flat = {name: value for name, value in plain.items() if name != "settings"}
    flat |= {"reader": plain["settings"]["weights"], "drawing": plain["settings"]["sampling"]}
    flat |= {"squeeze": plain["settings"]["projection"], "temperature": 1.0, "span": "mean"}
    assert recipe_from(plain, ReaderSettings) == recipe_from(flat, ReaderSettings) == READER
    with pytest.raises(InputError, match="objective 'reader' is unknown"):
        read_recipe(flat)


def test_batches_know_how_many_of_their_tokens_are_real(base):
    lesson = Lesson(reader_sets(), base, None, TINY, Setting())
    rounds = lesson._rounds(base, TINY, base.spec, None)
    for batch in rounds.walk(rounds.epoch(0, 0)):
        assert batch.tokens == replace(batch, tokens=None).real_tokens
