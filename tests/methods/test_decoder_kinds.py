"""Causal and cross-attention: what a row may see, below the split or not, and the layer of a decoder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from decoupled.errors import InputError, SpecError
from decoupled.measure.counts import parameters, work
from decoupled.methods.decoder.part import Causal, Cross
from decoupled.methods.lsra.module import neighbours
from decoupled.methods.lsra.part import LongShort
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.model import Model
from decoupled.model.nn.block import Source
from decoupled.model.nn.frame import Frame
from decoupled.model.nn.stack import Stack
from decoupled.model.parts.layer import Block
from decoupled.model.spec import EncoderSpec, ModelSpec
from decoupled.runtime.open import open_runtime
from decoupled.runtime.torch import TorchRuntime

WIDTH, HEADS = 32, 4
CROSS = Cross(heads=HEADS, head_width=8)


def rebuilt(whole: Model, attention, more=()) -> Model:
    """The same model with that attention, and these blocks, in every layer."""
    layers = tuple(
        replace(layer, attention=attention, more=tuple(replace(b, slot=n) for b in more))
        for n, layer in enumerate(whole.spec.layers)
    )
    encoder = replace(whole.spec.encoder, layers=layers)
    return whole.rebuild(replace(whole.spec, encoder=encoder), {"did": "test"}, seed=1)


@pytest.fixture(params=[None, 10_000.0], ids=["plain", "rotary"])
def causal(request, model) -> Model:
    kind = Causal(heads=HEADS, head_width=8, rotary=request.param)
    return Model.split(rebuilt(model("bert", "classes"), kind), at=2)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def frame_of(batch: int, tokens: int, real: torch.Tensor | None = None) -> Frame:
    real = torch.ones(batch, tokens, dtype=torch.bool) if real is None else real
    return Frame(torch.arange(tokens).expand(batch, -1), real)


def decoder(model, **options) -> tuple[EncoderSpec, Stack]:
    """Causal attention, attention to the source, feed-forward; as many layers as the toy model has."""
    kind = Causal(heads=HEADS, head_width=8, rotary=10_000.0)
    more = (Block(name="source", part=CROSS, slot=0, after="attention"),)
    spec = rebuilt(model("bert", "classes"), kind, more).spec.encoder
    spec = replace(spec, **options)
    torch.manual_seed(2)
    return spec, Stack(spec).eval()


def test_a_causal_token_sees_itself_and_those_before_it(causal):
    context, attention = None, causal.net.stack.attention["0"]
    found = []

    def keep(context, x, y):
        found.append((context, x))

    x, real = random(2, 6, WIDTH), torch.ones(2, 6, dtype=torch.bool)
    real[1, 4:] = False
    causal.net.stack(x, frame_of(2, 6, real), first=0, last=1, observe=keep)
    context, x = found[0]
    seen = attention.weights(x, context) > 0
    assert torch.equal(seen[0, 0], torch.ones(6, 6).tril().bool())
    assert not seen[1, :, :4, 4:].any() and seen.any(-1).all()


def test_causal_is_what_torch_calls_causal(causal):
    attention = causal.net.stack.attention["0"].attention
    x, found = random(1, 5, WIDTH), []
    causal.net.stack(x, frame_of(1, 5), first=0, last=1, observe=lambda c, x, y: found.append(c))
    q, k = attention._queries_and_keys(x, found[0])
    v = attention.split_heads(attention.value(x))
    expected = attention.join(F.scaled_dot_product_attention(q, k, v, is_causal=True))
    torch.testing.assert_close(attention(x, found[0]), expected)


def test_later_tokens_batch_mates_and_padding_change_no_causal_state(causal):
    runtime, text = TorchRuntime(causal), np.arange(5, 11)
    alone = runtime.encode("passage", [text]).states.values
    mates = runtime.encode("passage", [text, np.arange(3, 14)]).states.values[:6]
    assert np.abs(alone - mates).max() < 1e-5
    net, real = causal.net, torch.ones(1, 6, dtype=torch.bool)
    ids = torch.from_numpy(text)[None]
    other = ids.clone()
    other[0, 4:] = 3
    same, changed = (net.hidden("passage", i, real) for i in (ids, other))
    assert torch.equal(same[:, :4], changed[:, :4]) and not torch.equal(same[:, 4], changed[:, 4])


@pytest.mark.parametrize("kind", [Causal(heads=HEADS, head_width=8), CROSS])
def test_they_are_counted_read_back_and_declined_by_name(kind, model, tmp_path):
    made = rebuilt(model("bert", "classes"), kind)
    split = Model.split(made, at=2) if kind.below_split else made
    assert from_json(ModelSpec, to_json(split.spec)) == split.spec
    assert parameters(split.spec).total == sum(p.numel() for p in split.net.parameters())
    ids, real = torch.full((1, 5), 5), torch.ones(1, 5, dtype=torch.bool)
    with torch.no_grad():
        states = [split.net.input(side, ids, real)[0] for side in ("query", "passage")]
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            split.net.cross(states[0], real, states[1], real, heads=["classes"])
    assert counter.get_total_flops() == 2 * work(split.spec, query=5, passage=5).cross
    split.save(tmp_path / "made")
    with pytest.raises(InputError, match=f"it lacks {kind.kind} attention"):
        open_runtime(tmp_path / "made", name="openvino")


def test_in_a_causal_frame_no_kind_looks_ahead(model):
    kind = Causal(heads=HEADS, head_width=8)
    plain = model("bert", "classes")
    stack, x = plain.net.stack, random(2, 5, WIDTH)
    same = Stack(rebuilt(plain, kind).spec.encoder).eval()
    same.load_state_dict(stack.state_dict())
    frame = frame_of(2, 5)
    causal = Frame(frame.position_BT, frame.real_BT, causal=True)
    torch.testing.assert_close(stack(x, causal), same(x, frame))
    assert not torch.allclose(stack(x, frame), same(x, frame), atol=1e-3)
    fixed = apply(plain, parse("fix-heads:assign=order"))
    with pytest.raises(InputError, match="layer 0 has fixed patterns, which look at later tokens"):
        fixed.net.stack(x, causal)


@pytest.mark.parametrize("dynamic", [True, False])
def test_in_a_causal_frame_a_convolution_looks_back(dynamic, model):
    kind = LongShort(heads=2, head_width=8, kernel=3, kernels=2, dynamic=dynamic)
    stack = rebuilt(model("bert", "classes"), kind).net.stack
    x, frame = random(1, 6, WIDTH), frame_of(1, 6)
    other = x.clone()
    other[:, 4:] += 1
    for causal in (True, False):
        seen = Frame(frame.position_BT, frame.real_BT, causal=causal)
        before, after = (stack(given, seen, last=1)[:, :4] for given in (x, other))
        assert torch.equal(before, after) is causal
    near = neighbours(Frame(frame.position_BT, frame.real_BT, causal=True), 3)
    assert near[0, 3].tolist() == [-1, 0, 1, 2, -1, -1]


def test_cross_attention_reads_the_other_side_of_a_pair_and_stays_above_the_split(model):
    made = rebuilt(model("bert", "classes"), CROSS)
    with pytest.raises(SpecError, match=r"cross attention, which reads both texts.*choose 0\.\.0"):
        Model.split(made, at=1)
    found = []
    x, real = random(1, 7, WIDTH), torch.ones(1, 7, dtype=torch.bool)
    real[0, 2] = real[0, 6] = False
    stack, frame = made.net.stack, frame_of(1, 7, real)
    stack(x, frame, last=1, query=3, observe=lambda c, x, y: found.append(c))
    seen = (stack.attention["0"].weights(x, found[0]) > 0)[0, 0]
    query, passage = [True, True, False, *[False] * 4], [*[False] * 3, True, True, True, False]
    assert seen.tolist() == [passage] * 3 + [query] * 4
    with pytest.raises(InputError, match="no other text to look at"):
        stack(x, frame, last=1)


def test_cross_attention_reads_a_source_and_keeps_its_keys(model):
    _, stack = decoder(model)
    attention = stack.source["0"].attention
    x, states = random(2, 3, WIDTH), random(2, 5, WIDTH, seed=1)
    real = torch.ones(2, 5, dtype=torch.bool)
    real[1, 3:] = False
    found = []
    for keep in (False, True):
        source = Source(states=states, real=real, keep=keep)
        y = stack(x, frame_of(2, 3), source=source, observe=lambda c, x, y: found.append(c))
        assert len(source.kept) == (len(stack.source) if keep else 0)
        torch.testing.assert_close(stack(x, frame_of(2, 3), source=source), y)
    q, k, v = (
        attention.split_heads(m(t))
        for m, t in ((attention.query, x), (attention.key, states), (attention.value, states))
    )
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None])
    torch.testing.assert_close(attention(x, found[0]), attention.join(expected))


@pytest.mark.parametrize("order", ["post", "pre"])
def test_a_decoder_looks_at_its_source_between_and_gives_any_row_alone(order, model):
    spec, stack = decoder(model)
    layers = tuple(replace(layer, order=order) for layer in spec.layers)
    stack.spec = replace(spec, layers=layers)
    assert [block.name for block in layers[0].blocks] == ["attention", "source", "ffn"]
    assert from_json(EncoderSpec, to_json(stack.spec)) == stack.spec
    x, states = random(2, 4, WIDTH), random(2, 5, WIDTH, seed=1)
    source = Source(states=states, real=torch.ones(2, 5, dtype=torch.bool))
    every = stack(x, frame_of(2, 4), source=source)
    last = stack(x, frame_of(2, 4), source=source, rows=(slice(3, None),))
    torch.testing.assert_close(last, every[:, 3:])
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        stack(
            x[:1],
            frame_of(1, 4),
            first=0,
            last=1,
            rows=(slice(3, None),),
            source=replace(source, states=states[:1], real=source.real[:1]),
        )
    attention, cross, ffn = layers[0].blocks
    counted = sum(
        block.part.macs(block.linear, WIDTH, rows=1, tokens=tokens)
        for block, tokens in ((attention, 4), (cross, 5), (ffn, 4))
    )
    assert counter.get_total_flops() == 2 * counted
