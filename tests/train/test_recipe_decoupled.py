"""The recipe `decoupled`, as the paper's author describes it: tables, losses, and two phases."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from decoupled.methods.count import parameters
from decoupled.model.model import Model
from decoupled.train.data.batches import Batch, Batches
from decoupled.train.data.prepare import tokenise
from decoupled.train.data.tasks import TASKS
from decoupled.train.loop.forward import Pass, forward_pair
from decoupled.train.loop.loop import accelerator_for, fit
from decoupled.train.objectives.codec import codec_phase
from decoupled.train.objectives.distill import Distill
from decoupled.train.recipe import DECOUPLED, DISTILL, Distillation, override
from decoupled.train.reshape import teacher_of, with_projection, with_tables
from decoupled.train.run import Data, Setting, distill, train_model
from toy import span_pairs

SQUAD = TASKS["squad"]
FAST = {"precision": "fp32", "optimiser.epochs": 1.0, "optimiser.batch": 8, "watch.log_every": 1}
RECIPE = override(DECOUPLED, FAST)


@pytest.fixture(scope="module")
def split(model) -> Model:
    return Model.split(model("bert", "span", hidden_dropout_prob=0.0), at=1)


def batch_of(model: Model) -> Batch:
    made = tokenise(span_pairs(6), model.tokenizer, SQUAD, train=True)
    batches = Batches(made, torch.device("cpu"), pad=model.spec.text.pad)
    return next(batches.walk(batches.ordered(10_000)))


def test_a_split_gets_tables_that_begin_as_those_of_its_input(split, model):
    lower, upper = split.net.embedding, with_tables(split, "add").net.cross_embedding
    assert torch.equal(upper.positions.weight, lower.positions.weight)
    assert torch.equal(upper.segments.weight, lower.types.weight)
    made = distill(split, data=span_pairs(16), task="squad", recipe=RECIPE)
    assert made.spec.cross_embed == "add" and split.spec.cross_embed == "none"
    rows, width = split.spec.encoder.embedding.positions + 2, split.spec.encoder.width
    assert parameters(made.spec) - parameters(split.spec) == rows * width
    moved = made.net.cross_embedding.positions.weight
    assert not torch.equal(moved, lower.positions.weight), "the tables were not trained"
    assert teacher_of(made).spec.cross_embed == "none"
    for other in (model("bert", "span"), Model.split(model("modernbert", "span"), at=1), made):
        assert with_tables(other, "add") is other
    plain = distill(split, data=span_pairs(16), task="squad", recipe=override(DISTILL, FAST))
    assert plain.spec.cross_embed == "none"


def test_its_loss_is_that_of_the_paper(split):
    """Hard and soft logits at one temperature, and half of the last layer's states and attention."""
    student, teacher, batch = with_tables(split, "add").net, teacher_of(split).net, batch_of(split)
    total, parts = Distill(student, SQUAD, RECIPE, teacher=teacher)(batch)
    ours, theirs = (
        forward_pair(net, batch, "span", how=Pass(hidden=True, scores=True))
        for net in (student, teacher)
    )
    real, temperature = batch.span_real, RECIPE.of(Distillation).temperature
    hard = soft = torch.zeros(())
    for edge in (0, 1):
        logits, targets = (out.logits[..., edge].masked_fill(~real, -1e9) for out in (ours, theirs))
        hard = hard + F.cross_entropy(logits, batch.label[:, edge].long()) / 2
        log_q = F.log_softmax(logits / temperature, 1)
        p = F.softmax(targets / temperature, 1)
        soft = soft + temperature**2 * F.kl_div(log_q, p, reduction="batchmean") / 2
    seen = ours.real[:, None, :, None] & ours.real[:, None, None, :]
    heads = ours.scores[-1].shape[1]
    attention = ((ours.scores[-1] - theirs.scores[-1]) ** 2 * seen).sum() / seen.sum() / heads
    states = ((ours.hidden[-1] - theirs.hidden[-1])[ours.real] ** 2).mean()
    assert total.item() == pytest.approx(
        (0.1 * hard + 0.9 * soft + 0.5 * states + 0.5 * attention).item(), rel=1e-4
    )
    assert set(parts) == {"task", "kd", "hidden", "attention"}


def parts_changed(before: Model, after: Model) -> set[str]:
    old = before.net.state_dict()
    pairs = ((n, t, old.get(n)) for n, t in after.net.state_dict().items())
    return {n.split(".")[0] for n, new, kept in pairs if kept is None or not torch.equal(new, kept)}


def test_a_projection_is_first_learned_alone_and_then_with_everything(split):
    made = with_projection(split, 8)
    how, lines = RECIPE.of(Distillation).projection, []
    data = Data(task=SQUAD, train=tokenise(span_pairs(16), made.tokenizer, SQUAD, train=True))
    assert how.phases == 2

    first = made.rebuild(made.spec, {})
    batches = Batches(data.train, torch.device("cpu"), pad=made.spec.text.pad)
    phase = codec_phase(first.net, SQUAD, RECIPE, how, batches)
    fit(phase, accelerator_for(RECIPE, "cpu"))
    assert parts_changed(made, first) == {"projection"}

    setting = Setting(device="cpu", progress=lines.append)
    trained, _ = train_model(made, data, RECIPE, teacher=teacher_of(made), setting=setting)
    assert [line["phase"] for line in lines] == ["codec", "train", "train"]
    assert {"embedding", "projection", "stack", "heads"} <= parts_changed(made, trained)
    assert trained.spec.projection.width == 8 and trained.spec.cross_embed == "add"
