"""Batches without padding: the same logits, losses and gradients as with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from decoupled.measure.pairs import Pair
from decoupled.methods.exits.model import with_exits
from decoupled.model.model import Model
from decoupled.train.data.batches import Batches
from decoupled.train.data.prepare import prepare
from decoupled.train.data.tasks import TASKS
from decoupled.train.loop.forward import Pass, forward_pair
from decoupled.train.loop.packed import packable
from decoupled.train.objectives.adapt import read_groups
from decoupled.train.objectives.distill import Distill
from decoupled.train.recipe import DECOUPLED, DISTILL, PLAIN, override
from decoupled.train.reshape import with_late, with_projection, with_vector
from tiny import LABELS
from toy import PLACES, named_pairs, span_pairs

CPU = torch.device("cpu")


def rank_pairs() -> list[Pair]:
    """Queries with three passages of several lengths each, the first of them right."""
    return [
        Pair(query=word, passage=" ".join(PLACES[n : n + 2 + k]), label=int(not k), group=word)
        for n, word in enumerate(PLACES[:6])
        for k in range(3)
    ]


PAIRS = {"span": span_pairs, "classes": lambda: named_pairs(LABELS), "rank": rank_pairs}


def batch_of(model: Model, head: str):
    prepared = prepare(PAIRS[head](), model)
    made = Batches(prepared.examples(model), CPU, pad=model.spec.text.pad)
    (batch,) = made.walk(made.epoch(0, 0, size=8, tokens=None)[:1])
    return prepared.task, batch


def still(model: Model) -> Model:
    """Without dropout, which a pass without padding has in other places."""
    dropout = replace(model.spec.encoder.dropout, hidden=0.0, attention=0.0)
    encoder = replace(model.spec.encoder, dropout=dropout)
    return model.rebuild(replace(model.spec, encoder=encoder), {})


@pytest.mark.parametrize("head", ["span", "classes", "rank"])
@pytest.mark.parametrize("split", [0, 1, 2])
def test_losses_and_gradients_are_those_with_padding(model, head, split, monkeypatch):
    joint = still(model("bert", head))
    task, batch = batch_of(joint, head)

    def step(packed: bool):
        student = Model.split(joint, at=split).net.train()
        changes = {"precision": "fp32", "lrs_from": "split" if split else "cross"}
        recipe = override(DISTILL, {**changes, "watch.packed": packed})
        goal = Distill(student, task, recipe, teacher=joint.net)
        with torch.no_grad():
            student.stack.ffn["0"].down.weight.mul_(1.1)
        assert goal._packs == packed
        monkeypatch.setattr(Distill, "packs", lambda self, batch: self._packs)
        total, parts = goal(batch)
        total.backward()
        return parts, {n: p.grad for n, p in student.named_parameters() if p.grad is not None}

    (parts, grads), (others, expected) = step(True), step(False)
    assert parts.keys() == others.keys() and float(others["lrs"]) > 0
    torch.testing.assert_close(parts, others, rtol=1e-4, atol=1e-6)
    assert grads.keys() == expected.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(grads[name], grad, rtol=1e-3, atol=1e-5, msg=name)


def test_states_and_vectors_of_both_sides_are_the_same(model):
    whole = with_projection(Model.split(still(model("bert", "rank")), at=2), 8)
    made = with_late(with_vector(whole, 8), 4)
    _, batch = batch_of(made, "rank")
    assert batch.query_repeat > 1
    packed, padded = (read_groups(made.net, batch, Pass(packed=p, bits=8)) for p in (True, False))
    torch.testing.assert_close(packed.rank, padded.rank, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(packed.late, padded.late, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(packed.vectors, padded.vectors, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for (h, back, real), (other, again, _) in zip(packed.states, padded.states, strict=True):
        torch.testing.assert_close(h[real], other[real], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(back[real], again[real], rtol=1e-4, atol=1e-5)


def test_exits_say_the_same(model):
    made = with_exits(Model.split(still(model("bert", "rank")), at=1))
    _, batch = batch_of(made, "rank")
    one, other = (
        forward_pair(made.net, batch, "rank", how=Pass(packed=packed, exits=True)).exits
        for packed in (True, False)
    )
    assert one
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["roberta", "albert", "electra"])
def test_families_give_the_same_logits(model, family):
    net = Model.split(model(family, "span"), at=1).net
    _, batch = batch_of(model(family, "span"), "span")
    one, other = (
        forward_pair(net, batch, "span", how=Pass(packed=p)).logits for p in (True, False)
    )
    torch.testing.assert_close(one[batch.span_real], other[batch.span_real], rtol=1e-4, atol=1e-5)


def test_what_cannot_run_so_is_padded(model):
    joint = model("bert", "span")
    assert packable(joint.net) and not packable(model("modernbert", "rank").net)
    assert not packable(Model.split(joint, at=1, one_way=[2]).net)
    goal = Distill(joint.net, TASKS["squad"], DECOUPLED, teacher=joint.net)
    assert goal._kept.scores
    _, batch = batch_of(joint, "span")
    assert forward_pair(joint.net, batch, "span", how=replace(goal._kept, packed=True)).scores
    assert Distill(joint.net, TASKS["squad"], override(PLAIN, {"watch.packed": True}))._packs
    assert not Distill(joint.net, TASKS["squad"], PLAIN)._packs
    assert not goal.packs(batch)  # on a CPU


@pytest.mark.parametrize("head", ["span", "classes", "rank"])
@pytest.mark.parametrize("packed", [False, True])
def test_targets_that_are_kept_are_what_the_teacher_says(model, head, packed, monkeypatch):
    joint = still(model("bert", head))
    task, batch = batch_of(joint, head)
    student = Model.split(joint, at=1).net
    recipe = override(DISTILL, {"precision": "fp32"})
    made = Batches(prepare(PAIRS[head](), joint).examples(joint), CPU, pad=joint.spec.text.pad)
    monkeypatch.setattr(Distill, "packs", lambda self, batch: packed)
    kept = Distill(student, task, recipe, teacher=joint.net, batches=made)
    asked = Distill(student, task, recipe, teacher=joint.net)
    assert (
        kept._targets is not None and kept._targets.hidden.shape[1] == 2 and asked._targets is None
    )
    torch.testing.assert_close(kept(batch)[1], asked(batch)[1], rtol=1e-4, atol=1e-6)


def test_targets_are_kept_where_there_is_room_for_them(model, monkeypatch):
    joint = still(model("bert", "span"))
    made = Batches(prepare(span_pairs(), joint).examples(joint), CPU, pad=joint.spec.text.pad)

    def kept(**changes) -> bool:
        recipe = override(
            DISTILL,
            {"precision": "fp32", **{k.replace("_", ".", 1): v for k, v in changes.items()}},
        )
        return (
            Distill(joint.net, TASKS["squad"], recipe, teacher=joint.net, batches=made)._targets
            is not None
        )

    assert kept()
    assert not kept(watch_cache_targets=False) and not kept(optimiser_minutes=1.0)
    assert not kept(optimiser_epochs=0.5) and not kept(weights_attention=0.5)
    monkeypatch.setattr("decoupled.train.targets.ROOM", 1000)
    assert not kept() and kept(weights_lrs=0.0)
