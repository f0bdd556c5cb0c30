"""Parts of training by hand: groups, weights, phases, grids and what a method says of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from decoupled.errors import SpecError
from decoupled.measure.pairs import Pair
from decoupled.methods.importance import sample_batches
from decoupled.methods.names import described, parse
from decoupled.methods.quantise.shrink import on_grid
from decoupled.model.annex import SHRINKING as METHODS
from decoupled.model.model import Model
from decoupled.train.data.prepare import prepare, to_judge
from decoupled.train.data.tasks import TASKS, Task
from decoupled.train.loop.forward import Pass, forward_pair
from decoupled.train.losses import kd, soft_loss
from decoupled.train.objectives.distill import Distill
from decoupled.train.recipe import PLAIN, Distillation, Weights
from decoupled.train.reshape import with_projection
from toy import class_pairs


def test_soft_targets_of_a_ranking_are_of_its_group_or_of_yes_and_no():
    task = TASKS["rank"]
    logits, soft = (
        torch.tensor([[1.0], [2.0], [0.5], [-1.0]]),
        torch.tensor([[0.0], [3.0], [1.0], [1.0]]),
    )

    class Batch:
        per_group = 2

    grouped = soft_loss(task, logits, soft, Batch, 2.0)
    assert grouped == pytest.approx(kd(logits.view(2, 2), soft.view(2, 2), 2.0, None).item())
    Batch.per_group = 1
    pairs = [torch.cat([torch.zeros_like(x), x], 1) for x in (logits, soft)]
    alone = soft_loss(task, logits, soft, Batch, 2.0)
    assert alone == pytest.approx(kd(*pairs, 2.0, None).item()) and alone > 0


@pytest.fixture(scope="module")
def split(model) -> Model:
    made = Model.split(model("bert", "bare", num_hidden_layers=4), at=2)
    return made.with_heads(
        Task(name="t", head="classes", metric="accuracy", labels=("no", "yes")).head_spec
    )


def test_the_loss_is_the_weighted_sum_of_its_parts(split):
    sample = prepare(class_pairs(8), split, "pairs")
    batch = next(iter(sample_batches(sample, split)))
    teacher = Model.split(split, at=0).net
    for weights in (
        Weights(task=0.25, kd=3.0),
        Weights(task=0.25),
        Weights(task=2.0, kd=0.5, lrs=4.0),
    ):
        recipe = replace(
            PLAIN, settings=Distillation(weights=weights, span="sum"), precision="fp32"
        )
        split.net.eval()
        made = Distill(split.net, sample.task, recipe, teacher=teacher, batches=None)
        total, parts = made(batch)
        expected = sum(getattr(weights, name) * value for name, value in parts.items())
        assert total.item() == pytest.approx(float(expected), rel=1e-5)


def test_states_are_quantised_for_passages_alone(split):
    narrow = with_projection(split, 8)
    batch = next(iter(sample_batches(prepare(class_pairs(4), narrow, "pairs"), narrow)))
    with torch.no_grad():
        plain, coded = (
            forward_pair(narrow.net.eval(), batch, "classes", how=Pass(bits=bits)).states
            for bits in (None, 4)
        )
    same = [torch.equal(a[1], b[1]) for a, b in zip(plain, coded, strict=True)]
    assert sorted(same) == [False, True]


def test_each_passage_of_a_query_is_judged_once(split):
    rank = split.with_heads(TASKS["rank"].head_spec)
    texts = ["river", "town", "house", "sea"]
    pairs = [
        Pair(query=f"who {n}", passage=text, label=int(text == "sea"), group=f"q{n}")
        for n in range(3)
        for text in texts
    ]
    made = prepare(pairs, rank, "rank").examples(rank)
    judged = to_judge(made, TASKS["rank"])
    seen = list(zip(judged.question.tolist(), judged.passage_of.tolist(), strict=True))
    assert len(seen) == len(set(seen)) == 12 and judged.per_group == 1 < made.per_group


def test_a_row_has_one_scale_unless_groups_are_asked_for():
    weight = torch.tensor([[1.0, 0.004, 100.0, 3.0]])
    assert torch.equal(on_grid(weight, 8), on_grid(weight, 8, 4))
    assert on_grid(weight, 8)[0, 1] == 0 != on_grid(weight, 8, 1)[0, 1]


@pytest.mark.parametrize("shares", ["0.6/0.5", "0/0.3", "0.5/-0.2", "1"])
def test_bands_of_a_table_are_shares_of_it(split, shares):
    with pytest.raises(SpecError, match="choose shares above 0 that add up to less than 1"):
        parse(f"band-embedding:shares={shares}").fit(split, prepare(class_pairs(4), split, "pairs"))


def test_every_method_says_what_it_does():
    rows = described()
    assert [name for name, _, _ in rows] == list(METHODS) and all(text for _, text, _ in rows)
    assert "bits=8|4" in dict((name, options) for name, _, options in rows)["quantise"]
