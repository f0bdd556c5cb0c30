"""Layers over two streams: the same gradients as autograd's, from the outputs alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import decoupled as dc
from decoupled.errors import InputError, SpecError
from decoupled.measure.counts import parameters, work
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.methods.reversible import module as reversible
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.model import Model
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import ALL, Frame
from decoupled.model.nn.stack import Stack
from decoupled.model.spec import ModelSpec
from decoupled.runtime.open import open_runtime
from decoupled.runtime.torch import TorchRuntime
from decoupled.train.recipe import Distillation, Optimiser, Recipe, Weights
from toy import span_pairs

TOKENS = 9


@pytest.fixture(scope="module")
def paired(model) -> Model:
    return apply(Model.split(model("bert", "span"), at=2, positions="restart"), parse("reversible"))


def doubled(paired: Model, *, dropout: float = 0.0) -> Stack:
    """Its stack in double precision, training."""
    chance = replace(paired.spec.encoder.dropout, hidden=dropout, attention=dropout)
    encoder = replace(paired.spec.encoder, dropout=chance)
    made = paired.rebuild(replace(paired.spec, encoder=encoder), {})
    return made.net.stack.double().train()


def inputs(stack: Stack) -> tuple[torch.Tensor, Frame]:
    torch.manual_seed(1)
    x = torch.randn(2, TOKENS, stack.spec.width, dtype=torch.float64, requires_grad=True)
    real = torch.arange(TOKENS)[None] < torch.tensor([TOKENS, 5])[:, None]
    return x, Frame(torch.arange(TOKENS).expand(2, -1), real)


def gradients(stack: Stack, rows=ALL, *, keep: bool) -> list[torch.Tensor]:
    """By recomputation, or with a hook, by autograd through every layer."""
    x, frame = inputs(stack)
    stack.zero_grad(set_to_none=True)
    torch.manual_seed(2)
    if keep:
        with stack.hook(lambda context, x, run: run(context, x)):
            y = stack(x, frame, rows=rows)
    else:
        y = stack(x, frame, rows=rows)
    (y * y).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in stack.parameters() if p.grad is not None)]


@pytest.mark.parametrize("rows", [ALL, (slice(0, 1),)], ids=["all rows", "first row"])
def test_gradients_are_those_of_autograd(paired, rows):
    stack = doubled(paired)
    kept, again = (gradients(stack, rows, keep=keep) for keep in (True, False))
    assert len(kept) == len(again) == 2 + len(list(stack.parameters()))
    for one, other in zip(kept, again, strict=True):
        assert (one - other).abs().max() < 1e-12


def test_dropout_falls_the_same_way_again(paired):
    stack = doubled(paired, dropout=0.3)
    kept, again = (gradients(stack, keep=keep) for keep in (True, False))
    for one, other in zip(kept, again, strict=True):
        assert (one - other).abs().max() < 1e-12
    still = gradients(doubled(paired), keep=False)
    assert (still[0] - again[0]).abs().max() > 1e-3, "nothing was dropped"


def test_the_inverse_gives_the_input_back(paired):
    stack = doubled(paired)
    x, frame = inputs(stack)
    seen = []
    with stack.hook(lambda context, x, run: seen.append((context, x)) or run(context, x)):
        stack(x, frame)
    context, pair = seen[0]
    steps = stack._steps(context)
    after = reversible.advance(pair, steps)
    target, source = after.chunk(2, -1)
    for step in reversed(steps):
        target, source = source - reversible._change(step, target), target
    assert (torch.cat([target, source], -1) - pair).abs().max() < 1e-12
    first, second = pair.chunk(2, -1)
    assert torch.equal(first, second)


def test_it_is_the_equations(paired):
    stack = doubled(paired)
    x, frame = inputs(stack)
    first = second = x
    with torch.no_grad():
        for number, layer in enumerate(stack.spec.layers):
            attention, ffn = (getattr(stack, b.name)[str(b.slot)] for b in layer.blocks)
            at = Context(number=number, layer=layer, frame=frame, rows=ALL)
            first = first + attention.attention(attention.norm(second), at)
            hidden = torch.nn.functional.gelu(ffn.up(ffn.norm(first)))
            second = second + ffn.down(hidden)
        expected = stack.norm((first + second) / 2)
        assert (stack(x, frame) - expected).abs().max() < 1e-12


def test_what_is_kept_for_the_gradient_does_not_grow_with_depth(model):
    def kept(method: str | None, layers: int) -> int:
        made = model("bert", "rank", num_hidden_layers=layers)
        made = made if method is None else apply(made, parse(method))
        sizes = []
        x, frame = inputs(made.net.stack.train())
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.append(t.numel()) or t, lambda t: t
        )
        with hooks:
            made.net.stack(x.float(), frame)
        return sum(sizes)

    assert kept("reversible", 6) == kept("reversible", 2)
    assert kept(None, 6) > 2.5 * kept(None, 2)


def test_states_know_nothing_of_batch_mates_and_stored_is_direct(paired, tmp_path):
    runtime = TorchRuntime(paired)
    passages = [np.arange(5, 5 + n) for n in (17, 4)]
    asked = runtime.encode("query", [np.array([5, 6, 7])]).states
    together = runtime.encode("passage", passages).states
    logits = list(runtime.cross(asked, together, ("span",))["span"])
    for n, ids in enumerate(passages):
        alone = runtime.encode("passage", [ids]).states
        assert np.abs(alone.values - list(together)[n]).max() < 1e-5
        direct = runtime.cross(asked, alone, ("span",))["span"].values
        assert np.abs(direct - logits[n]).max() < 1e-5
    paired.save(tmp_path / "pairs")
    assert Model.load(tmp_path / "pairs").fingerprint == paired.fingerprint
    with pytest.raises(InputError, match=r"openvino runtime \(it lacks reversible layers\)"):
        open_runtime(tmp_path / "pairs", name="openvino")


def test_it_costs_what_the_plain_model_costs_and_joins_the_fingerprint(paired):
    layers = tuple(replace(layer, reversible=False) for layer in paired.spec.layers)
    encoder = replace(paired.spec.encoder, layers=layers)
    plain = paired.rebuild(replace(paired.spec, encoder=encoder), {})
    assert parameters(plain.spec) == parameters(paired.spec)
    assert work(plain.spec, query=5, passage=9) == work(paired.spec, query=5, passage=9)
    assert plain.fingerprint != paired.fingerprint
    assert from_json(ModelSpec, to_json(paired.spec)) == paired.spec
    assert "reversible" not in str(to_json(plain.spec))


def test_it_learns(paired):
    recipe = Recipe(
        optimiser=Optimiser(epochs=4, batch=8, lr=1e-3),
        settings=Distillation(weights=Weights(kd=0)),
        precision="fp32",
    )
    after = dc.distill(paired, data=span_pairs(32), task="squad", recipe=recipe)
    before, now = (
        dc.evaluate(made, data=span_pairs(32), task="squad")["f1"] for made in (paired, after)
    )
    assert now > before + 5


def test_what_cannot_be_reversed_is_refused(model, paired):
    with pytest.raises(SpecError, match="disentangled attention, which reads more than its input"):
        apply(model("deberta-v2", "rank"), parse("reversible"))
    with pytest.raises(SpecError, match="with frozen passages; it normalises before"):
        Model.split(paired, at=1, one_way=(2,))
    with pytest.raises(SpecError, match="order 'post'"):
        replace(paired.spec.layers[0], order="post")
