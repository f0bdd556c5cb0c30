from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from deeper import deepen
from torch.nn.functional import pad
from transformers import BertForSequenceClassification

from decoupled.errors import InputError
from decoupled.measure.pairs import Pair
from decoupled.model.codec import build_codec
from decoupled.model.model import Model
from decoupled.model.states import States
from decoupled.train import losses
from decoupled.train.data.batches import Batches
from decoupled.train.data.prepare import tokenise
from decoupled.train.data.tasks import TASKS, Task
from decoupled.train.loop.forward import Pass, fake_quantise, forward_pair
from decoupled.train.losses import projection_loss, soft_loss
from decoupled.train.objectives.base import objective_named
from decoupled.train.objectives.codec import start_projection
from decoupled.train.objectives.distill import Distill
from decoupled.train.recipe import RECIPES, Distillation, Recipe, Weights, override
from decoupled.train.reshape import with_projection
from decoupled.train.targets import soft_targets
from toy import span_pairs

CPU = torch.device("cpu")


def no_dropout(model: Model) -> Model:
    for module in model.net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    return model


def batches_of(model: Model, count: int = 6) -> Batches:
    made = tokenise(span_pairs(count), model.tokenizer, TASKS["squad"], train=True)
    return Batches(made, CPU, pad=model.spec.text.pad)


def one_batch(batches: Batches):
    return next(batches.walk(batches.ordered(10_000)))


EVERYTHING = Weights(task=0.0, kd=1.0, lrs=1.0, hidden=1.0, attention=1.0, margin=0.0)


def test_one_way_layers_are_compared_on_the_rows_they_move(model):
    """A passage row that stands still is not held against a teacher's that moved."""
    whole = no_dropout(model("bert", "rank"))
    one_way = Model.split(whole, at=1, one_way="auto")
    batch = one_batch(batches_of(model("bert", "span")))
    keep = Pass(hidden=True, scores=True)
    ours = forward_pair(one_way.net, batch, "rank", how=keep)
    theirs = forward_pair(whole.net, batch, "rank", how=keep)
    width = batch.query_ids.shape[1]
    for moved in ours.moved:
        assert moved[:, :width].any() and not moved[:, width:].any()
    far = [theirs.hidden[-2], theirs.hidden[-1].clone()]
    far[-1][:, width:] += 100.0
    near = losses.lrs(ours.hidden, theirs.hidden, ours.moved)
    assert torch.equal(losses.lrs(ours.hidden, far, ours.moved), near) and near > 0
    looking = ours.scores[-1].clone()
    looking[:, :, width:] += 100.0
    assert losses.attention_mse(looking, ours.scores[-1], ours.real, ours.moved[-1]) == 0


@pytest.mark.parametrize("name", ["bert", "modernbert", "deberta-v2"])
def test_every_loss_is_zero_when_student_equals_teacher(model, name):
    whole = no_dropout(model(name, "span"))
    batch = one_batch(batches_of(whole))
    recipe = Recipe(name="all", settings=Distillation(weights=EVERYTHING), precision="fp32")
    _, parts = Distill(whole.net, TASKS["squad"], recipe, teacher=whole.net)(batch)
    assert set(parts) == {"kd", "lrs", "hidden", "attention"}
    # DeBERTa with and without gradients runs different kernels, which differ in the last bit.
    limit = 1e-6 if name == "deberta-v2" else 0.0
    assert all(abs(value) <= limit for value in parts.values()), parts
    split = Model.split(whole, at=1)
    _, parts = Distill(split.net, TASKS["squad"], recipe, teacher=whole.net)(batch)
    assert all(value > 1e-6 for value in parts.values()), parts


def test_losses_are_those_of_the_papers_pair_by_pair(checkpoint, model):
    """Against the layers of `transformers`, one pair at a time, without padding or our own code."""
    whole = no_dropout(model("bert", "classes"))
    theirs = BertForSequenceClassification.from_pretrained(checkpoint("bert", "classes")).eval()
    names = whole.spec.head("classes").labels
    given = [replace(pair, label=names[n % 3]) for n, pair in enumerate(span_pairs(6))]
    task = Task(name="toy", head="classes", metric="accuracy", labels=names)
    made = tokenise(given, whole.tokenizer, task, train=True)
    batch = Batches(made, CPU, pad=0).build(torch.arange(6), (8, 24))
    recipe = Recipe(
        settings=Distillation(
            weights=Weights(task=1, kd=1, lrs=1, hidden=1, attention=1), temperature=2.0
        ),
        precision="fp32",
    )
    split = Model.split(whole, at=1, positions="restart")
    _, parts = Distill(split.net, task, recipe, teacher=whole.net)(batch)

    bert, layers = theirs.bert, theirs.bert.encoder.layer
    look = layers[-1].attention.self

    def run(number, x):
        found = layers[number](x)
        return found[0] if isinstance(found, tuple) else found

    def looked(x):
        q, k = (
            part(x).view(x.shape[1], look.num_attention_heads, -1)
            for part in (look.query, look.key)
        )
        return torch.einsum("qhd,khd->hqk", q, k) / look.attention_head_size**0.5

    kept = {name: [] for name in ("task", "kd", "first", "hidden", "pooled", "attention")}
    kept |= {"reverse": [], "given": []}
    with torch.inference_mode():
        for row, label in enumerate(made.label[:, 0].tolist()):
            sides = made.queries[made.query_of[row]], made.passages[made.passage_of[row]]
            ids = [torch.tensor(side.tolist())[None] for side in sides]
            types = [torch.full_like(side, number) for number, side in enumerate(ids)]
            joint = theirs(
                torch.cat(ids, 1), token_type_ids=torch.cat(types, 1), output_hidden_states=True
            )
            alone = [
                run(0, bert.embeddings(input_ids=side, token_type_ids=kind))
                for side, kind in zip(ids, types, strict=True)
            ]
            states = [torch.cat(alone, 1)]
            states += [run(1, states[-1])]
            states += [run(2, states[-1])]
            pooled = [bert.pooler(x) for x in (states[-1], joint.hidden_states[-1])]
            z, t = theirs.classifier(pooled[0]), joint.logits
            kept["task"].append(-z.log_softmax(-1)[:, label])
            p, q = (t / 2).softmax(-1), (z / 2).softmax(-1)
            kept["kd"].append(4 * (p * (p / q).log()).sum(-1))
            kept["reverse"].append(4 * (q * (q / p).log()).sum(-1))
            kept["given"].append((states[0] - joint.hidden_states[1]).square().flatten())
            kept["first"].append((states[1] - joint.hidden_states[2]).square().flatten())
            kept["hidden"].append((states[2] - joint.hidden_states[3]).square().flatten())
            kept["pooled"].append((pooled[0] - pooled[1]).square().flatten())
            scores = looked(states[1]) - looked(joint.hidden_states[2])
            kept["attention"].append(scores.square().flatten())
    want = {name: float(torch.cat(values).mean()) for name, values in kept.items()}
    reverse, given, first = (want.pop(name) for name in ("reverse", "given", "first"))
    want["lrs"] = (first + want["hidden"] + (pooled := want.pop("pooled"))) / 3
    assert {name: float(value) for name, value in parts.items()} == pytest.approx(want, rel=1e-4)
    # As the paper's text has them, where its code differs.
    text = {"kl": "reverse", "lrs_from": "split", "lrs_reduce": "sum"}
    recipe = override(recipe, text)
    _, parts = Distill(split.net, task, recipe, teacher=whole.net)(batch)
    width = whole.spec.encoder.width
    assert float(parts["kd"]) == pytest.approx(reverse, rel=1e-4)
    text = width * (given + first + want["hidden"] + pooled)
    assert float(parts["lrs"]) == pytest.approx(text, rel=1e-4)
    batches = Batches(made, CPU, pad=0)
    recipe = override(recipe, {"weights.attention": 0.0})
    kept_once = Distill(split.net, task, recipe, teacher=whole.net, batches=batches)
    _, parts = kept_once(batch)
    assert float(parts["lrs"]) == pytest.approx(text, rel=1e-4), "the teacher's states are kept"


def test_kd_is_the_textbook_formula_and_ignores_a_constant():
    torch.manual_seed(0)
    student, teacher = torch.randn(3, 5), torch.randn(3, 5)
    p, q = (teacher / 2).softmax(-1), (student / 2).softmax(-1)
    expected = 4 * (p * (p / q).log()).sum(-1).mean()
    got = losses.kd(student, teacher, 2.0, None)
    assert torch.allclose(got, expected)
    assert torch.allclose(losses.kd(student + 7, teacher - 3, 2.0, None), expected, atol=1e-5)


def test_kd_gradient_tends_to_the_difference_of_centred_logits():
    torch.manual_seed(0)
    student, teacher = torch.randn(1, 4, requires_grad=True), torch.randn(1, 4)
    losses.kd(student, teacher, 1000.0, None).backward()
    centred = (student - student.mean()) - (teacher - teacher.mean())
    assert torch.allclose(student.grad, centred / 4, atol=1e-3)


def test_margin_mse_is_the_mean_over_all_pairs_of_a_group():
    torch.manual_seed(0)
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    pairs = (a[:, :, None] - a[:, None]) - (b[:, :, None] - b[:, None])
    assert torch.allclose(losses.margin_mse(a, b), pairs.square().mean(), atol=1e-6)
    assert losses.margin_mse(a, a + 5) < 1e-9


def test_losses_ignore_padding():
    torch.manual_seed(0)
    a, b, real = torch.randn(2, 5, 4), torch.randn(2, 5, 4), torch.ones(2, 5, dtype=torch.bool)
    real[1, 3:] = False
    wide_real = pad(real, (0, 3))
    wide = [pad(x, (0, 0, 0, 3), value=9.0) for x in (a, b)]
    assert torch.allclose(losses.state_mse(a, b, real), losses.state_mse(*wide, wide_real))
    other = a.clone()
    other[1, 3:] = 100.0
    assert torch.equal(losses.state_mse(a, b, real), losses.state_mse(other, b, real))
    s, t = torch.randn(2, 2, 5, 5), torch.randn(2, 2, 5, 5)
    wide = [pad(x, (0, 3, 0, 3), value=9.0) for x in (s, t)]
    assert torch.allclose(losses.attention_mse(s, t, real), losses.attention_mse(*wide, wide_real))
    z = torch.randn(2, 5, 2)
    label = torch.tensor([[1, 2], [0, 1]])
    narrow = losses.span_loss(z, label, real, "mean")
    assert torch.allclose(
        narrow, losses.span_loss(pad(z, (0, 0, 0, 3), value=9.0), label, wide_real, "mean")
    )
    assert torch.allclose(2 * narrow, losses.span_loss(z, label, real, "sum"))


def test_losses_of_a_batch_do_not_depend_on_its_padding(model):
    whole = no_dropout(model("bert", "span"))
    split = Model.split(whole, at=1)
    batches = batches_of(whole)
    groups = torch.arange(6)
    weights = Weights(task=1, kd=1, lrs=1, hidden=1, attention=1)
    recipe = Recipe(settings=Distillation(weights=weights), precision="fp32")
    objective = Distill(split.net, TASKS["squad"], recipe, teacher=whole.net)
    narrow = objective(batches.build(groups, (8, 16)))[1]
    wide = objective(batches.build(groups, (12, 40)))[1]
    for name, value in narrow.items():
        assert torch.allclose(value, wide[name], rtol=1e-4, atol=1e-5), name


def test_unlabelled_pairs_add_nothing_to_the_task_loss():
    logits = torch.randn(3, 4, requires_grad=True)
    label = torch.tensor([1, losses.UNLABELLED, 2])
    got = losses.cross_entropy(logits, label)
    assert torch.allclose(got, losses.cross_entropy(logits[[0, 2]], label[[0, 2]]))
    none = losses.cross_entropy(logits, torch.full((3,), losses.UNLABELLED))
    assert none == 0


@pytest.mark.parametrize("k", [1, 2, 3])
def test_gradients_reach_the_embeddings_from_both_sides(model, k):
    whole = model("bert", "span")
    split = Model.split(whole, at=k)
    batch = one_batch(batches_of(whole))
    recipe = override(RECIPES["deformer"], {"precision": "fp32"})
    loss, _ = Distill(split.net, TASKS["squad"], recipe, teacher=whole.net)(batch)
    loss.backward()
    moved = split.net.embedding.tokens.weight.grad.abs().sum(1) > 0
    query, passage = batch.query_ids[batch.query_real], batch.passage_ids[batch.passage_real]
    only_query = set(query.tolist()) - set(passage.tolist())
    only_passage = set(passage.tolist()) - set(query.tolist())
    assert only_query and all(moved[i] for i in only_query)
    assert only_passage and all(moved[i] for i in only_passage)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_pooled_vector_is_what_the_output_map_reads(model, pooling):
    whole = no_dropout(model("modernbert", "rank", classifier_pooling=pooling))
    batch = one_batch(batches_of(model("modernbert", "span")))
    head, seen = whole.net.heads["rank"], []
    hook = head.out.register_forward_hook(lambda module, given, result: seen.append(given[0]))
    out = forward_pair(whole.net, batch, "rank", how=Pass(hidden=True))
    hook.remove()
    assert head.spec.pooling == ("first" if pooling == "cls" else pooling)
    assert torch.allclose(out.pooled, seen[0], atol=1e-6)


def test_forward_pair_equals_the_two_components(model, family):
    whole = model(family, "span")
    for k in (0, 2):
        made = Model.split(whole, at=k)
        batch = one_batch(batches_of(made))
        length = batch.query_real.sum(1, keepdim=True)
        with torch.inference_mode():
            q, _ = made.net.input("query", batch.query_ids, batch.query_real)
            p, _ = made.net.input(
                "passage", batch.passage_ids, batch.passage_real, query_length=length
            )
            expected = made.net.cross(q, batch.query_real, p, batch.passage_real, heads=["span"])
            for how in (Pass(), Pass(hidden=True)):
                got = forward_pair(made.net, batch, "span", how=how).logits
                real = batch.span_real
                assert (got - expected["span"])[real].abs().max() < 2e-4, (family, k)


def test_options_of_a_group_share_their_encoded_passage(model):
    whole = model("bert", "choice")
    pairs = [
        Pair(query=q, passage=p, label=int(i == 0), id=f"{p}{i}", group=p)
        for p in ("the red castle", "a lake")
        for i, q in enumerate(("king", "moon", "star", "old ship"))
    ]
    made = tokenise(pairs, whole.tokenizer, TASKS["race"], train=True)
    batches = Batches(made, CPU, pad=0)
    batch = one_batch(batches)
    assert len(batch.passage_ids) == 2 and len(batch.query_ids) == 8
    for k in (0, 2):
        net = Model.split(whole, at=k).net
        with torch.inference_mode():
            together = forward_pair(net, batch, "choice").logits
        alone = Batches(tokenise(pairs, whole.tokenizer, TASKS["race"], train=True), CPU, pad=0)
        for row, number in enumerate(batch.rows.tolist()):
            group, option = divmod(number, 4)
            single = alone.build(torch.tensor([group]), (8, 8))
            with torch.inference_mode():
                got = forward_pair(net, single, "choice").logits
            assert (got[option] - together[row]).abs().max() < 1e-4


def test_cached_targets_are_the_teacher_s_logits(model):
    whole = model("bert", "span")
    batches = batches_of(whole)
    targets = soft_targets(whole.net, batches, TASKS["squad"], Recipe(precision="fp32"))
    batch = batches.build(torch.tensor([4, 1]), (16, 24))
    with torch.inference_mode():
        live = forward_pair(whole.net, batch, "span").logits
    real = batch.span_real
    assert (targets.of(batch) - live)[real].abs().max() < 1e-4
    assert soft_loss(TASKS["squad"], targets.of(batch), live, batch, 2.0) < 1e-6


def test_fake_quantised_states_pass_gradients_and_keep_to_the_grid():
    x = torch.randn(4, 6, requires_grad=True)
    y = fake_quantise(x, 8)
    scale = x.detach().abs().amax(-1, keepdim=True) / 127
    assert ((y - x).abs() <= scale * 0.51).all() and not torch.equal(x, y)
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    assert (fake_quantise(y.detach(), 8) - y).abs().max() < 2e-3
    rows = States(x.detach().numpy(), np.array([4]))
    for bits in (8, 4):
        codec = build_codec(name=f"int{bits}", width=6, tensors={})
        stored = codec.decode(codec.encode(rows)).values
        assert fake_quantise(x, bits).detach().numpy() == pytest.approx(stored, abs=1e-6)


def test_a_full_width_projection_from_principal_axes_changes_nothing(model):
    split = Model.split(model("bert", "span"), at=2)
    squeezed = with_projection(split, split.spec.encoder.width)
    batches = batches_of(split)
    start_projection(squeezed.net, batches, TASKS["squad"], 0)
    batch = one_batch(batches)
    with torch.inference_mode():
        plain = forward_pair(split.net, batch, "span").logits
        through = forward_pair(squeezed.net, batch, "span").logits
    assert (plain - through)[batch.span_real].abs().max() < 1e-3


def test_principal_axes_lose_the_discarded_eigenvalues(model):
    split = Model.split(model("bert", "span"), at=2)
    squeezed = with_projection(split, 8)
    batches = batches_of(split, 12)
    start_projection(squeezed.net, batches, TASKS["squad"], 0)
    rows, error = [], 0.0
    with torch.inference_mode():
        for batch in batches.walk(batches.ordered(10_000)):
            out = forward_pair(squeezed.net, batch, "span")
            rows += [h[real].double() for h, _, real in out.states]
            error = float(projection_loss(out.states))
    every = torch.cat(rows)
    values = torch.linalg.eigvalsh(torch.cov(every.T, correction=0))
    sizes = [len(r) for r in rows]
    means = [float((back - h)[real].square().mean()) for h, back, real in out.states]
    assert error == pytest.approx(float(np.mean(means)), rel=1e-4)
    assert np.average(means, weights=sizes) == pytest.approx(
        float(values[:-8].sum()) / 32, rel=1e-3
    )


def test_a_deeper_model_repeats_its_last_layer_with_weights_of_its_own(model):
    whole = model("bert", "span")
    deeper = deepen(whole)
    assert len(deeper.spec.layers) == 4
    last, new = (deeper.net.stack.ffn[str(layer.ffn_slot)] for layer in deeper.spec.layers[-2:])
    assert torch.equal(last.up.weight, new.up.weight) and last.up.weight is not new.up.weight
    batch = one_batch(batches_of(whole))
    recipe = Recipe(settings=Distillation(weights=EVERYTHING), precision="fp32")
    split = Model.split(deeper, at=2)
    loss, parts = Distill(split.net, TASKS["squad"], recipe, teacher=whole.net)(batch)
    assert torch.isfinite(loss) and parts["lrs"] > 0


def test_a_recipe_names_its_objective():
    assert objective_named(RECIPES["deformer"].objective) is Distill
    with pytest.raises(InputError, match="'gpt' is unknown; choose one of adapt, codec, depth"):
        objective_named("gpt")
