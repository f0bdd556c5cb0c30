"""Arithmetic and parameters from the spec: against torch's counter, built modules and published numbers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from added_parts import with_vector
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from decoupled.errors import InputError
from decoupled.lab.study.published import (
    published_flops,
    published_speedup,
    token_layers_saved,
)
from decoupled.measure.counts import parameters, work
from decoupled.methods.bands.part import Banded
from decoupled.methods.count import pair_macs
from decoupled.methods.factorise.part import Factorised
from decoupled.methods.fixed_heads.part import FixedPatterns
from decoupled.model.hf.convert import FAMILIES
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.head import HeadDense, HeadSpec
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.spec import ModelSpec, ProjectionSpec, TextSpec, VectorSpec
from decoupled.model.split import with_split
from decoupled.train.reshape import with_projection
from tiny import VOCAB

RANK = HeadSpec(kind="rank", dense=HeadDense(activation="tanh"))
TEXT = TextSpec(query_prefix=(1,), query_suffix=(2,), passage_prefix=(), passage_suffix=(2,))

BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}


def described(family: str, *heads: HeadSpec, **config: int) -> ModelSpec:
    """A spec of full size from a config alone, nothing built."""
    tables = {"vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2}
    shape = {"model_type": family, "intermediate_size": 4 * config["hidden_size"]}
    encoder = FAMILIES[family].encoder({**tables, **shape, **config})
    return ModelSpec(family=family, encoder=encoder, text=TEXT, heads=heads)


def bert(size: dict[str, int]) -> ModelSpec:
    return described("bert", RANK, **size)


# Against the counter ------------------------------------------------------------------------------


def counted(model: Model, query: int, passage: int, kind: str) -> dict[str, int]:
    """FLOPs of each component on one pair, as torch counts matrix products."""
    net = model.net.eval()
    states, found = {}, {}

    def count(run) -> int:
        with (
            torch.no_grad(),
            sdpa_kernel(SDPBackend.MATH),
            FlopCounterMode(display=False) as counter,
        ):
            run()
        return counter.get_total_flops()

    def encode(side: str, tokens: int) -> None:
        ids = torch.full((1, tokens), 5)
        real = torch.ones(1, tokens, dtype=torch.bool)
        states[side] = net.input(side, ids, real, query_length=query)[0], real

    found["query"] = count(lambda: encode("query", query))
    found["passage"] = count(lambda: encode("passage", passage))
    found["cross"] = count(lambda: net.cross(*states["query"], *states["passage"], heads=[kind]))
    return found


def assert_close(model: Model, kind: str, query: int = 9, passage: int = 31) -> None:
    found = counted(model, query, passage, kind)
    told = work(model.spec, query=query, passage=passage, heads=[kind])
    for part in ("query", "passage", "cross"):
        assert 2 * getattr(told, part) == pytest.approx(found[part], rel=0.01, abs=0), part


def test_every_family_at_every_split_is_within_a_hundredth_of_the_counter(family, model):
    whole = model(family, "rank")
    for k in range(len(whole.spec.layers) + 1):
        assert_close(Model.split(whole, at=k), "rank")


@pytest.mark.parametrize("task", ["span", "classes", "choice"])
def test_every_head_is_counted_with_the_rows_it_reads(task, model):
    whole = model("bert", task)
    for k in (0, 2, 3):
        assert_close(Model.split(whole, at=k), task)


def test_the_first_head_is_read_unless_others_are_named(model):
    spec = model("bert", "rank").with_heads(HeadSpec(kind="span"), seed=0).spec
    sizes = {"query": 1, "passage": 1}
    assert work(spec, **sizes) == work(spec, **sizes, heads=["rank"])
    assert work(spec, **sizes).cross < work(spec, **sizes, heads=["rank", "span"]).cross
    for wrong in ({"query": 0, "passage": 1}, {"query": 1, "passage": 0}):
        with pytest.raises(InputError):
            work(spec, **wrong)


def test_the_projection_the_vector_and_frozen_passages_are_counted(model):
    split = with_projection(Model.split(model("bert", "rank"), at=1), 8)
    assert_close(split, "rank")
    learned = split.rebuild(replace(split.spec, vector=VectorSpec(width=12)), {"did": "test"})
    assert_close(learned, "rank")
    more = [work(m.spec, query=9, passage=31).query for m in (learned, split)]
    assert more[0] - more[1] == 12 * split.spec.encoder.width
    assert_close(with_vector(split, 12, layers=2), "rank")
    spec = learned.spec
    layers = tuple(replace(layer, passage="frozen") for layer in spec.layers)
    frozen = replace(spec, encoder=replace(spec.encoder, layers=layers))
    assert_close(learned.rebuild(frozen, {"did": "test"}), "rank")


THIN = LinearSpec(rank=5)
PATTERNS = FixedPatterns(heads=4, head_width=8, patterns=("previous", "left", "end"))
FORMS: dict[str, dict[str, object]] = {
    "thin": {"attention_maps": THIN, "ffn_maps": THIN},
    "fixed": {"attention": PATTERNS},
    "all fixed": {"attention": replace(PATTERNS, patterns=("next",) * 4), "attention_maps": THIN},
    "one-way": {"attention_maps": THIN, "passage": "frozen"},
}


def reshaped(model: Model, changes: dict[str, object], **table: object) -> SimpleNamespace:
    """The model's spec with other layers and another token table, freshly built."""
    encoder = model.spec.encoder
    layers = tuple(replace(layer, **changes) for layer in encoder.layers)
    embedding = replace(encoder.embedding, **table)
    spec = replace(model.spec, encoder=replace(encoder, layers=layers, embedding=embedding))
    return SimpleNamespace(spec=spec, net=PairEncoder(spec))


@pytest.mark.parametrize("name", FORMS)
def test_smaller_forms_of_the_layers_are_counted(name, model):
    assert_close(reshaped(Model.split(model("bert", "rank"), at=1), FORMS[name]), "rank")


def test_thin_maps_of_relative_positions_and_narrow_token_tables_are_counted(model):
    assert_close(reshaped(Model.split(model("deberta-v2", "rank"), at=1), FORMS["thin"]), "rank")
    bands = Banded(sizes=(100, VOCAB - 100), widths=(16, 4))
    for table in (Factorised(rank=6), bands):
        split = Model.split(model("electra", "rank"), at=1)
        assert_close(reshaped(split, FORMS["thin"], table=table), "rank")


def test_what_shrinking_counts_is_the_same_work(model):
    """One-way layers and the positions of DeBERTa among it."""
    for family, one_way in (("bert", "auto"), ("deberta-v2", ())):
        split = Model.split(model(family, "rank"), at=1, one_way=one_way)
        told = {part: 2 * macs for part, macs in pair_macs(split.spec, 9, 31).items()}
        assert told == pytest.approx(counted(split, 9, 31, "rank"), rel=0.01)


def test_the_joint_model_is_the_same_work_whatever_the_split_order(model):
    spec = model("bert", "rank").spec
    told = work(spec, query=9, passage=31)
    assert told.query == told.passage == 0 and told.online() == told.whole() == told.cross
    with pytest.raises(InputError, match="query=0"):
        work(spec, query=0, passage=3)


# Published ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "at", "formula", "printed"),
    [(BASE, 0, 58.13, 58.4), (LARGE, 0, 203.3, 204.1), (LARGE, 20, 47.54, 47.7)],
)
def test_flops_are_those_of_the_formula_and_near_the_printed_ones(size, at, formula, printed):
    """DeFormer, table 2. It does not say which layer the large model was split at: 20 comes nearest."""
    found = published_flops(with_split(bert(size), at), query=27, passage=293) / 1e9
    assert found == pytest.approx(formula, abs=0.05)
    assert found != pytest.approx(printed, abs=0.05) and found == pytest.approx(printed, rel=0.005)


@pytest.mark.parametrize(
    ("size", "first", "published"),
    [
        (BASE, 1, [1.1, 1.2, 1.3, 1.4, 1.6, 1.9, 2.2, 2.6, 3.2, 4.3, 6.4]),
        (LARGE, 13, [2.0, 2.2, 2.4, 2.6, 2.9, 3.2, 3.7, 4.3, 5.1, 6.4, 8.4]),
    ],
)
def test_published_speedups_of_every_split(size, first, published):
    spec = bert(size)
    for k, expected in enumerate(published, first):
        found = published_speedup(spec, k, query=27, passage=293)
        assert found == pytest.approx(expected, abs=0.051), k


def test_the_formula_gives_both_rows_to_two_digits():
    base = [1.08, 1.18, 1.30, 1.44, 1.62, 1.85, 2.16, 2.59, 3.23, 4.30, 6.41]
    large = [1.99, 2.16, 2.35, 2.58, 2.87, 3.22, 3.68, 4.28, 5.12, 6.36, 8.41]
    for size, first, row in ((BASE, 1, base), (LARGE, 13, large)):
        found = [
            published_speedup(bert(size), k, query=27, passage=293)
            for k in range(first, first + 11)
        ]
        assert found == pytest.approx(row, abs=0.0051)


@pytest.mark.parametrize(
    ("task", "live", "stored", "expected", "saved"),
    [
        ("squad", 27, 293, 3.23, 0.687),
        ("race", 32, 480, 3.42, 0.703),
        ("boolq", 17, 303, 3.48, 0.710),
        ("mnli", 33, 87, 2.21, 0.544),
    ],
)
def test_published_speedups_of_the_tasks_at_nine(task, live, stored, expected, saved):
    found = published_speedup(bert(BASE), 9, query=live, passage=stored)
    assert found == pytest.approx(expected, abs=0.0051)
    proxy = token_layers_saved(12, 9, query=live, passage=stored)
    assert proxy == pytest.approx(saved, abs=0.00051)


def test_without_a_store_the_split_saves_one_percent():
    spec = bert(BASE)
    joint = published_flops(spec, query=27, passage=293)
    split = published_flops(with_split(spec, 9), query=27, passage=293, stored=False)
    assert 1.004 < joint / split < 1.01


def test_reading_only_what_the_head_needs_beats_the_published_speedup():
    spec, lengths = bert(BASE), {"query": 27, "passage": 293}
    bare = replace(spec, projection=None, cross_embed="none")
    joint, split = (work(with_split(bare, at), **lengths) for at in (0, 9))
    ours = joint.whole() / split.online()
    assert ours > published_speedup(spec, 9, **lengths)
    assert 100 * joint.whole() / split.online(100) > ours


# Parameters ---------------------------------------------------------------------------------------


def test_parameters_equal_those_of_the_modules(family, model):
    for task in ("rank", "span"):
        found = model(family, task)
        assert parameters(found.spec).total == sum(p.numel() for p in found.net.parameters())


def test_parameters_of_a_split_with_everything_on_it(model):
    split = Model.split(model("bert", "rank"), at=1, cross_embed="add_ln")
    split = with_projection(split, 8)
    split = split.rebuild(replace(split.spec, vector=VectorSpec(width=4)), {"did": "test"})
    assert parameters(split.spec).total == sum(p.numel() for p in split.net.parameters())


@pytest.mark.parametrize(
    ("size", "published"),
    [(BASE, 109_482_240), (LARGE, 335_141_888), ({**BASE, "num_hidden_layers": 6}, 66_955_008)],
)
def test_published_parameters_of_bert(size, published):
    found = parameters(bert(size))
    assert found.encoder + found.pooler == published


def test_published_parameters_of_one_layer():
    for size, published in ((BASE, 7_087_872), (LARGE, 12_596_224)):
        one = described("bert", **{**size, "num_hidden_layers": 1})
        assert parameters(one).layers == published


@pytest.mark.parametrize(
    ("width", "layers", "heads", "published"),
    [
        (768, 12, 12, 11_683_584),
        (1024, 24, 16, 17_683_968),
        (2048, 24, 16, 58_724_864),
        (4096, 12, 64, 222_595_584),
    ],
)
def test_published_parameters_of_albert(width, layers, heads, published):
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    spec = described("albert", vocab_size=30000, embedding_size=128, **shape)
    pooler = width * width + width
    assert parameters(spec).encoder + pooler == published


@pytest.mark.parametrize(
    ("narrow", "size", "published"),
    [
        (128, {"hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4}, 13_483_008),
        (768, BASE, 108_891_648),
        (1024, LARGE, 334_092_288),
    ],
)
def test_published_parameters_of_electra(narrow, size, published):
    assert parameters(described("electra", embedding_size=narrow, **size)).total == published


def test_the_tables_at_the_split_have_the_published_size():
    spec = with_split(bert(BASE), 9, positions="restart", cross_embed="add")
    assert parameters(spec).split == 394_752


def test_a_projection_costs_its_product_on_either_side():
    spec = bert(BASE)
    plain, thin = (
        with_split(spec, 9),
        with_split(replace(spec, projection=ProjectionSpec(width=192)), 9),
    )
    before, after = (work(s, query=27, passage=293) for s in (plain, thin))
    assert after.passage - before.passage == 293 * 768 * 192
    assert after.query - before.query == 27 * 768 * 192
    assert after.cross - before.cross == (293 + 27) * 768 * 192
    assert before.whole() == before.passage + before.query + before.cross
