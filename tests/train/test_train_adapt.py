"""A model learns the texts of an index from a teacher's scores, without labels."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from added_parts import with_late, with_vector

import decoupled as dc
from decoupled.errors import DecoupledError, InputError, OptionError, SpecError
from decoupled.measure.pairs import Pair
from decoupled.model.folder import write_scoring
from decoupled.model.model import Model
from decoupled.model.parts.head import HeadDense, HeadSpec
from decoupled.model.scoring import Scoring
from decoupled.model.tokens import Passage
from decoupled.train import adapt as adapting
from decoupled.train import imitate
from decoupled.train.data.cache import Cache
from decoupled.train.data.lists import (
    FEWEST,
    Lists,
    TrainingQuery,
    list_candidates,
    queries_from_passages,
    read_training_queries,
)
from decoupled.train.data.scored import ScoredLists
from decoupled.train.data.tasks import TASKS
from decoupled.train.imitate import (
    LEAST,
    ONLY_SPLIT,
    OWN_STATES,
    adapt_recipe,
)
from decoupled.train.objectives.adapt import (
    ADAPT,
    Adapt,
    Adaptation,
    AdaptationWeights,
    read_groups,
)
from decoupled.train.recipe import override
from decoupled.train.reshape import teacher_of
from decoupled.train.teachers import Scale, Teachers, agreement, scores_of
from toy import MORE, PLACES
from toy import word_passages as passages

HEADS = (
    HeadSpec(kind="span", null=True),
    HeadSpec(kind="rank", dense=HeadDense(activation="tanh")),
)
FAST = {"optimiser.batch": 8, "optimiser.lr": 1e-3, "drawing.passages": 4, "watch.save_every": 4}


@pytest.fixture(scope="module")
def split(model) -> Model:
    """Ranks alone, as public rerankers do."""
    return Model.split(model("bert", "rank"), at=1)


@pytest.fixture(scope="module")
def reader(model) -> Model:
    """Ranks, reads and retrieves, as the starter does."""
    made = Model.split(model("bert", "bare").with_heads(*HEADS, seed=1), at=1)
    made = with_late(with_vector(made, 8, layers=1), 4)
    return Model(made.net, made.tokenizer, [{"did": "train"}])


@pytest.fixture(scope="module")
def indexes(tmp_path_factory, split, reader) -> dict[str, Path]:
    found = {}
    for name, one in (("split", split), ("reader", reader)):
        found[name] = tmp_path_factory.mktemp("index") / f"{name}.idx"
        with dc.Index.create(found[name], one, codec="fp32") as index:
            index.add(passages())
    return found


def recipe(**more):
    return adapt_recipe({**FAST, **more})


# Queries and candidates ---------------------------------------------------------------------------


def test_candidates_begin_with_the_source_and_leave_its_copies_out(tmp_path, reader):
    texts = passages(60)
    twin = Passage(id="twin", text=texts[0].text, title="other")
    with dc.Index.create(tmp_path / "i", reader, codec="fp32") as index:
        index.add([*texts, twin])
        rows = index.refresh().rows()
        asked = [
            TrainingQuery(texts[0].text, int(rows[0])),
            TrainingQuery(texts[1].text, int(rows[1])),
        ]
        lists = list_candidates(index, asked, 8, others=True)
        most = list_candidates(index, asked, 50, others=False)  # as many as the first stage finds
    every = [p.id for p in most.candidates(0)]
    assert "twin" not in every and len(set(every)) == 50
    assert lists.rows.shape == (2, 8) and lists.sourced.all()
    first = [p.id for p in lists.candidates(0)]
    assert first[0] == "0" and "twin" not in first
    assert lists.candidates(1)[0].id == "1" and len({p.id for p in lists.candidates(1)}) == 8
    assert lists.first_stage[0, 0, 0] == lists.first_stage[0, :, 0].max(), "BM25 finds the source"


def test_without_others_every_candidate_is_what_the_search_found(indexes):
    with dc.Index.open(indexes["reader"]) as index:
        lists = list_candidates(index, [TrainingQuery("old stone castle")], 6, others=False)
        found = {p.id for p in dc.Engine(index).candidates("old stone castle", 50)}
    assert not lists.sourced.any() and {p.id for p in lists.candidates(0)} <= found


def test_lists_come_back_from_their_file(tmp_path, indexes):
    with dc.Index.open(indexes["reader"]) as index:
        asked = queries_from_passages(index, limit=30)
        lists = list_candidates(index, asked, 5, others=True)
    lists.save(tmp_path / "lists.npz")
    again = Lists.load(tmp_path / "lists.npz")
    assert again.queries == lists.queries and again.candidates(3) == lists.candidates(3)
    assert (again.first_stage == lists.first_stage).all() and len(again[2:7]) == 5


def test_a_sentence_that_is_the_query_is_taken_out_of_its_source(tmp_path, split):
    with dc.Index.create(tmp_path / "i", split, codec="fp32") as index:
        index.add(passages(12))
        row = int(index.refresh().rows()[0])
        asked = [TrainingQuery("The river is wide here.", row, without="The castle is old.")]
        lists = list_candidates(index, asked, 3, others=True)
    source = passages(1)[0]
    assert lists.candidates(0)[0] == replace(source, text="The castle is old.")


def test_queries_are_made_once_and_by_whom_the_caller_says(indexes):
    with dc.Index.open(indexes["split"]) as index:
        made = queries_from_passages(index, limit=40)
        assert made == queries_from_passages(index, limit=40) and len(made) == 40
        own = queries_from_passages(
            index, limit=60, generator=lambda p: [p.text[:9], p.text[-9:], " "]
        )
    assert all(one.source is not None for one in (*made, *own))
    assert all(len(one.query) == 9 for one in own)
    assert 2 <= sum(one.held for one in own) <= 20


def test_given_queries_come_once(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("".join(f"query {n % 25}\n" for n in range(50)), encoding="utf-8")
    assert len(read_training_queries(path)) == 25
    with pytest.raises(InputError, match=r"3 queries; give at least 20"):
        read_training_queries(["a", "b", "c"])


# Teachers -----------------------------------------------------------------------------------------


def test_agreement_of_the_same_of_reversed_and_of_swapped_scores():
    told = np.asarray([[3.0, 2.0, 1.0, 0.0]] * 2, np.float32)
    same = agreement(2 * told + 1, told)
    assert (same.ndcg_at_10, same.tau, same.top_1) == (1, 1, 1)
    other = agreement(-told, told)
    assert other.tau == -1 and other.top_1 == 0 and 0 < other.ndcg_at_10 < 1
    swapped = told.copy()
    swapped[0, :2] = swapped[0, 1::-1]
    assert agreement(swapped, told).top_1 == 0.5


def test_who_loses_below_the_first_ten_agrees_less_overall():
    theirs = np.arange(40.0, 0, -1, dtype=np.float32)[None]
    mixed = theirs.copy()
    mixed[0, 10:] = theirs[0, :9:-1] - 1
    swapped = theirs.copy()
    swapped[0, [8, 9]] = swapped[0, [9, 8]]
    lost, little = agreement(mixed, theirs), agreement(swapped, theirs)
    assert lost.ndcg_at_10 > little.ndcg_at_10 and lost.overall < little.overall


def test_a_teacher_is_put_on_the_scale_of_the_student():
    own = np.asarray([[1.0, 3.0], [2.0, 4.0]], np.float32)
    scale = Scale.of(own, np.asarray([100 * own - 7]))
    assert np.allclose(scale.apply(0, 100 * own - 7), own, atol=1e-5)


def test_of_several_teachers_the_mean_teaches():
    own = np.asarray([[1.0, 3.0], [2.0, 4.0]], np.float32)
    logits = np.asarray([100 * own - 7, -own])
    scale = Scale.of(own, logits)
    mean = (scale.apply(0, logits[0]) + scale.apply(1, logits[1])) / 2
    assert np.allclose(scale.together(logits), mean) and not np.allclose(mean, own)


def test_a_model_that_was_only_split_learns_faster_unless_told_otherwise(indexes, tmp_path, split):
    assert adapting.recipe_for(indexes["split"], {}).optimiser.lr == ONLY_SPLIT
    assert adapting.recipe_for(indexes["split"], {"optimiser.lr": 5e-5}).optimiser.lr == 5e-5
    states = [
        adapting.recipe_for(indexes["split"], {}, names).of(Adaptation).weights.lrs
        for names in ((), ["joint"], ["another"])
    ]
    assert states == [OWN_STATES, OWN_STATES, AdaptationWeights().lrs]
    Model(split.net, split.tokenizer, [*split.history, {"did": "train"}]).save(tmp_path / "m")
    dc.Index.create(tmp_path / "i", tmp_path / "m").close()
    assert adapting.recipe_for(tmp_path / "i", {}).optimiser.lr == ADAPT.optimiser.lr


def blending(reader, folder):
    """An index of a trained model whose search blends the first stage."""
    reader.save(folder / "start")
    write_scoring(folder / "start", Scoring(bm25=1.0, cosine=0.5))
    with dc.Index.create(folder / "i", folder / "start", codec="fp32") as index:
        index.add(passages())
    return folder / "i"


def test_a_trained_model_needs_a_teacher(tmp_path, reader):
    index = blending(reader, tmp_path)
    with pytest.raises(OptionError, match=r"teacher is missing: .* trained already; name a cross"):
        run(index, tmp_path / "m")
    assert not (tmp_path / "m").exists()
    taught = run(index, tmp_path / "taught", teacher=["joint", reader], anyway=True)
    assert taught.teachers == ("joint", "model") and taught.scoring == {"bm25": 1.0, "cosine": 0.5}
    assert Model.load(tmp_path / "taught").spec.scoring == Model.load(index / "model").spec.scoring


def test_scores_of_lists_are_those_of_rerank(indexes, split):
    with dc.Index.open(indexes["split"]) as index:
        lists = list_candidates(
            index, [TrainingQuery("old stone"), TrainingQuery("wide lake")], 5, others=False
        )
    engine = dc.Engine(split)
    scores = scores_of(engine, lists)
    for number, query in enumerate(lists.queries):
        hits = engine.rerank(query, texts=lists.candidates(number), raw=True)
        named = {
            p.id: score for p, score in zip(lists.candidates(number), scores[number], strict=True)
        }
        assert {hit.id: pytest.approx(hit.score, abs=1e-4) for hit in hits} == named


# The objective ------------------------------------------------------------------------------------


@pytest.fixture
def batch(indexes, reader):
    with dc.Index.open(indexes["reader"]) as index:
        lists = list_candidates(index, queries_from_passages(index, limit=20), 4, others=True)
    scores = np.random.default_rng(0).normal(size=lists.rows.shape).astype(np.float32)
    batches = ScoredLists(lists, scores, reader, torch.device("cpu"), tokens=24)
    made = next(batches.walk(batches.epoch(0, 0, size=6, tokens=None)))
    return made, scores.ravel()[made.rows.numpy()]


def test_a_batch_carries_the_teachers_scores(batch):
    made, scores = batch
    assert np.allclose(made.rank.numpy(), scores) and made.per_group == 4


@pytest.mark.parametrize("keep", [False, True])
def test_keeping_the_index_moves_nothing_below_the_split(batch, reader, keep):
    student = reader.rebuild(reader.spec, {})
    objective = Adapt(student.net, TASKS["rank"], ADAPT, before=reader.net, keep=keep)
    for name, parameter in student.net.named_parameters():
        parameter.requires_grad_(objective.trains(name))
    total, parts = objective(batch[0])
    total.backward()
    below = {n for n, p in student.net.named_parameters() if student.spec.is_input(n)}
    moved = {n for n, p in student.net.named_parameters() if p.grad is not None and p.grad.any()}
    assert {"rank_kd", "margin", "late", "span_kd"} <= set(parts)
    assert ("vector_kd" in parts) is not keep
    assert bool(moved & below) is not keep and any(n.startswith("heads.rank") for n in moved)


def test_a_student_that_says_all_that_before_and_teacher_say_costs_nothing(batch, reader):
    ranks = read_groups(reader.net, batch[0], vectors=False).rank.flatten().detach()
    made = replace(batch[0], rank=ranks)
    weights = replace(ADAPT.settings.weights, vector=0.0, late=0.0, lrs=0.0)
    still = replace(ADAPT, settings=replace(ADAPT.settings, weights=weights, bits=None))
    student = reader.rebuild(reader.spec, {}).net.eval()
    _, parts = Adapt(student, TASKS["rank"], still, before=reader.net)(made)
    assert {"rank_kd", "margin", "span_kd", "vector_kd"} <= set(parts)
    # The similarities of neighbours are a cross-entropy with itself: it has a floor, and no slope.
    assert all(float(v) == pytest.approx(0, abs=1e-5) for v in parts.values())


def test_the_only_teacher_says_in_each_step_what_it_says_of_it(batch, reader):
    student, joint = reader.rebuild(reader.spec, {}).net.train(), teacher_of(reader)
    weights = replace(ADAPT.settings.weights, vector=0.0, vector_kd=0.0, late=0.0)
    recipe = replace(ADAPT, settings=replace(ADAPT.settings, weights=weights, bits=None))
    options = {"before": reader.net, "teacher": joint.net.eval()}
    ranks = read_groups(joint.net, batch[0], vectors=False).rank.flatten().detach()
    asked = Adapt(student, TASKS["rank"], recipe, **options)
    hears = Adapt(
        student, TASKS["rank"], recipe, **options, logits_to_rank=lambda logits: 2 * logits - 1
    )
    assert student.spec.encoder.dropout.hidden > 0, "or nothing would be left out"
    before = asked(replace(batch[0], rank=2 * ranks - 1))[0]
    student.train()
    assert torch.allclose(hears(batch[0])[0], before, atol=1e-5)
    assert not torch.allclose(asked(batch[0])[0], before, atol=1e-5)


# Whole runs ---------------------------------------------------------------------------------------


def run(index: Path, out: Path, **options):
    options = {"recipe": recipe(), "limit": 40, **options}
    return dc.adapt(index, out=out, **options)


def test_adapting_to_the_joint_teacher_wins_agreement(indexes, tmp_path, split):
    made = run(
        indexes["split"], tmp_path / "m", limit=60, recipe=recipe(**{"optimiser.epochs": 5.0})
    )
    assert made.teachers == ("joint",) and made.after.tau > made.before.tau
    assert made.after.ndcg_at_10 > made.before.ndcg_at_10 and made.teacher_ms and made.split_ms
    assert Model.load(tmp_path / "m").history[-1]["did"] == "train adapt"
    assert not (tmp_path / "m.run" / "checkpoint").exists(), "a finished run is forgotten"
    with pytest.raises(dc.IndexMismatch):
        dc.Index.open(indexes["split"], model=tmp_path / "m")
    built = dc.reindex(indexes["split"], tmp_path / "new.idx", model=tmp_path / "m")
    assert built.passages == 80
    assert dc.Engine(tmp_path / "new.idx").search("old castle", 3)


def test_a_joint_model_learns_given_scores(indexes, tmp_path, split):
    joint = teacher_of(split)
    with dc.Index.open(indexes["split"]) as index:
        lists = list_candidates(index, queries_from_passages(index, limit=30), 6, others=True)
    wanted = np.random.default_rng(0).normal(size=lists.rows.shape).astype(np.float32)
    how = recipe(**{"reader.lrs": 0.0, "optimiser.epochs": 30.0})
    made, _ = imitate.learn_from(joint, (lists, wanted), Teachers((), joint), how, tmp_path / "run")
    teachers = Teachers([made], split, runtime="torch")
    before, after = (scores_of(teachers.engine_of(one), lists) for one in (joint, made))
    assert agreement(after, wanted).tau > agreement(before, wanted).tau + 0.2
    assert teachers.runtime == teachers.engines[0].runtime.name == "torch" and made.spec.split == 0


def test_a_kept_index_opens_with_the_adapted_model(indexes, tmp_path, reader):
    out = tmp_path / "m"
    made = run(indexes["reader"], out, teacher="joint", keep_index=True, anyway=True)
    assert made.teachers == ("joint",) and made.teacher_ms > 0
    adapted = Model.load(out)
    assert adapted.fingerprint == reader.fingerprint
    before, after = reader.net.state_dict(), adapted.net.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and not any(reader.spec.is_input(name) for name in moved)
    query = "old castle"
    beside = dc.Engine(dc.Index.open(indexes["reader"], model=out)).search(query, 5)
    copy = dc.reindex(indexes["reader"], tmp_path / "copy.idx", model=indexes["reader"] / "model")
    again = dc.reindex(tmp_path / "copy.idx", tmp_path / "copy.idx", model=out)
    assert (copy.added.added, again.added.added, again.passages) == (80, 0, 80)
    inside = dc.Engine(tmp_path / "copy.idx").search(query, 5)
    assert [h.id for h in inside] == [h.id for h in beside]
    assert [h.score for h in inside] == pytest.approx([h.score for h in beside], abs=1e-5)


def test_an_exchanged_model_must_have_made_the_states(indexes, tmp_path, model):
    other = Model.split(model("bert", "rank"), at=2)
    other.save(tmp_path / "other")
    with pytest.raises(dc.IndexMismatch, match="fingerprint"):
        dc.reindex(indexes["split"], indexes["split"], model=tmp_path / "other")
    assert dc.Engine(indexes["split"]).search("old castle", 1), "nothing was touched"


def test_a_stopped_run_goes_on_to_the_same_weights(indexes, tmp_path, monkeypatch):
    whole = run(indexes["split"], tmp_path / "whole", anyway=True)
    heard = []

    def stop(line):
        heard.append(line["phase"])
        if line["phase"] == "train" and line["step"] >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(indexes["split"], tmp_path / "m", progress=stop, anyway=True)
    assert {"candidates, train", "teacher, held out", "train"} <= set(heard)
    assert "teacher" not in heard, "it says in every step what it says of it"
    monkeypatch.setattr(
        "decoupled.train.teachers.scores_of", lambda *a: pytest.fail("the teacher is asked again")
    )
    again = run(indexes["split"], tmp_path / "m", anyway=True)
    assert again.after == whole.after
    one, other = (Model.load(tmp_path / name).net.state_dict() for name in ("whole", "m"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_model_that_got_worse_is_not_saved(indexes, tmp_path, split):
    # Taught by itself it agrees as it is, so whatever moves it far makes it worse.
    wild = {"recipe": recipe(**{"optimiser.lr": 0.3, "optimiser.clip": 0.0}), "teacher": split}
    with pytest.raises(DecoupledError, match=r"agrees less .* nothing was saved in .*--anyway"):
        run(indexes["split"], tmp_path / "m", **wild)
    assert not (tmp_path / "m").exists()
    made = run(indexes["split"], tmp_path / "m", **wild, anyway=True)
    assert made.after.ndcg_at_10 < made.before.ndcg_at_10 and (tmp_path / "m").exists()


def test_minutes_bound_the_teacher_and_the_training(indexes, tmp_path):
    made = run(indexes["split"], tmp_path / "m", minutes=0.02, anyway=True)
    assert made.seconds < 60 and 0 < made.queries <= 40


def test_minutes_bound_what_is_found_and_what_judges(indexes, tmp_path, monkeypatch):
    asked = [f"old stone {n}" for n in range(600)]
    monkeypatch.setattr(adapting, "FIND_SHARE", 0.0)
    monkeypatch.setattr("decoupled.train.imitate.JUDGE_SHARE", 0.0)
    with dc.Index.open(indexes["split"]) as index:
        found, held = adapting.collect(
            index, Cache(tmp_path), asked, limit=600, recipe=recipe(), minutes=0.01
        )
        assert len(found) == FEWEST == len(held)
        every = adapting.collect(index, Cache(tmp_path), asked, limit=600, recipe=recipe())
        assert len(every[0]) > 500, "what was found in a hurry is no answer to who has time"
    made = run(
        indexes["split"], tmp_path / "m", queries=asked, limit=600, minutes=0.01, anyway=True
    )
    assert made.held_out == LEAST and made.queries <= FEWEST


# Bad input ----------------------------------------------------------------------------------------


def test_a_teacher_with_another_tokenizer_teaches_by_its_scores(indexes, tmp_path, checkpoint):
    made = run(indexes["split"], tmp_path / "m", teacher=checkpoint("roberta", "rank"), anyway=True)
    assert made.teacher_ms and made.queries


def test_a_classifier_of_two_labels_teaches_by_its_odds_and_of_three_not(
    indexes, tmp_path, checkpoint
):
    three = checkpoint("bert", "classes")
    with pytest.raises(SpecError, match=r"a classifier of .* does not rank passages"):
        run(indexes["split"], tmp_path / "m", teacher=three)
    two = Model.open(checkpoint("bert", "classes", num_labels=2))
    named = two.rank_by(two.spec.heads[0].labels[1])
    assert run(indexes["split"], tmp_path / "m", teacher=named, anyway=True).teacher_ms


@pytest.mark.parametrize(
    ("teacher", "said"),
    [("no/such", "no/such"), (["joint", "no/such"], "no/such")],
)
def test_teachers_that_cannot_teach_are_one_line_at_once(
    indexes, tmp_path, teacher, said, monkeypatch
):
    monkeypatch.setattr(adapting, "collect", lambda *a, **b: pytest.fail("it takes minutes"))
    with pytest.raises(DecoupledError, match=said) as caught:
        run(indexes["split"], tmp_path / "m", teacher=teacher)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("minutes", [0, -1.0, float("nan"), float("inf")])
def test_minutes_are_above_zero(indexes, tmp_path, minutes):
    with pytest.raises(OptionError, match=r"minutes is .*; choose a number above 0"):
        run(indexes["split"], tmp_path / "m", minutes=minutes)


def test_a_corpus_of_which_no_query_can_be_made(tmp_path, split):
    with dc.Index.create(tmp_path / "i", split, codec="fp32") as index:
        index.add([Passage(id=str(n), text=word) for n, word in enumerate(PLACES)])
    with pytest.raises(InputError, match=r"0 queries; could be made of 12 passages.*--queries"):
        run(tmp_path / "i", tmp_path / "m")


def test_an_empty_index(tmp_path, split):
    dc.Index.create(tmp_path / "i", split).close()
    with pytest.raises(InputError, match="holds no passages"):
        run(tmp_path / "i", tmp_path / "m")


def test_queries_in_another_language_are_told_by_their_words(indexes, tmp_path, caplog):
    foreign = [f"wo steht der alte turm nummer {n} heute" for n in range(40)]
    with caplog.at_level(logging.WARNING), dc.Index.open(indexes["split"]) as index:
        adapting.collect(index, Cache(tmp_path), foreign, limit=50, recipe=recipe())
        assert "100% of the words" in caplog.text and "another language" in caplog.text
        caplog.clear()
        own = [f"{a} {b}" for a in PLACES for b in MORE[:3]]
        adapting.collect(index, Cache(tmp_path), own, limit=50, recipe=recipe())
    assert not caplog.text


def test_a_full_disk_is_one_line_and_the_run_goes_on(indexes, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("decoupled.train.data.cache.os.fsync", full)
        with pytest.raises(DecoupledError, match=r"m\.run is full; free some space"):
            run(indexes["split"], tmp_path / "m")
    assert run(indexes["split"], tmp_path / "m", anyway=True).queries


def test_a_recipe_for_lists_does_not_train_on_pairs(split):
    with pytest.raises(InputError, match="'adapt' learns from the texts of an index"):
        pairs = [Pair(query="a", passage=word, label=n % 2) for n, word in enumerate(PLACES)]
        dc.distill(split, data=pairs, recipe=override(ADAPT, {"precision": "fp32"}))
