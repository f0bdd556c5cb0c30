"""Kinds that only this file knows: defined, registered, and then treated like any other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import decoupled as dc
from decoupled.errors import InputError, SpecError
from decoupled.measure.counts import parameters, work
from decoupled.methods.count import parameters as numbers
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.model.annex import load_kind
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.model import Model
from decoupled.model.nn.attention import AttentionModule, build_attention
from decoupled.model.nn.block import Context, build_block
from decoupled.model.nn.frame import Frame, take
from decoupled.model.nn.table import build_table
from decoupled.model.parts.attention import Attention
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.layer import Block
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.parts.part import Matrix, Part
from decoupled.model.parts.structure import Structure
from decoupled.model.parts.table import Band, Table
from decoupled.model.spec import ModelSpec
from decoupled.runtime.cuda.runtime import CudaRuntime
from decoupled.runtime.open import open_joint, open_runtime
from decoupled.runtime.torch import TorchRuntime
from decoupled.train.recipe import Distillation, Optimiser, Recipe, Weights
from toy import span_pairs


@dataclass(frozen=True, kw_only=True)
class Average(Attention):
    """Every token sees the mean of all tokens, through one matrix."""

    reach: float = 1.0
    kind: Literal["average"] = "average"

    @property
    def alike(self) -> bool:
        return False

    def matrices(self, width):
        return {"attention.value": Matrix(inputs=width, outputs=width, reads="tokens")}

    def mixing(self, linear, width, rows, tokens, table):
        return rows * tokens * width

    def shape(self):
        return replace(self, reach=1.0)

    def keep(self, units):
        return Part.keep(self, units)


@build_attention.register(Average)
class AverageAttention(AttentionModule):
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        kind, frame = cast(Average, context.layer.attention), context.frame
        seen = frame.real_BT[:, None].expand(-1, x_BTD.shape[1], -1)
        if frame.block_BT is not None:
            seen = seen & (frame.block_BT[:, :, None] == frame.block_BT[:, None, :])
        share = take(seen / seen.sum(-1, keepdim=True).clamp(min=1), context.rows)
        return kind.reach * share.to(x_BTD.dtype) @ self.value(x_BTD)


@dataclass(frozen=True, kw_only=True)
class Halved(Table):
    """Two ids share a row."""

    kind: Literal["halved"] = "halved"
    rows: ClassVar[str] = "embedding.tokens.rows"

    def bands(self, vocab, width):
        return (Band(ids=-(-vocab // 2), width=width, rows=self.rows),)


@build_table.register(Halved)
class HalvedTable(nn.Module):
    def __init__(self, kind: Halved, spec: EmbeddingSpec) -> None:
        super().__init__()
        self.rows = nn.Embedding(-(-spec.vocab // 2), spec.width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.rows(ids // 2)


@dataclass(frozen=True, kw_only=True)
class Shift(Part):
    """Adds to every token what one matrix makes of the token before it."""

    kind: Literal["shift"] = "shift"

    @property
    def units(self) -> int:
        return 0

    def matrices(self, width):
        return {"mix": Matrix(inputs=width, outputs=width)}


@build_block.register(Shift)
class ShiftBlock(nn.Module):
    def __init__(self, part: Shift, block: Block, *, width: int, dropout: object) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=block.norm.eps)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        before = torch.cat([torch.zeros_like(x_BTD[:, :1]), x_BTD[:, :-1]], 1)
        return self.norm(take(x_BTD, context.rows) + self.mix(take(before, context.rows)))


@dataclass(frozen=True, kw_only=True)
class Registers(Structure):
    """Rows at the end of each window that are of no word, all with the last row of the token table."""

    first: int
    count: int = 2
    kind: Literal["registers"] = "registers"

    def read(self, text, given):
        return None

    def add(self, read, ids, offsets, *, start, title):
        more = np.full(self.count, self.first, np.int32)
        return np.append(ids, more), np.append(offsets, np.zeros((self.count, 2), np.int32), 0)

    def in_table(self, ids):
        return ids - 1 * (ids >= self.first)


def averaged(whole: Model, *, seed: int = 0) -> Model:
    """The same model with the toy attention in every layer, and new matrices for it."""
    width = whole.spec.encoder.width
    layers = tuple(
        replace(layer, attention=Average(heads=1, head_width=width)) for layer in whole.spec.layers
    )
    encoder = replace(whole.spec.encoder, layers=layers)
    return whole.rebuild(replace(whole.spec, encoder=encoder), {"did": "average"}, seed=seed)


@pytest.fixture
def toy(model) -> Model:
    return Model.split(averaged(model("bert", "classes")), at=2)


def test_it_is_described_and_read_back(toy, tmp_path):
    assert from_json(ModelSpec, to_json(toy.spec)) == toy.spec
    toy.save(tmp_path / "toy")
    again = Model.load(tmp_path / "toy")
    assert again.fingerprint == toy.fingerprint
    described = to_json(toy.spec)
    described["encoder"]["layers"][0]["attention"]["kind"] = "median"
    load_kind("lsra")  # kinds of methods are named once they are loaded
    with pytest.raises(
        SpecError,
        match=r"attention is of no known kind: .*median.*; choose kind among .*lsra, .*self",
    ):
        from_json(ModelSpec, described)


def test_states_know_nothing_of_the_other_side_and_stored_is_direct(toy):
    query, passages = [np.array([5, 6, 7])], [np.array([8, 9, 10, 11]), np.array([12, 13])]
    runtime = TorchRuntime(toy)
    together = runtime.encode("passage", passages).states
    alone = runtime.encode("passage", passages[1:]).states
    assert np.abs(together.values[4:] - alone.values).max() < 1e-6
    asked = runtime.encode("query", query).states
    both = runtime.cross(asked, together, ("classes",))["classes"].values
    one = runtime.cross(asked, alone, ("classes",))["classes"].values
    assert np.abs(both[1:] - one).max() < 1e-5


def test_its_tensors_are_those_of_the_module(toy):
    built = {
        n: (tuple(t.shape), str(t.dtype).removeprefix("torch."))
        for n, t in toy.net.state_dict().items()
    }
    assert {n: tuple(t) for n, t in toy.spec.tensors().items()} == built
    assert parameters(toy.spec).total == sum(p.numel() for p in toy.net.parameters())
    coded = apply(apply(toy, parse("low-rank:rank=8")), parse("quantise"))
    held = coded.net.state_dict()
    assert set(coded.spec.tensors()) == set(held)
    assert numbers(coded.spec) == sum(t.numel() for n, t in held.items() if "scale" not in n)


def test_its_multiplications_are_those_that_torch_counts(toy):
    net, query, passage = toy.net.eval(), 3, 7
    found, states = {}, {}
    for side, tokens in (("query", query), ("passage", passage)):
        ids, real = torch.full((1, tokens), 5), torch.ones(1, tokens, dtype=torch.bool)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            states[side] = net.input(side, ids, real)[0], real
        found[side] = counter.get_total_flops()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        net.cross(*states["query"], *states["passage"], heads=["classes"])
    found["cross"] = counter.get_total_flops()
    expected = work(toy.spec, query=query, passage=passage)
    assert {name: getattr(expected, name) * 2 for name in found} == found


def test_it_trains_and_has_no_scores_to_imitate(model):
    toy = Model.split(averaged(model("bert", "span")), at=2)
    name = "stack.attention.0.attention.value.weight"
    before = toy.net.state_dict()[name].clone()
    optimiser = Optimiser(epochs=1, batch=8)
    losses = Distillation(weights=Weights(kd=1, lrs=1))
    recipe = Recipe(optimiser=optimiser, settings=losses, precision="fp32")
    after = dc.distill(toy, data=span_pairs(16), task="squad", recipe=recipe)
    assert not torch.equal(after.net.state_dict()[name], before)
    scored = replace(recipe, settings=Distillation(weights=Weights(attention=1.0)))
    with pytest.raises(InputError, match=r"layer 2 has average attention, and so no scores"):
        dc.distill(toy, data=span_pairs(16), task="squad", recipe=scored)


def test_methods_change_it_or_name_it(toy):
    shared = apply(toy, parse("share:groups=1,start=average"))
    assert len(shared.spec.tensors()) < len(toy.spec.tensors())
    assert apply(toy, parse("prune-neurons:by=weight")).spec.layers[0].ffn.width < 48
    for text, why in (
        ("prune-heads:by=random", "average has no heads or neurons"),
        ("fix-heads:assign=order", "has average attention"),
        ("share:start=aligned", "needs whole matrices and learned heads"),
        ("student:width=16", "plain layers"),
    ):
        with pytest.raises(SpecError, match=why):
            apply(toy, parse(text))
    mixed = replace(toy.spec.layers[1], attention=Average(heads=1, head_width=32, reach=2.0))
    slotted = replace(mixed, attention_slot=0)
    layers = (toy.spec.layers[0], slotted, *toy.spec.layers[2:])
    replace(toy.spec, encoder=replace(toy.spec.encoder, layers=layers))


def test_a_kind_that_reads_both_texts_stays_above_the_split(toy):
    @dataclass(frozen=True, kw_only=True)
    class Crossing(Average):
        below_split: ClassVar[bool] = False
        kind: Literal["crossing"] = "crossing"

    layer = replace(toy.spec.layers[1], attention=Crossing(heads=1, head_width=32))
    layers = (toy.spec.layers[0], layer, *toy.spec.layers[2:])
    encoder = replace(toy.spec.encoder, layers=layers)
    with pytest.raises(SpecError, match=r"layer 1 has crossing attention.*choose 0\.\.1"):
        replace(toy.spec, encoder=encoder)


def test_runtimes_that_lack_it_say_so_and_torch_runs_it(toy, tmp_path, monkeypatch, caplog):
    toy.save(tmp_path / "toy")
    with pytest.raises(InputError, match=r"cuda runtime \(it lacks average attention\); use torch"):
        CudaRuntime(toy, device="cpu")
    with pytest.raises(InputError, match=r"openvino runtime \(it lacks average attention\)"):
        open_runtime(tmp_path / "toy", name="openvino")
    monkeypatch.setattr("decoupled.runtime.open.has_gpu", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    runtime = open_runtime(tmp_path / "toy")
    assert runtime.name == "torch" and "it lacks average attention" in caplog.text
    assert open_joint(tmp_path / "toy").name == "torch"


def test_an_attention_without_a_module_is_named(toy):
    @dataclass(frozen=True, kw_only=True)
    class Unbuilt(Attention):
        kind: Literal["unbuilt"] = "unbuilt"

        def matrices(self, width):
            return {}

    layer = replace(toy.spec.layers[0], attention=Unbuilt(heads=1, head_width=32))
    encoder = replace(toy.spec.encoder, layers=(layer, *toy.spec.layers[1:]))
    with pytest.raises(SpecError, match="unbuilt attention has no torch module"):
        toy.rebuild(replace(toy.spec, encoder=encoder), {})


def test_a_token_table_of_another_kind(model, tmp_path):
    whole = model("bert", "classes")
    embedding = replace(whole.spec.encoder.embedding, table=Halved())
    spec = replace(whole.spec, encoder=replace(whole.spec.encoder, embedding=embedding))
    halved = Model.split(whole.rebuild(spec, {"did": "halve"}), at=1)
    shapes = {n: tuple(t.shape) for n, t in halved.net.state_dict().items()}
    assert {n: t.shape for n, t in halved.spec.tensors().items()} == shapes
    assert parameters(halved.spec).embedding < parameters(whole.spec).embedding
    halved.save(tmp_path / "halved")
    assert Model.load(tmp_path / "halved").spec == halved.spec
    with pytest.raises(InputError, match="it lacks halved token tables"):
        open_runtime(tmp_path / "halved", name="openvino")


def test_a_block_of_another_kind_after_the_others(model, tmp_path):
    whole = model("bert", "rank")
    layers = [
        replace(layer, more=(Block(name="shift", part=Shift(), slot=n),))
        for n, layer in enumerate(whole.spec.layers)
    ]
    spec = replace(whole.spec, encoder=replace(whole.spec.encoder, layers=tuple(layers)))
    joint = whole.rebuild(spec, {"did": "shift"}, seed=1)
    split = Model.split(joint, at=1)
    assert from_json(ModelSpec, to_json(split.spec)) == split.spec
    shapes = {n: tuple(t.shape) for n, t in split.net.state_dict().items()}
    assert {n: t.shape for n, t in split.spec.tensors().items()} == shapes
    assert "stack.shift.2.mix.weight" in shapes
    ids, real = torch.full((1, 6), 5), torch.ones(1, 6, dtype=torch.bool)
    states = [split.net.input(side, ids, real)[0] for side in ("query", "passage")]
    one = split.net.cross(states[0], real, states[1], real, heads=["rank"])["rank"]
    x_BTD, frame = split.net.join(states[0], real, states[1], real)
    every = split.net.stack(x_BTD, frame, first=1)
    torch.testing.assert_close(split.net.heads["rank"](every, frame.real_BT), one)
    assert (
        work(split.spec, query=6, passage=6).query
        > work(Model.split(whole, at=1).spec, query=6, passage=6).query
    )
    shared = apply(split, parse("share:groups=1"))
    assert shared.spec.layers[2].block("shift").slot == 2 and shared.net.stack.shift["2"]
    split.save(tmp_path / "shift")
    with pytest.raises(InputError, match="it lacks shift blocks"):
        open_runtime(tmp_path / "shift", name="openvino")
    with pytest.raises(InputError, match="it lacks shift blocks"):
        CudaRuntime(split, device="cpu")


def test_rows_beside_tokens_of_another_kind(model, tmp_path):
    toy = Model.split(model("bert", "rank"), at=2)
    vocab = toy.spec.encoder.embedding.vocab
    text = replace(toy.spec.text, structure=Registers(first=vocab))
    more = toy.rebuild(replace(toy.spec, text=text), {})
    assert to_json(more.spec)["text"]["tree"]["kind"] == "registers"
    assert from_json(ModelSpec, to_json(more.spec)) == more.spec
    assert more.fingerprint != toy.fingerprint
    (window,), (plain,) = (made.tokenizer.windows(["a lake"])[0] for made in (more, toy))
    assert window.ids.tolist() == [*plain.ids.tolist(), vocab, vocab]
    assert window.offsets.tolist() == [*plain.offsets.tolist(), [0, 0], [0, 0]]
    ids, real = torch.tensor(window.ids)[None].long(), torch.ones(1, len(window.ids)).bool()
    found = more.net.hidden("passage", ids, real)
    # They stand where the last token does, which is all that positions say of them.
    rows = torch.tensor([[*plain.ids.tolist(), vocab - 1, vocab - 1]]).long()
    place = torch.arange(len(plain.ids)).tolist() + [len(plain.ids) - 1] * 2
    x_BTD = toy.net.embed(
        "passage", rows, torch.tensor([place]) + toy.spec.first_position("passage")
    )
    expected = toy.net.stack(x_BTD, Frame(torch.tensor([place]), real), first=0, last=2)
    torch.testing.assert_close(found, expected)
    more.save(tmp_path / "more")
    for runtime in (
        lambda: open_runtime(tmp_path / "more", name="openvino"),
        lambda: CudaRuntime(more, device="cpu"),
    ):
        with pytest.raises(InputError, match="it lacks registers rows beside tokens"):
            runtime()


def test_every_kind_says_which_tensors_it_has(model, family):
    """Names, shapes and types from the description are those of the module, in every form."""
    whole = Model.split(model(family, "rank"), at=1)
    forms = [
        "untie",
        "low-rank:rank=8",
        "quantise:bits=4,inputs=float,group=8",
        "factorise-embedding:rank=8",
    ]
    forms += [] if family in ("deberta-v2", "mpnet", "xlnet") else ["fix-heads:assign=order"]
    for made in (whole, *(apply(whole, parse(text)) for text in forms)):
        built = {
            n: (tuple(t.shape), str(t.dtype).removeprefix("torch."))
            for n, t in made.net.state_dict().items()
        }
        assert {n: tuple(t) for n, t in made.spec.tensors().items()} == built
    assert LinearSpec() == whole.spec.layers[0].attention_maps
