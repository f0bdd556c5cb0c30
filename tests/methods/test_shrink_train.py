"""What happens only while a model is trained, and `shrink` from end to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

import decoupled
from decoupled.errors import InputError, SpecError
from decoupled.methods.importance import sample_batches
from decoupled.methods.layerdrop.shrink import KeepLayers, LayerDrop
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.methods.prune_weights.shrink import PruneWeights
from decoupled.methods.quantise.shrink import Quantise, on_grid, rounded
from decoupled.methods.shrink import shrink, shrink_and_train
from decoupled.methods.tensors import linears
from decoupled.methods.theseus.shrink import Theseus
from decoupled.model.model import Model
from decoupled.model.nn.frame import ALL, take
from decoupled.train.data.batches import Batch
from decoupled.train.data.prepare import Prepared, prepare
from decoupled.train.loop.forward import forward_pair
from decoupled.train.losses import spread, task_loss
from decoupled.train.objectives.distill import Distill
from decoupled.train.recipe import PLAIN, Distillation, Optimiser, Watch, Weights
from toy import class_pairs

TASK = replace(
    PLAIN,
    optimiser=Optimiser(lr=1e-3, epochs=2.0, batch=8),
    precision="fp32",
    watch=Watch(log_every=1),
)
GUIDED = replace(
    TASK,
    settings=Distillation(weights=Weights(task=0.5, kd=0.5, lrs=0.5), match="uniform", span="sum"),
)


@pytest.fixture(scope="module")
def start(model: Callable[..., Model]) -> Model:
    whole = model("bert", "bare", num_hidden_layers=4)
    return Model.split(whole, at=2, positions="restart").with_heads(_task().head_spec)


def _task():
    from decoupled.train.data.tasks import task_for

    return task_for("pairs", class_pairs(8))


@pytest.fixture(scope="module")
def sample(start: Model) -> Prepared:
    return prepare(class_pairs(32), start, "pairs")


@pytest.fixture(scope="module")
def batch(start: Model, sample: Prepared) -> Batch:
    return next(iter(sample_batches(sample, start)))


def said(net, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        return forward_pair(net, batch, "classes").logits


def no_dropout(net) -> None:
    """In training mode, but without chance."""
    net.train()
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0


@pytest.fixture
def copy(start: Model) -> Model:
    made = apply(start, KeepLayers(layers=(0, 1, 2, 3)))
    no_dropout(made.net)
    return made


# LayerDrop ---------------------------------------------------------------------------------------


def test_no_drop_is_the_plain_model_and_all_dropped_is_its_input(copy, batch):
    plain = said(copy.net, batch)
    with LayerDrop(rate=0.0).hook(copy.net, None) as tick:
        tick(0, 10)
        assert torch.equal(said(copy.net, batch), plain)
    with copy.net.stack.hook(lambda context, x, run: take(x, context.rows)):
        untouched = said(copy.net, batch)
    with LayerDrop(rate=1.0).hook(copy.net, None) as tick:
        tick(0, 10)
        assert torch.equal(said(copy.net, batch), untouched)
        copy.net.eval()
        torch.testing.assert_close(said(copy.net, batch), plain)
    assert copy.net.stack._hooks == []


def test_skipped_layers_get_no_gradient_and_the_rest_do(copy, batch, sample):
    method = LayerDrop(rate=0.5, seed=3)
    skipped: list[int] = []
    with method.hook(copy.net, None) as tick:
        tick(2, 10)
        logits = forward_pair(copy.net, batch, "classes").logits
        task_loss(sample.task, TASK, logits, batch).backward()
    for number in range(4):
        gradient = copy.net.stack.ffn[str(number)].up.weight.grad
        if gradient is None or not gradient.any():
            skipped.append(number)
    assert 0 < len(skipped) < 4
    made = apply(copy, KeepLayers(layers=tuple(n for n in range(4) if n not in skipped)))
    torch.testing.assert_close(logits.detach(), said(made.net, batch))


def test_attention_and_feed_forward_maps_are_dropped_apart(copy, batch):
    with copy.net.stack.hook(lambda context, x, run: take(x, context.rows)):
        untouched = said(copy.net, batch)
    plain, both = said(copy.net, batch), LayerDrop(rate=1.0, blocks=True)
    with both.hook(copy.net, None) as tick:
        tick(0, 10)
        assert torch.equal(said(copy.net, batch), untouched)
    assert torch.equal(said(copy.net, batch), plain), "hooks are gone"
    with LayerDrop(rate=0.5, seed=1, blocks=True).hook(copy.net, None) as tick:
        tick(0, 10)
        draw = np.random.default_rng([1, 0]).random(8).reshape(4, 2) < 0.5
        assert 0 < draw.sum() < 8 and (draw[:, 0] != draw[:, 1]).any()
        logits = said(copy.net, batch)

    def by_hand(context, x, run):
        for block, skips in zip(context.layer.blocks, draw[context.number], strict=True):
            module = copy.net.stack.get_submodule(block.name)[str(block.slot)]
            x = x if skips else module(x, replace(context, rows=ALL))
        return take(x, context.rows)

    with copy.net.stack.hook(by_hand):
        torch.testing.assert_close(said(copy.net, batch), logits)


def test_layers_are_skipped_as_often_as_asked(copy):
    seen = []
    with LayerDrop(rate=0.3, seed=1).hook(copy.net, None) as tick:
        act = copy.net.stack._hooks[0]
        for step in range(400):
            tick(step, 400)
            contexts = [context_of(n) for n in range(4)]
            seen += [act(c, torch.zeros(1, 1, 1), lambda c, x: x + 1).item() for c in contexts]
    assert sum(seen) / len(seen) == pytest.approx(0.7, abs=0.04)
    with pytest.raises(SpecError, match=r"rate=1\.5; choose a probability"):
        apply(copy, parse("layerdrop:rate=1.5"))


def context_of(number: int):
    from decoupled.model.nn.block import Context
    from decoupled.model.nn.frame import ALL

    return Context(number=number, layer=None, frame=None, rows=ALL)


# Theseus -----------------------------------------------------------------------------------------


def test_nothing_replaced_is_the_predecessor_and_everything_the_successor(start, copy, batch):
    successor = apply(start, Theseus(layers=2))
    no_dropout(successor.net)
    assert successor.spec.split == 1
    for rate, expected in ((0.0, said(copy.net, batch)), (1.0, said(successor.net, batch))):
        method = Theseus(layers=2, rate=rate, schedule="constant")
        with method.hook(successor.net, copy.net) as tick:
            tick(0, 100)
            torch.testing.assert_close(said(successor.net, batch), expected)


def test_a_mixture_is_the_layers_written_out(start, copy, batch):
    successor = apply(start, Theseus(layers=2))
    # The first module stays the predecessor's layers 0 and 1, the second is the successor's layer 1.
    method = next(
        m
        for m in (Theseus(layers=2, rate=0.5, schedule="constant", seed=s) for s in range(50))
        if _draw(m, 2) == [False, True]
    )
    no_dropout(successor.net)
    with method.hook(successor.net, copy.net) as tick:
        tick(0, 1000)
        mixed = said(successor.net, batch)
    by_hand = apply(start, KeepLayers(layers=(0, 1, 2)))
    state = by_hand.net.state_dict()
    for name, tensor in successor.net.state_dict().items():
        if name.startswith(("stack.attention.1.", "stack.ffn.1.")):
            state[name.replace(".1.", ".2.", 1)].copy_(tensor)
    by_hand = Model(by_hand.net, by_hand.tokenizer)
    torch.testing.assert_close(mixed, said(by_hand.net.eval(), batch))


def _draw(method: Theseus, count: int) -> list[bool]:
    import numpy as np

    return (np.random.default_rng([method.seed, 0]).random(count) < method.rate).tolist()


def test_the_rate_rises_to_one():
    method = Theseus(rate=0.3, until=0.5)
    assert method.share(0, 100) == pytest.approx(0.3)
    assert method.share(25, 100) == pytest.approx(0.65)
    assert method.share(50, 100) == method.share(99, 100) == 1.0
    assert Theseus(rate=0.3, until=0.5, schedule="constant").share(49, 100) == 0.3


def test_outside_of_training_the_successor_stands_alone(start, copy, batch):
    successor = apply(start, Theseus(layers=2))
    alone = said(successor.net.eval(), batch)
    with Theseus(layers=2, rate=0.01, schedule="constant").hook(successor.net, copy.net) as tick:
        tick(0, 100)
        assert torch.equal(said(successor.net.eval(), batch), alone)
        no_dropout(successor.net)
        assert not torch.allclose(said(successor.net, batch), alone), "a training step mixes"


def test_the_successor_starts_from_the_first_layers(start):
    old, new = start.net.state_dict(), apply(start, Theseus(layers=2)).net.state_dict()
    slots = [name for name in new if name.startswith("stack.")]
    assert {name.split(".")[2] for name in slots} == {"0", "1"}
    assert all(torch.equal(new[name], old[name]) for name in slots)


def test_only_the_successor_is_trained(start, sample):
    made, reports = shrink_and_train(start, [Theseus(layers=2)], sample, TASK)
    old, new = start.net.state_dict(), made.net.state_dict()
    assert torch.equal(old["embedding.tokens.weight"], new["embedding.tokens.weight"])
    assert torch.equal(old["heads.classes.out.weight"], new["heads.classes.out.weight"])
    assert not torch.equal(old["stack.ffn.0.up.weight"], new["stack.ffn.0.up.weight"])
    assert reports[-1].steps > 0 and len(made.spec.layers) == 2


def test_a_new_head_is_not_left_at_random(start, model, sample):
    bare = Model.split(model("bert", "bare", num_hidden_layers=4), at=2)
    with pytest.raises(InputError, match="has no 'classes' head that has learned anything; train"):
        shrink_and_train(bare, [Theseus(layers=2)], sample, TASK)
    shrink_and_train(bare, [Theseus(layers=2, frozen=False)], sample, TASK)


def test_modules_must_fit_the_split(start, model):
    with pytest.raises(
        SpecError, match="there are 4 layers; choose a smaller number that divides it"
    ):
        apply(start, Theseus(layers=3))
    odd = Model.split(start, at=1)
    with pytest.raises(SpecError, match="the split at 1 cuts one in two"):
        apply(odd, Theseus(layers=2))


def test_nothing_else_may_change_the_depth_meanwhile(start, sample):
    with pytest.raises(InputError, match="let no other method change the depth"):
        methods = [Theseus(layers=2), parse("keep-layers:layers=0")]
        shrink_and_train(Model.split(start, at=0), methods, sample, TASK)
    with pytest.raises(InputError, match=r"successor is 16 wide .* change the width"):
        shrink_and_train(start, [Theseus(layers=2), parse("student:width=16")], sample, TASK)
    with (
        pytest.raises(InputError, match="give it as the teacher"),
        Theseus().hook(start.net, None),
    ):
        pass


# Quantisation and masks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["quantise", "quantise:bits=4,inputs=float", "quantise:inputs=static"]
)
def test_training_sees_what_the_codes_will_give(copy, batch, sample, text):
    method = parse(text)
    names = list(copy.net.state_dict())
    with method.hook(copy.net, None) as tick:
        tick(0, 10)
        said(copy.net, batch)  # Warm: static inputs take their range from here.
        tick(5, 10)
        trained = said(copy.net, batch)
    assert not torch.equal(trained, said(copy.net, batch))
    assert list(copy.net.state_dict()) == names, "nothing is left behind"
    if method.inputs == "static":
        method = replace(method, ranges=_largest_inputs(copy.net, batch))
    real = apply(copy, replace(method, embedding=False), sample)
    apart = (trained - said(real.net, batch)).abs()
    # An input halfway between two codes may be rounded to either, as the processor adds.
    assert apart.median() < 1e-5 and (apart < 1e-3).float().mean() > 0.8 and apart.max() < 0.02


def _largest_inputs(net, batch: Batch) -> tuple[tuple[str, float], ...]:
    """Of each matrix, while weights are seen as their codes: what the warm step saw."""
    tops: dict[str, list[float]] = {}
    with Quantise(inputs="float").hook(net, None):
        hooks = [
            module.register_forward_pre_hook(
                lambda _, given, name=name: tops.setdefault(name, []).append(given[0].abs().max())
            )
            for name, module in linears(net).items()
        ]
        said(net, batch)
    for hook in hooks:
        hook.remove()
    means = {name: seen[0] for name, seen in tops.items()}
    for name, seen in tops.items():
        for value in seen[1:]:
            means[name] = 0.9 * means[name] + 0.1 * value
    return tuple((name, float(mean)) for name, mean in means.items())


def test_gradients_pass_straight_through_inside_the_range():
    x = torch.tensor([0.3, -0.4, 5.0, -7.0], requires_grad=True)
    y = rounded(x, torch.tensor(0.01))
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert y.tolist() == pytest.approx([0.3, -0.4, 1.27, -1.27], abs=1e-6)
    weight = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(on_grid(on_grid(weight, 8), 8), on_grid(weight, 8))


def test_aware_training_ends_in_codes(start, sample):
    made, _ = shrink_and_train(start, [Quantise()], sample, TASK)
    assert made.spec.layers[0].ffn_maps.bits == 8
    assert made.net.state_dict()["stack.ffn.0.up.codes"].dtype == torch.int8


def test_masks_survive_the_optimiser(start, sample):
    method = PruneWeights(sparsity=0.6, until=0.5)
    assert method.reached(0, 100) == 0 and method.reached(50, 100) == 0.6
    assert 0.3 < method.reached(15, 100) < 0.6
    seen: list[float] = []

    made, _ = shrink_and_train(start, [method], sample, replace(TASK, seed=1))
    for name, tensor in made.net.state_dict().items():
        if name.startswith("stack.ffn.") and name.endswith(("up.weight", "down.weight")):
            seen.append(float((tensor == 0).float().mean()))
    assert seen and all(share == pytest.approx(0.6, abs=1e-3) for share in seen)
    assert set(made.net.state_dict()) == set(start.net.state_dict())


def test_weights_from_before_the_full_sparsity_are_not_kept(start, sample, monkeypatch):
    from decoupled.train import run

    scores = iter((9.0, 8.0, 7.0, 6.0))
    monkeypatch.setattr(run, "_judge", lambda *given: lambda: next(scores))
    recipe = replace(TASK, watch=Watch(log_every=1, evaluations=4, patience=1))
    method = PruneWeights(sparsity=0.6, until=0.5)
    _, (report,) = shrink_and_train(start, [method], sample, recipe, tune=sample)
    assert (report.steps, report.best_step, report.best) == (8, 6, 7.0)
    scores = iter((9.0, 8.0))
    at_once = replace(method, gradual=False)
    _, (report,) = shrink_and_train(start, [at_once], sample, recipe, tune=sample)
    assert (report.steps, report.best_step) == (4, 2) and report.stopped_early


@pytest.mark.parametrize(
    "method",
    [
        PruneWeights(sparsity=0.6, gradual=False),
        PruneWeights(sparsity=0.6, until=0.75),
        Quantise(inputs="static", warmup=0.3),
    ],
    ids=["masks", "growing masks", "ranges"],
)
def test_a_resumed_run_remembers_what_its_method_holds(start, sample, tmp_path, method):
    from decoupled.train.run import Setting

    recipe = replace(
        TASK,
        optimiser=Optimiser(lr=2e-2, epochs=2.0, batch=8),
        watch=Watch(log_every=1, save_every=4),
    )

    class Stop(Exception):
        pass

    def stop(line) -> None:
        if line["step"] == 5:
            raise Stop

    def run(folder, progress=None) -> dict[str, torch.Tensor]:
        setting = Setting(device="cpu", out=folder, progress=progress)
        return shrink_and_train(start, [method], sample, recipe, setting=setting)[
            0
        ].net.state_dict()

    with pytest.raises(Stop):
        run(tmp_path / "cut", stop)
    resumed, whole = run(tmp_path / "cut"), run(tmp_path / "whole")
    assert not any("held" in name for name in whole)
    for name, tensor in whole.items():
        assert torch.equal(resumed[name], tensor), name


def test_a_resumed_run_does_not_decide_again(start, sample, tmp_path, monkeypatch):
    from decoupled.methods.layerdrop import shrink as layers
    from decoupled.methods.shrink import _begun
    from decoupled.train.run import Setting

    recipe = replace(TASK, watch=Watch(log_every=1, save_every=2))
    pairs, out, methods = class_pairs(32), tmp_path / "small", ["keep-layers:count=3"]
    whole = shrink(start, methods, data=pairs, recipe=recipe)

    class Stop(Exception):
        pass

    def stop(line) -> None:
        if line["phase"] == "train" and line["step"] == 3:
            raise Stop

    def cut() -> None:
        with pytest.raises(Stop):
            shrink(start, methods, data=pairs, recipe=recipe, out=out, progress=stop)

    cut()
    searched: list[str] = []
    search = layers._searched
    monkeypatch.setattr(layers, "_searched", lambda *a: searched.append("again") or search(*a))
    made = shrink(start, methods, data=pairs, recipe=recipe, out=out)
    assert not searched
    for name, tensor in whole.net.state_dict().items():
        assert torch.equal(made.net.state_dict()[name], tensor), name
    assert not list((tmp_path / "small.run").glob("*/")), "nothing but the log is left"
    cut()
    other = _begun(
        start, [parse("keep-layers:count=2")], sample, Setting(out=tmp_path / "small.run")
    )
    assert len(other.spec.layers) == 2, "what other methods decided is not taken over"


def test_recomputed_gradients_are_the_same(copy, batch, sample):
    def gradient() -> torch.Tensor:
        copy.net.zero_grad()
        logits = forward_pair(copy.net, batch, "classes").logits
        task_loss(sample.task, TASK, logits, batch).backward()
        return copy.net.stack.ffn["0"].up.weight.grad.clone()

    plain = gradient()
    with parse("checkpoint-gradients").hook(copy.net, None):
        torch.testing.assert_close(gradient(), plain)


# Students ----------------------------------------------------------------------------------------


def test_a_narrow_student_learns_through_a_bridge(start, sample, batch):
    student = apply(start, parse("student:layers=2,width=16"))
    assert student.spec.encoder.width == 16 and student.spec.split == 1
    assert [layer.attention.heads for layer in student.spec.layers] == [2, 2]
    objective = Distill(student.net, sample.task, GUIDED, teacher=start.net.eval())
    loss, parts = objective(batch)
    loss.backward()
    assert objective.bridge.weight.shape == (32, 16) and objective.bridge.weight.grad.any()
    assert set(parts) == {"task", "kd", "lrs"}
    made, _ = shrink_and_train(start, [parse("student:layers=2,width=16")], sample, GUIDED)
    assert "bridge.weight" not in made.net.state_dict()
    attention = replace(
        GUIDED, settings=Distillation(weights=Weights(task=0.0, attention=1.0, hidden=1.0))
    )
    _, parts = Distill(student.net, sample.task, attention, teacher=start.net)(batch)
    assert parts["attention"] > 0 and parts["hidden"] > 0


def test_a_run_with_a_bridge_goes_on_as_if_never_stopped(start, sample, tmp_path):
    from decoupled.train.run import Setting

    recipe = replace(GUIDED, watch=Watch(log_every=1, save_every=3))
    method = [parse("student:width=16")]
    whole, _ = shrink_and_train(start, method, sample, recipe)

    class Stop(Exception):
        pass

    def stop(line) -> None:
        if line["step"] == 4:
            raise Stop

    with pytest.raises(Stop):
        setting = Setting(out=tmp_path, progress=stop)
        shrink_and_train(start, method, sample, recipe, setting=setting)
    again, _ = shrink_and_train(start, method, sample, recipe, setting=Setting(out=tmp_path))
    for name, tensor in whole.net.state_dict().items():
        torch.testing.assert_close(again.net.state_dict()[name], tensor)


def test_a_student_without_changes_is_the_model(start, batch):
    same = apply(start, parse("student"))
    torch.testing.assert_close(said(same.net, batch), said(start.net.eval(), batch))
    spaced = apply(start, parse("student:layers=2"))
    old = start.net.state_dict()
    close = spaced.net.state_dict()["stack.ffn.1.up.weight"]
    assert torch.equal(close, old["stack.ffn.3.up.weight"]), "the last of each half"


def test_a_student_has_a_layer_on_both_sides_of_the_split(start):
    with pytest.raises(SpecError, match=r"student layers=1 leaves nothing .* choose 2\.\.4"):
        apply(start, parse("student:layers=1"))
    assert apply(Model.split(start, at=0), parse("student:layers=1")).spec.split == 0


@pytest.mark.parametrize(
    "text", ["student:layers=2", "student:layers=2,start=first", "theseus:layers=2"]
)
def test_passages_that_stay_as_they_are_still_do(start, text):
    one_way = Model.split(start, at=2, one_way="auto")
    made = apply(one_way, parse(text))
    assert one_way.spec.one_way == (3, 4) and made.spec.one_way == (2,)
    part = Model.split(start, at=2, one_way=[3])
    assert apply(part, parse(text)).spec.one_way == (), (
        "where its last layer moved them, so does this"
    )


def test_layers_are_matched_evenly():
    layers = [torch.full((1,), float(n)) for n in range(6)]
    assert [int(x) for x in spread(layers, 3)] == [1, 3, 5]
    assert [int(x) for x in spread(layers, 2)] == [2, 5]
    assert len(spread(layers, 9)) == 6


# From end to end ---------------------------------------------------------------------------------


def test_shrink_folds_in_order_and_saves(start, sample, tmp_path):
    pairs = class_pairs(16)
    made = decoupled.shrink(
        start,
        ["prune-heads:share=0.5", "prune-neurons:share=0.5", "quantise"],
        data=pairs,
        out=tmp_path / "small",
    )
    methods = [row["method"] for row in made.history if row["did"] == "shrink"]
    assert methods == ["prune-heads", "prune-neurons", "quantise"]
    assert Model.load(tmp_path / "small").fingerprint == made.fingerprint
    assert made.fingerprint != start.fingerprint, "an index of the old one must not open"


ACTING = (
    "layerdrop",
    "theseus:layers=2",
    "student:layers=2",
    "student:width=16",
    "prune-weights",
    "quantise",
    "quantise:inputs=static",
    "checkpoint-gradients",
)


@pytest.mark.parametrize("first", ACTING)
def test_what_acts_while_training_goes_together_or_says_why_not(start, first):
    recipe = replace(TASK, optimiser=Optimiser(lr=1e-3, epochs=1.0, batch=16))
    clear = (
        "must be written last",
        "quantise last",
        "divides it",
        "let no other method change the",
    )
    for second in ACTING:
        try:
            made = shrink(start, [first, second], data=class_pairs(16), recipe=recipe)
        except (SpecError, InputError) as error:
            assert any(words in str(error) for words in clear), f"{first}, {second}: {error}"
            continue
        tensors = made.net.state_dict().values()
        assert all(t.isfinite().all() for t in tensors if t.is_floating_point())


def test_one_method_may_be_given_alone(start):
    assert shrink(start, "low-rank:rank=8").spec == shrink(start, ["low-rank:rank=8"]).spec


def test_a_method_tells_how_much_it_has_looked_at(start):
    lines: list[dict] = []
    methods = ["prune-heads:by=weight", "keep-layers:count=3"]
    shrink(start, methods, data=class_pairs(16), progress=lines.append)
    assert {line["phase"] for line in lines} == {"keep-layers"}, "the other needs no data"
    steps = [line["step"] for line in lines]
    assert steps == sorted(steps) and steps[-1] == 2 * 16, "two subsets were tried on 16 pairs"
    for text in ("keep-layers:count=3,examples=5", "share:scope=global,start=best,examples=5"):
        lines.clear()
        shrink(start, [text], data=class_pairs(16), progress=lines.append)
        assert lines[-1]["step"] % 5 == 0 and lines[-1]["step"] <= 4 * 5
    trained: list[dict] = []
    shrink(
        start,
        ["keep-layers:count=3", "quantise:inputs=static"],
        data=class_pairs(16),
        recipe=TASK,
        progress=trained.append,
    )
    phases = list(dict.fromkeys(line["phase"] for line in trained))
    assert phases == ["keep-layers", "quantise", "train"], (
        "ranges are tried before, and found after"
    )
    assert trained[-1]["phase"] == "quantise"


def test_training_wins_back_what_was_lost(start, sample, batch):
    optimiser = Optimiser(lr=3e-3, epochs=16.0, batch=8)
    recipe = replace(
        TASK,
        optimiser=optimiser,
        settings=Distillation(weights=Weights(task=0.0, kd=1.0, lrs=1.0)),
    )
    cut = apply(start, parse("prune-neurons:share=0.5"), sample)
    made = shrink(start, ["prune-neurons:share=0.5"], data=class_pairs(32), recipe=recipe)
    assert made.spec == cut.spec
    target = said(start.net.eval(), batch)
    gaps = [float((said(m.net.eval(), batch) - target).norm()) for m in (cut, made)]
    assert gaps[1] < gaps[0] / 2


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        (["quantise", "prune-weights"], "quantise last"),
        (["quantise:bits=4,group=8"], "they need codes with one scale per row"),
        (["prune-weights:sparsity=1.5"], "choose a share from 0 up to"),
    ],
)
def test_what_cannot_be_applied_in_the_end_is_refused_before_training(start, methods, said):
    lines: list[dict] = []
    with pytest.raises(SpecError, match=said):
        shrink(start, methods, data=class_pairs(16), recipe=TASK, progress=lines.append)
    assert not lines, "nothing was trained"


def test_what_cannot_be_trained(start, sample):
    with pytest.raises(InputError, match="must be written last"):
        shrink_and_train(start, [Quantise(), LayerDrop()], sample, TASK)
    with pytest.raises(InputError, match="training needs labelled pairs"):
        shrink(start, ["layerdrop"], recipe="plain")
    with pytest.raises(InputError, match="read different tokens"):
        shrink_and_train(start, [parse("reduce-vocabulary")], sample, GUIDED)


def test_a_recipe_from_before_reads_as_it_was():
    from decoupled.model.jsonable import to_json
    from decoupled.train.objectives.base import read_recipe

    plain = to_json(PLAIN)
    plain["settings"].pop("match")
    assert read_recipe(plain) == PLAIN
