"""What a teacher says of all examples, computed once and kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from decoupled.measure.pairs import Pair
from decoupled.model.model import Model
from decoupled.train.data.batches import Batches
from decoupled.train.data.prepare import prepare
from decoupled.train.data.tasks import TASKS
from decoupled.train.objectives.distill import Distill
from decoupled.train.recipe import DISTILL, override
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
    """Without dropout, so that two passes say the same."""
    dropout = replace(model.spec.encoder.dropout, hidden=0.0, attention=0.0)
    encoder = replace(model.spec.encoder, dropout=dropout)
    return model.rebuild(replace(model.spec, encoder=encoder), {})


@pytest.mark.parametrize("head", ["span", "classes", "rank"])
def test_targets_that_are_kept_are_what_the_teacher_says(model, head):
    joint = still(model("bert", head))
    task, batch = batch_of(joint, head)
    student = Model.split(joint, at=1).net
    recipe = override(DISTILL, {"precision": "fp32", "weights.lrs": 0.0})
    made = Batches(prepare(PAIRS[head](), joint).examples(joint), CPU, pad=joint.spec.text.pad)
    kept = Distill(student, task, recipe, teacher=joint.net, batches=made)
    asked = Distill(student, task, recipe, teacher=joint.net)
    assert kept._targets is not None and asked._targets is None
    torch.testing.assert_close(kept(batch)[1], asked(batch)[1], rtol=1e-4, atol=1e-6)


def test_a_teacher_whose_layers_are_compared_runs_in_each_step(model):
    joint = still(model("bert", "span"))
    made = Batches(prepare(span_pairs(), joint).examples(joint), CPU, pad=joint.spec.text.pad)

    def kept(**changes) -> bool:
        named = {k.replace("_", ".", 1): v for k, v in changes.items()}
        recipe = override(DISTILL, {"precision": "fp32", "weights.lrs": 0.0, **named})
        objective = Distill(joint.net, TASKS["squad"], recipe, teacher=joint.net, batches=made)
        return objective._targets is not None

    assert kept()
    assert not kept(watch_cache_targets=False) and not kept(weights_lrs=0.5)
    assert not kept(weights_attention=0.5) and not kept(weights_hidden=0.5)
