"""Light tables and layers: DeFINE, DExTra, DeLighT, LSRA and complex embeddings, alone and in a model."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import decoupled as dc
from decoupled.errors import SpecError
from decoupled.measure.counts import parameters, work
from decoupled.methods.complex.module import ComplexTable
from decoupled.methods.complex.part import Complex
from decoupled.methods.define.part import Define, Dextra
from decoupled.methods.delight.part import Delight, scaled
from decoupled.methods.group_linear import GroupLayer, GroupUnit, expand, expand_and_reduce
from decoupled.methods.group_modules import GroupLinear, GroupStack
from decoupled.methods.lsra.module import banded, depthwise, neighbours
from decoupled.methods.lsra.part import LongShort
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.model import Model
from decoupled.model.nn.frame import Frame
from decoupled.model.parts.attention import SelfAttention
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.feed_forward import FeedForwardSpec
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.linear import WHOLE
from decoupled.model.spec import ModelSpec
from decoupled.runtime.openvino.calibrate import calibrate
from decoupled.runtime.openvino.runtime import OpenVinoRuntime
from decoupled.runtime.torch import TorchRuntime
from decoupled.search.engine import Engine
from decoupled.train.recipe import Distillation, Optimiser, Recipe, Weights
from toy import span_pairs, word_passages

KINDS = {
    "define": "define:rank=8,steps=2",
    "dextra": "define:rank=8,unit=dextra,expand=2,depth=3,groups=4,steps=2",
    "complex": "complex-embedding",
    "complex by dimension": "complex-embedding:share=dimensions",
    "complex by word": "complex-embedding:share=none",
    "delight": "delight:least=2,most=4,expand=2",
    "lsra": "lsra:sizes=3/5/9",
    "lsra, light": "lsra:sizes=5/3,dynamic=false,gated=false",
}


@pytest.fixture(scope="module")
def made(model):
    """A tiny model under a method, every new tensor drawn anew: zeros would hide a mix-up."""
    kept: dict[tuple[str, str], Model] = {}

    def make(name: str, task: str = "classes") -> Model:
        if (name, task) not in kept:
            found = apply(model("bert", task), parse(KINDS[name]))
            draw = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for tensor in found.net.parameters():
                    tensor.add_(torch.randn(tensor.shape, generator=draw) * 0.1)
            kept[name, task] = found
        return kept[name, task]

    return make


def size(tensors) -> int:
    return sum(prod(t.shape) for t in tensors.values())


# In a model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_it_is_described_counted_and_read_back(name, made, tmp_path):
    split = Model.split(made(name), at=2)
    assert from_json(ModelSpec, to_json(split.spec)) == split.spec
    built = {n: tuple(t.shape) for n, t in split.net.state_dict().items()}
    assert {n: t.shape for n, t in split.spec.tensors().items()} == built
    assert parameters(split.spec).total == sum(p.numel() for p in split.net.parameters())
    split.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert again.fingerprint == split.fingerprint
    below = next(n for n in again.net.state_dict() if split.spec.is_input(n) and "norm" not in n)
    with torch.no_grad():
        again.net.get_parameter(below).add_(0.01)
    assert Model(again.net, again.tokenizer).fingerprint != split.fingerprint


@pytest.mark.parametrize("name", KINDS)
def test_a_text_is_read_alone_and_padding_changes_nothing(name, made):
    net = Model.split(made(name), at=2).net
    own = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
    alone = net.input("passage", own, torch.ones_like(own, dtype=torch.bool))[0]
    mates = torch.full((3, 12), 3)
    mates[1, :7] = own
    real = torch.ones_like(mates, dtype=torch.bool)
    real[1, 7:] = False
    torch.testing.assert_close(net.input("passage", mates, real)[0][1, :7], alone[0])
    # Above the split padding stands between the query and the passage.
    asked, read = alone[:, :4], alone
    one = net.cross(asked, real[:1, :4], read, real[:1, :7], heads=["classes"])["classes"]
    wide = torch.cat([asked, torch.randn(1, 3, asked.shape[2])], 1)
    gap = torch.tensor([[True] * 4 + [False] * 3])
    far = torch.cat([read, torch.randn(1, 2, read.shape[2])], 1)
    end = torch.tensor([[True] * 7 + [False] * 2])
    both = net.cross(wide, gap, far, end, heads=["classes"])["classes"]
    torch.testing.assert_close(both, one, atol=1e-5, rtol=1e-5)


REFUSED = {
    "define": (),
    "complex": ("modernbert", "deberta-v2", "xlnet"),
    "delight": ("modernbert", "deberta-v2", "mpnet", "xlnet"),
    "lsra": ("modernbert", "deberta-v2", "mpnet", "xlnet"),
}
"""Families some of whose positions are none of the embedding's."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_is_read_alone_whatever_a_family_takes_for_positions(name, family, model):
    if family in REFUSED[name]:
        with pytest.raises(SpecError, match=r"positions? "):
            apply(model(family, "rank"), parse(KINDS[name]))
        return
    net = Model.split(apply(model(family, "rank"), parse(KINDS[name])), at=2).net
    together = torch.arange(5, 29).view(2, 12)
    real = torch.arange(12) < torch.tensor([[12], [7]])
    with torch.no_grad():
        states = net.input("passage", together, real)[0]
        alone = net.input("passage", together[1:, :7], real[1:, :7])[0]
    torch.testing.assert_close(states[1:, :7], alone, atol=1e-5, rtol=1e-5)
    assert (states[0, :7] - alone[0]).abs().max() > 1e-3


@pytest.mark.parametrize("name", KINDS)
def test_the_split_is_the_joint_model_under_a_block_mask(name, made):
    joint = made(name).net
    ids, place = torch.arange(5, 16)[None], torch.cat([torch.arange(4), torch.arange(7)])[None]
    real, block = torch.ones(1, 11, dtype=torch.bool), torch.tensor([[0] * 4 + [1] * 7])
    parts = [joint.embed("query", ids[:, :4], place[:, :4])]
    parts.append(joint.embed("passage", ids[:, 4:], place[:, 4:]))
    whole = joint.stack(torch.cat(parts, 1), Frame(place, real, block), first=0, last=2)
    split = Model.split(made(name), at=2, positions="restart").net
    texts = (("query", ids[:, :4]), ("passage", ids[:, 4:]))
    states = [split.input(side, own, torch.ones_like(own).bool())[0] for side, own in texts]
    torch.testing.assert_close(torch.cat(states, 1), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_rows_that_nobody_reads_change_nothing(name, made):
    net = Model.split(made(name), at=1).net
    ids, real = torch.arange(5, 14)[None], torch.ones(1, 9, dtype=torch.bool)
    states = [net.input(side, ids, real)[0] for side in ("query", "passage")]
    one = net.cross(states[0], real, states[1], real, heads=["classes"])["classes"]
    x_BTD, frame = net.join(states[0], real, states[1], real)
    every = net.stack(x_BTD, frame, first=1)
    torch.testing.assert_close(net.heads["classes"](every, frame.real_BT), one)


@pytest.mark.parametrize("name", ["define", "complex", "delight", "lsra"])
def test_stored_is_direct(name, made, tmp_path):
    ranking, passages = made(name, "rank"), word_passages(12)
    with dc.Index.create(tmp_path / "docs", Model.split(ranking, at=2), codec="fp32") as index:
        index.add(passages)
        engine = Engine(index)
        stored = engine.rerank("a stone bridge", ids=[p.id for p in passages], raw=True)
        direct = engine.rerank("a stone bridge", texts=passages, raw=True)
    assert {h.id: h.score for h in stored} == pytest.approx(
        {h.id: h.score for h in direct}, abs=1e-5
    )


@pytest.mark.parametrize("name", KINDS)
def test_openvino_says_what_torch_says(name, made):
    split = Model.split(made(name), at=2)
    tensors = {n: t.numpy() for n, t in split.net.state_dict().items()}
    runtimes = TorchRuntime(split), OpenVinoRuntime(split.spec, tensors, split.tokenizer, None)
    query = [np.arange(5, 12)]
    passages = [np.arange(20, 20 + n) for n in (13, 4, 21)]
    found = []
    for runtime in runtimes:
        asked = runtime.encode("query", query).states
        read = runtime.encode("passage", passages).states
        found.append((read.values, runtime.cross(asked, read, ("classes",))["classes"].values))
    for ours, theirs in zip(*found, strict=True):
        assert np.abs(ours - theirs).max() < 1e-3


@pytest.mark.parametrize("name", ["define", "complex", "delight", "lsra", "lsra, light"])
@pytest.mark.parametrize("form", ["one-way", "coded", "calibrated"])
def test_openvino_runs_them_in_every_form(name, form, made):
    """One-way layers exactly; integer matrices and calibrated int8 as near as rounding lets them."""
    split = Model.split(made(name), at=1, one_way="auto" if form == "one-way" else ())
    if form == "coded":
        split = apply(split, parse("quantise:inputs=float"))
    tensors = {n: t.numpy() for n, t in split.net.state_dict().items()}
    query, passages = np.arange(5, 12), [np.arange(20, 20 + n) for n in (13, 4, 21)]
    ranges = None
    if form == "calibrated":
        ranges = calibrate(split.spec, tensors, [(query, one) for one in passages])
    runtimes = (
        TorchRuntime(split),
        OpenVinoRuntime(split.spec, tensors, split.tokenizer, None, ranges=ranges),
    )
    found = []
    for runtime in runtimes:
        asked = runtime.encode("query", [query]).states
        read = runtime.encode("passage", passages).states
        found.append(runtime.cross(asked, read, ("classes",))["classes"].values)
    size = np.abs(found[0]).max()
    assert np.abs(found[0] - found[1]).max() < (0.1 * size if ranges else 1e-3)


def test_the_multiplications_are_those_that_torch_counts(made):
    for name in ("define", "dextra", "delight"):
        split = Model.split(made(name), at=2)
        ids, real = torch.full((1, 7), 5), torch.ones(1, 7, dtype=torch.bool)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            with FlopCounterMode(display=False) as counter:
                states = split.net.eval().input("passage", ids, real)[0]
            with FlopCounterMode(display=False) as above:
                split.net.cross(states[:, :3], real[:, :3], states, real, heads=["classes"])
        expected = work(split.spec, query=3, passage=7)
        assert 2 * expected.passage == counter.get_total_flops(), name
        assert 2 * expected.cross == above.get_total_flops(), name


@pytest.mark.parametrize("name", ["define", "complex", "delight", "lsra"])
def test_it_is_trained_by_the_one_loop(name, made):
    start = Model.split(made(name, "span"), at=2)
    recipe = Recipe(
        optimiser=Optimiser(epochs=1, batch=8),
        settings=Distillation(weights=Weights(kd=1, lrs=1)),
        precision="fp32",
    )
    after = dc.distill(start, data=span_pairs(8), task="squad", recipe=recipe)
    moved = {
        n for n, t in after.net.named_parameters() if not torch.equal(t, start.net.get_parameter(n))
    }
    mark = {"define": "unit", "complex": "frequency", "delight": "unit.2", "lsra": "weigh"}[name]
    assert any(mark in n for n in moved)


# Group linear layers ------------------------------------------------------------------------------


def test_a_group_linear_layer_is_a_block_diagonal_matrix():
    torch.manual_seed(0)
    unit = GroupUnit(inputs=8, plan=(GroupLayer(8, 12, 4),), norm=None, shuffle=False)
    layer, x = GroupLinear(unit.plan[0], unit, WHOLE), torch.randn(5, 8)
    matrix = torch.block_diag(*(part.weight for part in layer.groups))
    bias = torch.cat([part.bias for part in layer.groups])
    torch.testing.assert_close(layer(x), x @ matrix.T + bias)
    watched = []
    layer.groups[0].register_forward_pre_hook(lambda m, x: watched.append(1))
    torch.testing.assert_close(layer(x), x @ matrix.T + bias)
    assert watched
    shuffled = GroupLinear(unit.plan[0], replace(unit, shuffle=True), WHOLE)
    shuffled.load_state_dict(layer.state_dict())
    order = [3 * a + m for m in range(3) for a in range(4)]  # (group a, column m) goes to m·g + a
    torch.testing.assert_close(shuffled(x), layer(x)[:, order])


def test_every_output_depends_on_every_input_where_groups_fall_to_one():
    torch.manual_seed(0)
    x = torch.randn(1, 8)

    def seen(unit: GroupUnit, layers: int | None = None) -> bool:
        stack = GroupStack(unit)
        maps = list(stack)[:layers]
        run = stack if layers is None else nn.Sequential(*maps)
        return bool((torch.autograd.functional.jacobian(run, x) != 0).all())

    assert seen(Define(rank=8, depth=3, groups=4).unit(16))
    same = tuple(GroupLayer(8, 8, 2) for _ in range(3))
    apart = GroupUnit(inputs=8, plan=same, project=False, norm=None, shuffle=False)
    assert not seen(apart, layers=3)
    assert seen(replace(apart, shuffle=True), layers=3)


def test_the_plan_and_sizes_of_dextra_are_those_published():
    plan = expand_and_reduce(256, 256, 1024, 4, 16)
    assert [tuple(layer) for layer in plan] == [
        *((256, 256, 2), (512, 1024, 4)),
        *((1280, 1024, 4), (1280, 256, 2)),
    ]
    published = {128: 85_696, 256: 215_680, 384: 407_104, 512: 659_968, 640: 974_272}
    for width, count in published.items():
        unit = Dextra(rank=128, groups=2 ** math.ceil(math.log2(width / 32))).unit(width)
        assert size(unit.tensors("unit")) == count
        assert sum(p.numel() for p in GroupStack(unit).parameters()) == count
    for depth, wider, outputs, groups, count in (
        (4, 2.0, [128, 512, 512, 128], [2, 4, 4, 2], 232_192),
        (5, 2.286, [128, 360, 592, 360, 128], [2, 4, 8, 4, 2], 232_012),
        (8, 3.0, [128, 344, 560, 768, 768, 560, 344, 128], [2, 4, 8, 8, 8, 8, 4, 2], 438_576),
    ):
        kind = Delight(heads=1, head_width=128, depth=depth, expand=wider, groups=8)
        plan = kind.unit(256).plan
        assert [layer.outputs for layer in plan] == outputs
        assert [layer.groups for layer in plan] == groups
        assert size(kind.unit(256).tensors("unit")) == count
        for before, after in pairwise(plan):
            assert before.outputs % before.groups == before.outputs % after.groups == 0


def test_the_size_of_define_is_its_formula():
    table, width, vocab = Define(rank=128, expand=8, depth=4, groups=4), 512, 1000
    plan = expand(128, 512, 1024, 4, 4)
    assert [layer.groups for layer in plan] == [1, 4, 2, 1]
    assert [layer.outputs for layer in plan] == [432, 728, 1024, 512]
    layers = sum(i * o // g + o for i, o, g in plan)
    reduce = (512 + 128) * 512 + 512
    assert size(table.tensors(vocab, width, None)) == vocab * 128 + layers + reduce
    # The formula of the slides falls once, the code of its authors again and again.
    both = (expand(128, 512, 1024, 7, 8, halving=halving) for halving in (True, False))
    groups = [[layer.groups for layer in plan] for plan in both]
    assert groups == [[8, 4, 2, 1, 1, 1, 1], [4, 2, 1, 8, 4, 2, 1]]
    assert table.macs(vocab, width) == layers - sum(o for _, o, _ in plan) + reduce - 512


def test_a_define_table_begins_as_the_best_of_its_rank_and_comes_nearer(model):
    whole = model("bert", "rank")
    factorised = apply(whole, parse("factorise-embedding:rank=8")).net.embedding.tokens
    rows, ids = whole.net.embedding.tokens.weight, torch.arange(1000)
    started = apply(whole, parse("define:rank=8,steps=0")).net.embedding.tokens
    torch.testing.assert_close(started(ids), factorised(ids), atol=1e-4, rtol=1e-4)
    fitted = apply(whole, parse("define:rank=8,steps=30")).net.embedding.tokens
    apart = [(table(ids) - rows).square().mean().item() for table in (factorised, fitted)]
    assert apart[1] < apart[0]
    for schedule, groups in (("halving", [4, 2, 1, 1]), ("cycle", [1, 4, 2, 1])):
        made = apply(whole, parse(f"define:rank=8,steps=0,depth=4,schedule={schedule}"))
        plan = made.spec.encoder.embedding.table.unit(made.spec.encoder.embedding.width).plan
        assert [layer.groups for layer in plan] == groups
        assert from_json(ModelSpec, to_json(made.spec)) == made.spec
    assert torch.equal(
        fitted(ids), apply(whole, parse("define:rank=8,steps=30")).net.embedding.tokens(ids)
    )


# DeLighT ------------------------------------------------------------------------------------------


def layer_size(layer: LayerSpec, width: int) -> int:
    return sum(size(block.tensors(width)) for block in layer.blocks)


def layer(attention, ffn: int) -> LayerSpec:
    return LayerSpec(
        attention=attention, ffn=FeedForwardSpec(width=ffn), attention_slot=0, ffn_slot=0
    )


def test_the_totals_of_delight_are_those_published():
    """Translation models: both stacks, an embedding unit for each, one table, and a map back to it."""
    published = {128: 8_094_432, 256: 13_788_584, 384: 23_246_072, 512: 36_763_788, 640: 54_036_236}
    for width, count in published.items():
        half, vocab = width // 2, 43_736
        blocks = [layer_size(layer(kind, width // 4), width) for kind in scaled(width, 4, 8, 2.0)]
        cross = 3 * (width * half + half) + half * width + width + 2 * width
        groups = 2 ** math.ceil(math.log2(width / 32))
        units = 2 * size(Dextra(rank=128, groups=groups).unit(width).tensors("unit"))
        back = 128 * width if width != 128 else 0
        assert 2 * sum(blocks) + 8 * cross + units + vocab * 128 + back == count
    first = scaled(512, 4, 8, 2.0)[0]
    assert size(first.unit(512).tensors("unit")) == 923_136
    head = {n: m for n, m in first.matrices(512).items() if "unit" not in n}
    assert sum(m.inputs * m.outputs + m.outputs for m in head.values()) == 328_960
    light = layer(first, 128).blocks[1].part.matrices(512).values()
    assert sum(m.inputs * m.outputs + m.outputs for m in light) == 131_712


def test_scaling_by_blocks():
    assert {kind.depth for kind in scaled(256, 4, 4, 2.0)} == {4}
    up, down = scaled(256, 4, 8, 2.0), scaled(256, 8, 4, 2.0)
    assert [k.depth for k in up] == [4, 4, 5, 5, 6, 6, 7, 8]
    assert down == up[::-1]
    # The depth column of the published ablation: group layers, five more in each block, the embedding's.
    for least, most, depth in (
        *((4, 4, 43), (8, 8, 115), (4, 8, 92)),
        *((4, 12, 158), (6, 8, 102), (6, 12, 172)),
    ):
        total = sum(k.depth for k in scaled(256, least, most, 2.0)) + 5 * most + least + 3
        assert total == depth
    half = Delight(heads=1, head_width=128).mixing(WHOLE, 256, 10, 10, 0)
    assert 2 * half == SelfAttention(heads=4, head_width=64).mixing(WHOLE, 256, 10, 10, 0)


# Long-short range attention -----------------------------------------------------------------------


def test_the_six_rows_of_the_lite_transformer():
    """Parameters and multiply-adds, in millions, of six layers on each side over 30 tokens."""
    kernels, tokens = (3, 7, 15, 31, 31, 31), 30

    def row(layers: list[LayerSpec], width: int) -> tuple[float, float]:
        cross = layer(SelfAttention(heads=1, head_width=width), width).blocks[0]
        count = 2 * sum(layer_size(one, width) for one in layers) + 6 * size(cross.tensors(width))
        macs = 2 * sum(one.macs(width, rows=tokens, tokens=tokens) for one in layers)
        macs += 6 * cross.part.macs(WHOLE, width, rows=tokens, tokens=tokens)
        return count / 1e6, macs / 1e6

    for width, *published in ((200, 2.88, 90.7), (408, 11.74, 360.6), (496, 17.28, 528.7)):
        heads = {"heads": 1, "head_width": width // 2}
        assert row(
            [layer(LongShort(**heads, kernel=k), width) for k in kernels], width
        ) == pytest.approx(published, rel=2e-3)
    for width, *published in ((128, 2.78, 86.7), (256, 11.06, 338.6), (320, 17.26, 526.5)):
        plain = layer(SelfAttention(heads=4, head_width=width // 4), 4 * width)
        assert row([plain] * 6, width) == pytest.approx(published, rel=2e-3)


def frames() -> list[Frame]:
    """Everything real; a gap of padding; two blocks."""
    place = torch.arange(12)[None].expand(2, -1)
    real = torch.ones(2, 12, dtype=torch.bool)
    gap = real.clone()
    gap[0, 4:7], gap[1, 9:] = False, False
    block = (place > 4).long()
    return [Frame(place, real), Frame(place, gap), Frame(place, real, block)]


def test_a_kernel_sees_its_neighbours_and_no_padding():
    torch.manual_seed(0)
    u, logits = torch.randn(2, 12, 8), torch.randn(4, 5)
    for frame in frames():
        near = neighbours(frame, 5)
        weight = logits.softmax(-1)[None, None].expand(2, 12, -1, -1)
        dense = banded(u, weight, near)
        for b in range(2):
            for t in range(12):
                own = (
                    frame.real_BT[b]
                    if frame.block_BT is None
                    else frame.block_BT[b] == frame.block_BT[b, t]
                )
                tokens = [i for i in range(12) if own[i] and frame.real_BT[b, i]]
                if t not in tokens:
                    continue
                total, at = torch.zeros(8), tokens.index(t)
                for k in range(5):
                    if 0 <= at + k - 2 < len(tokens):
                        total += weight[b, t, :, k].repeat_interleave(2) * u[b, tokens[at + k - 2]]
                torch.testing.assert_close(dense[b, t], total)
        if frame.block_BT is None:
            fast = depthwise(u, logits.softmax(-1), frame)
            assert torch.allclose(fast[frame.real_BT], dense[frame.real_BT], atol=1e-5)
    # A kernel that looks at the middle alone gives what it was given.
    middle = torch.full((4, 5), -1e4).index_fill(1, torch.tensor([2]), 1e4)
    torch.testing.assert_close(depthwise(u, middle.softmax(-1), frames()[0]), u)


def test_lsra_keeps_half_of_the_heads_and_the_values_of_the_others(model):
    whole = model("bert", "rank")
    light = apply(whole, parse("lsra:sizes=3"))
    old, new = (m.net.state_dict() for m in (whole, light))
    name = "stack.attention.1.attention"
    assert torch.equal(new[f"{name}.query.weight"], old[f"{name}.query.weight"][:16, :16])
    assert torch.equal(new[f"{name}.out.weight"], old[f"{name}.out.weight"][:16, :16])
    assert torch.equal(new[f"{name}.near_out.weight"], old[f"{name}.out.weight"][16:, 16:])
    gate = torch.sigmoid(new[f"{name}.near.bias"][16:])
    passed = new[f"{name}.near.weight"][:16] * gate[:, None]
    torch.testing.assert_close(passed, old[f"{name}.value.weight"][16:, 16:])
    assert light.spec.layers[0].ffn.width == 32 < whole.spec.layers[0].ffn.width
    assert parameters(light.spec).layers < parameters(whole.spec).layers


# Complex embeddings -------------------------------------------------------------------------------


def complex_table(**options) -> ComplexTable:
    torch.manual_seed(0)
    spec = EmbeddingSpec(vocab=20, width=8)
    table = ComplexTable(Complex(**options), spec)
    with torch.no_grad():
        for name, tensor in table.named_parameters():
            if "frequency" in name:
                tensor.copy_(torch.rand(tensor.shape))
    return table


def as_complex(table: ComplexTable, ids, places) -> torch.Tensor:
    with torch.no_grad():
        x = table(torch.tensor([ids]), torch.tensor([places])).double()[0]
    return torch.complex(x[:, :4], x[:, 4:])


@pytest.mark.parametrize("share", ["words", "dimensions", "none"])
@pytest.mark.parametrize("phases", [True, False])
def test_a_position_is_a_phase(share, phases):
    table = complex_table(share=share, phases=phases)
    now, later = as_complex(table, [3, 7], [2, 5]), as_complex(table, [3, 7], [6, 9])
    speed = table.get_parameter("frequency" if share == "words" else "table.frequency").detach()
    speed = speed.double() if share == "words" else speed[[3, 7]].double()
    torch.testing.assert_close(later, now * torch.exp(4j * speed), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(later.abs(), now.abs(), atol=1e-5, rtol=1e-5)


def test_products_of_words_depend_on_their_distance_alone():
    table = complex_table()
    here, there = as_complex(table, [3, 7], [1, 4]), as_complex(table, [3, 7], [11, 14])
    torch.testing.assert_close(
        here[0] * here[1].conj(), there[0] * there[1].conj(), atol=1e-5, rtol=1e-5
    )
    assert (here[0] * here[1] - there[0] * there[1]).abs().max() > 0.1
    with torch.no_grad():
        table.get_parameter("frequency").zero_()
    assert torch.equal(as_complex(table, [3], [0]), as_complex(table, [3], [9]))


def test_frequencies_add_one_for_each_dimension_or_word_or_both():
    for share, more in (("words", 4), ("dimensions", 20), ("none", 80)):
        assert size(Complex(share=share).tensors(20, 8, None)) == 20 * 8 + more
        assert size(Complex(share=share, phases=False).tensors(20, 8, None)) == 20 * 4 + more
    assert Complex(phases=False).macs(20, 8) == 2 * 4


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert"])
def test_complex_embeddings_are_exact_at_the_first_position(family, model):
    whole = model(family, "rank")
    turned = apply(whole, parse("complex-embedding"))
    ids, first = torch.arange(5, 25)[None], torch.zeros(1, 20, dtype=torch.long)
    old, new = (m.net.embed("passage", ids, first) for m in (whole, turned))
    torch.testing.assert_close(new, old, atol=1e-5, rtol=1e-5)
    assert turned.spec.encoder.embedding.positions == 0
    long = apply(turned, parse("untie")).net.input(
        "passage", torch.full((1, 200), 5), torch.ones(1, 200).bool()
    )
    assert long[0].isfinite().all()


# What does not go together ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "text", "why"),
    [
        ("bert", "define:rank=6", "6 columns to 32 in up to 4 groups; choose a power of 2"),
        ("bert", "define:rank=0", "rank 0.*choose 1 or more"),
        ("bert", "define:rank=8,depth=1", "1 group layers; choose 2 or more"),
        ("bert", "define:rank=64", "rank 64, but the table is 32 wide; choose 1..32"),
        ("bert", "define:steps=-1", "steps=-1; choose 0 or more"),
        ("bert", "delight:least=1", "least=1.*choose 2 or more"),
        ("bert", "delight:ffn=0", "ffn=0; choose 1.."),
        ("bert", "lsra:sizes=4", "over 4 tokens has no middle; choose an odd number"),
        ("bert", "lsra:kernels=5", "5 kernels for half of 32 columns"),
        ("bert", "lsra:sizes=none", "give the tokens that a kernel sees"),
        ("bert", "lsra:ffn=90", "ffn=90, but the model's is 48; choose 1..48"),
        ("modernbert", "delight", "take positions from the embedding"),
        ("deberta-v2", "lsra", "take positions from the embedding"),
        ("modernbert", "complex-embedding", "replaces a learned position table"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(family, text, why, model):
    with pytest.raises(SpecError, match=why) as caught:
        apply(model(family, "rank"), parse(text))
    assert "\n" not in str(caught.value)
