"""The OpenVINO runtime says what torch says: every family, split, head, codec and kind of layer."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import decoupled as dc
from decoupled.errors import InputError, WeightsError
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model, folder
from decoupled.model.spec import ProjectionSpec
from decoupled.model.split import unsplit
from decoupled.model.states import States, batches_by_length
from decoupled.runtime import cpu
from decoupled.runtime import open as opening
from decoupled.runtime.base import rounded_up
from decoupled.runtime.open import open_runtime
from decoupled.runtime.openvino.attention import absorbed, dot
from decoupled.runtime.openvino.calibrate import calibrate, read_ranges, save_ranges
from decoupled.runtime.openvino.components import QUERY_STEP, STEP
from decoupled.runtime.openvino.frame import bucket_table
from decoupled.runtime.openvino.runtime import (
    BATCH,
    Compiled,
    OpenVinoRuntime,
    coarse_step,
    even_budget,
)
from decoupled.runtime.torch import TorchRuntime
from decoupled.search import starter
from decoupled.search.engine import Engine
from decoupled.train.data.prepare import prepare
from tiny import FAMILIES as READ
from tiny import TORCH_ONLY
from toy import named_pairs

LENGTHS = (9, 4, 21)
FAMILIES = [name for name in READ if name not in TORCH_ONLY]


@pytest.fixture(autouse=True)
def all_cores(monkeypatch):
    """Other tests leave some to the processes beside theirs."""
    monkeypatch.delenv(cpu.THREADS, raising=False)


def texts(seed: int = 0, *lengths: int) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.integers(5, 500, n).astype(np.int32) for n in lengths]


def tensors(model: Model) -> dict[str, np.ndarray]:
    return {name: t.numpy() for name, t in model.net.state_dict().items()}


def openvino(model: Model, codec=None, ranges=None) -> OpenVinoRuntime:
    return OpenVinoRuntime(model.spec, tensors(model), model.tokenizer, codec, ranges=ranges)


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_cores_get_batches_of_like_size(cores):
    draw = np.random.default_rng(cores)
    for count in (6, 10, 14, 30):
        lengths = draw.integers(60, 300, count)
        ends = [0] * cores
        for batch in batches_by_length(lengths, even_budget(lengths, cores), powers=True):
            ends[np.argmin(ends)] += int(lengths[batch].max()) * len(batch)
        # Padding and the last batch together cost less than a third of an even share.
        assert max(ends) < 1.33 * lengths.sum() / cores
    assert even_budget(draw.integers(20, 300, 5000), cores) == BATCH
    assert len(batches_by_length(np.array([9]), even_budget(np.array([9]), cores))) == 1
    assert [len(b) for b in batches_by_length(np.full(15, 9), 99, powers=True)] == [8, 4, 2, 1]


def test_shapes_are_few_and_pad_little():
    lengths = range(1, 2049)
    ladder = {rounded_up(n, coarse_step(n)) for n in lengths}
    assert len(ladder) <= 4 * 7 and all(n % STEP == 0 for n in ladder)
    assert all(rounded_up(n, coarse_step(n)) < max(n + STEP, 1.25 * n) for n in lengths)


def test_callers_at_the_same_time_get_what_each_gets_alone(model, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    runtime = openvino(Model.split(model("bert", "rank"), at=1))
    assert runtime.callers == 2
    read = runtime.encode("passage", texts(2, *range(5, 90))).states
    queries = [runtime.encode("query", texts(n, 7)).states for n in range(4)]
    alone = [runtime.cross(q, read, ("rank",))["rank"].values for q in queries]
    with ThreadPoolExecutor(4) as pool:
        found = [
            one["rank"].values
            for one in pool.map(lambda q: runtime.cross(q, read, ("rank",)), queries)
        ]
    for a, b in zip(alone, found, strict=True):
        assert a == pytest.approx(b, abs=1e-4)
    with runtime._calling() as first, runtime._calling() as second:
        assert first and not second
    with runtime._calling() as again:
        assert again


def test_texts_of_many_lengths_have_few_shapes(model, monkeypatch):
    runtime, shapes = openvino(Model.split(model("bert", "rank"), at=1)), set()
    plain, alone, text = Compiled.__call__, set(), runtime.spec.text

    def watched(self, inputs):
        if inputs[0].ndim == 2:
            alone.add(inputs[0].shape[1])
        elif len(inputs) > 3 and inputs[0].ndim == 3:
            asked, passage = inputs[0].shape[1], inputs[3].shape[1]
            assert asked % QUERY_STEP == 0 and (asked + passage) % STEP == 0
            shapes.add((len(inputs[3]), asked, passage))
        return plain(self, inputs)

    monkeypatch.setattr(Compiled, "__call__", watched)
    for tokens in range(3, 30):
        asked, read = min(tokens, text.query_tokens), min(2 * tokens, text.passage_tokens)
        query = runtime.encode("query", texts(tokens, asked)).states
        passages = texts(1, *range(read, max(0, read - 25), -5))
        runtime.cross(query, runtime.encode("passage", passages).states, ("rank",))
    assert 3 < len(shapes) <= 12
    assert len(alone) <= 4 and all(n % STEP == 0 for n in alone)


OWN_GRAPHS = ("albert", "bert", "deberta-v2", "modernbert")
"""Families whose layers differ; the others' are BERT's, which `make test-all` builds as well."""
graphs = pytest.mark.parametrize(
    "one", [pytest.param(f, marks=[pytest.mark.slow] * (f not in OWN_GRAPHS)) for f in FAMILIES]
)


@pytest.mark.parametrize("rounds", [False, True])
@graphs
def test_batch_mates_change_no_bit(model, one, rounds):
    """Of what is stored; so a part may be built anywhere. Scores keep all but their last bits.

    Where it rounds to bf16, what a pair is padded to may change a few of its last bits.
    """
    split = Model.split(model(one, "rank"), at=1)
    runtime = OpenVinoRuntime(split.spec, tensors(split), split.tokenizer, rounds=rounds)
    whole = split.spec.text.passage_tokens  # there are no positions beyond it
    read = texts(3, 5, 8, 9, 16, 17, 23, 30, whole - 1, whole)
    query = runtime.encode("query", texts(1, 7)).states
    together = runtime.encode("passage", read)
    scores = runtime.cross(query, together.states, ("rank",))["rank"].values
    for number, ids in enumerate(read):
        alone = runtime.encode("passage", [ids])
        own = together.states.select(np.array([number]))
        assert np.array_equal(alone.states.values, own.values)
        assert np.array_equal(alone.vectors[0], together.vectors[number])
        found = runtime.cross(query, own, ("rank",))["rank"].values
        assert found[0] == pytest.approx(scores[number], abs=0.1 if rounds else 2e-6)


@graphs
def test_batch_mates_change_no_bit_in_torch(model, one):
    runtime = TorchRuntime(Model.split(model(one, "rank"), at=1))
    whole = runtime.spec.text.passage_tokens // 16 * 16
    read = texts(3, 5, 8, 9, 16, 17, 23, 30, whole - 1, whole)
    together = runtime.encode("passage", read)
    for number, ids in enumerate(read):
        own = together.states.select(np.array([number])).values
        assert np.array_equal(runtime.encode("passage", [ids]).states.values, own)


def gap(model: Model, heads: tuple[str, ...]) -> float:
    """The largest difference between the two runtimes, over states, vectors and logits."""
    query, passages = texts(1, 7), texts(2, *LENGTHS)
    outputs = []
    for runtime in (TorchRuntime(model), openvino(model)):
        asked = runtime.encode("query", query)
        read = runtime.encode("passage", passages, query_length=7)
        logits = runtime.cross(asked.states, read.states, heads)
        shapes = [tuple(logits[kind].lengths) for kind in heads]
        found = [asked.states.values, read.states.values, read.vectors]
        outputs.append((shapes, [*found, *(logits[kind].values for kind in heads)]))
    assert outputs[0][0] == outputs[1][0]
    return max(
        float(np.abs(a - b).max()) for a, b in zip(outputs[0][1], outputs[1][1], strict=True)
    )


@pytest.mark.parametrize("head", ["rank", "span"])
def test_every_family_equals_the_reference(model, family, head):
    whole = model(family, head)
    if family in TORCH_ONLY:
        with pytest.raises(
            InputError, match=r"the openvino runtime lacks (bucketed|segmented) attention"
        ):
            gap(Model.split(whole, at=1), (head,))
        return
    last = len(whole.spec.layers)
    splits = (0, 1, last) if head == "span" else (last - 1, last)
    for k in splits if family in OWN_GRAPHS else (1,):
        assert gap(Model.split(whole, at=k), (head,)) < 1e-3, f"split {k}"


def test_heads_together_and_offset_positions(model):
    rank = replace(model("bert", "rank").spec.head("rank"), pooling="mean")
    both = model("bert", "span").with_heads(rank, seed=1)
    for where in ("restart", "offset"):
        assert gap(Model.split(both, at=2, positions=where), ("span", "rank")) < 1e-3


@pytest.mark.parametrize("tables", ["add", "add_ln"])
def test_tables_at_the_split(model, tables):
    assert gap(Model.split(model("electra", "rank"), at=1, cross_embed=tables), ("rank",)) < 1e-3


def squeezed(whole: Model, at: int, *, query: bool) -> Model:
    split = Model.split(whole, at=at)
    spec = replace(split.spec, projection=ProjectionSpec(width=8, query=query))
    return split.rebuild(spec, {"did": "add projection"})


@pytest.mark.parametrize("query", [True, False])
@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2"])
def test_a_learned_projection_is_folded_exactly(model, family, query):
    assert gap(squeezed(model(family, "rank"), 1, query=query), ("rank",)) < 1e-3


def one_way(split: Model, *, last: str = "frozen") -> Model:
    k, count = split.spec.split, len(split.spec.layers)
    layers = tuple(
        replace(layer, passage="advance" if n < k else last if n == count - 1 else "frozen")
        for n, layer in enumerate(split.spec.layers)
    )
    encoder = replace(split.spec.encoder, layers=layers)
    return split.rebuild(replace(split.spec, encoder=encoder), {"did": "freeze"})


@pytest.mark.parametrize("form", ["absorbed", "plain", "chosen"])
@pytest.mark.parametrize("query", [True, False])
def test_one_way_layers_in_both_forms(model, monkeypatch, form, query):
    if form != "chosen":
        few = lambda spec, tokens, want, rounded: want in ("first", "query")  # noqa: E731
        monkeypatch.setattr(dot, "pays", few if form == "absorbed" else lambda *a, **k: False)
    ranked = squeezed(model("bert", "rank"), 1, query=query)
    assert gap(one_way(ranked), ("rank",)) < 1e-3
    reads = squeezed(model("bert", "span"), 1, query=query)
    assert gap(one_way(reads, last="advance"), ("span",)) < 1e-3


def test_the_cheaper_form_is_chosen():
    """One row over many tokens is absorbed; many rows over wide tokens are not, over codes they are."""
    from decoupled.model.parts.attention import SelfAttention
    from decoupled.runtime.openvino.graph import LoadedLinear
    from decoupled.runtime.openvino.tokens import TokenPart, Tokens

    spec = SelfAttention(heads=12, head_width=64)
    up = LoadedLinear(weight=np.zeros((768, 96), np.float32))
    wide = Tokens(parts=(TokenPart(value=None, tap=""),), query=None, batch=None)
    asked = TokenPart(value=None, tap="")
    codes = Tokens(parts=(asked, TokenPart(value=None, tap="", up=up)), query=None, batch=None)
    assert absorbed.pays(spec, wide, "first", rounded=True)
    assert not absorbed.pays(spec, wide, "all", rounded=False)
    assert absorbed.pays(spec, codes, "query", rounded=False)


@pytest.mark.parametrize(
    "name",
    ["fp32", "fp16", "int8", "int8:64", "int4", "project:12+int8", "project:13+int4"],
)
def test_codes_are_decoded_in_the_graph(model, name):
    split = Model.split(model("bert", "rank"), at=1)
    reference = TorchRuntime(split)
    sample = reference.encode("passage", texts(3, *[40] * 12)).states
    codec = fit_codec(name, sample)
    encoded = codec.encode(reference.encode("passage", texts(2, *LENGTHS)).states)
    query = reference.encode("query", texts(1, 7)).states
    expected = TorchRuntime(split, codec).cross(query, encoded, ("rank",))["rank"].values
    got = openvino(split, codec).cross(query, encoded, ("rank",))["rank"].values
    assert np.abs(got - expected).max() < 1e-3


def test_a_codec_with_a_projection_over_a_learned_projection(model):
    split = squeezed(model("bert", "rank"), 1, query=True)
    reference = TorchRuntime(split)
    codec = fit_codec("project:6+int8", reference.encode("passage", texts(3, *[40] * 12)).states)
    encoded = codec.encode(reference.encode("passage", texts(2, *LENGTHS)).states)
    query = reference.encode("query", texts(1, 7)).states
    expected = TorchRuntime(split, codec).cross(query, encoded, ("rank",))["rank"].values
    got = openvino(split, codec).cross(query, encoded, ("rank",))["rank"].values
    assert np.abs(got - expected).max() < 1e-3


@pytest.mark.parametrize(("buckets", "far"), [(8, 0), (8, 96), (16, 512), (256, 512)])
def test_buckets_equal_those_of_the_modules(buckets, far):
    from decoupled.model.parts.attention.disentangled import log_bucket

    table = bucket_table(buckets, far)
    reach = len(table) // 2
    distance = torch.arange(-reach, reach + 1)
    expected = log_bucket(distance, buckets, far, torch) if far else distance
    assert np.array_equal(table, (expected + buckets).clamp(0, 2 * buckets - 1).numpy())
    assert table[0] == 0 and table[-1] == 2 * buckets - 1, "it stays the same beyond"


# Smaller forms ------------------------------------------------------------------------------------

FORMS = {
    "thin": ("low-rank:keep=0.6",),
    "narrow table": ("factorise-embedding:rank=5",),
    "bands": ("band-embedding:factor=2",),
    "int8 weights": ("quantise:inputs=float",),
    "int4 weights": ("quantise:bits=4,inputs=float,group=20",),
    "int8 weights in groups": ("quantise:inputs=float,group=20",),
    "thin int4": ("low-rank:rank=7", "quantise:bits=4,inputs=float"),
    "odd int4": ("prune-neurons:share=0.35,by=weight", "quantise:bits=4,inputs=float"),
    "shared thin": ("share:groups=1", "low-rank:rank=6"),
    "fixed": ("fix-heads:assign=order",),
    "fixed, nothing where nothing is": ("fix-heads:assign=order,empty=zero",),
    "all fixed": ("fix-heads:learned=0",),
}


def smaller(model: Model, *methods: str) -> Model:
    sample = prepare(named_pairs(model.spec.heads[0].labels), model, "pairs")
    for text in methods:
        model = apply(model, parse(text), sample)
    return model


FEW = ("thin int4", "bands", "fixed")
"""Forms that every kind of layer is built in; tables and maps of others are those of BERT."""


@pytest.mark.parametrize(
    ("one", "form"),
    [
        pytest.param(
            f,
            form,
            marks=[pytest.mark.slow] * (f != "bert" and (f not in OWN_GRAPHS or form not in FEW)),
        )
        for f in FAMILIES
        for form in FORMS
    ],
)
def test_smaller_forms_equal_the_reference(model, one, form):
    if one == "deberta-v2" and "fixed" in form:
        pytest.skip("fix-heads refuses its attention")
    made = smaller(Model.split(model(one, "classes"), at=1), *FORMS[form])
    assert gap(made, ("classes",)) < 1e-4


def test_thin_maps_of_projected_states_and_of_one_way_layers(model):
    narrow = squeezed(model("bert", "classes"), 1, query=True)
    passive = one_way(Model.split(model("bert", "classes"), at=1))
    for split in (narrow, passive):
        for rank in (4, 12):
            assert gap(smaller(split, f"low-rank:rank={rank}"), ("classes",)) < 1e-4


@pytest.mark.parametrize("inputs", ["dynamic", "static"])
def test_coded_maps_round_their_inputs_without_calibration(model, inputs):
    """In groups of channels: nearer to the floats than torch, and the same whatever else is in the batch."""
    split = Model.split(
        model("bert", "classes", hidden_size=256, intermediate_size=512), at=2
    )  # narrower maps would not be rounded
    coded = smaller(split, f"quantise:inputs={inputs}")
    passages = texts(2, *LENGTHS)
    exact, torch_, rounded, weights = (
        runtime.encode("passage", passages).states
        for runtime in (
            TorchRuntime(split),
            TorchRuntime(coded),
            openvino(coded),
            openvino(smaller(split, "quantise:inputs=float")),
        )
    )
    off = [np.linalg.norm(x.values - exact.values) for x in (weights, rounded, torch_)]
    assert 0 < off[0] < off[1] < 1.1 * off[2], "only weights; inputs in groups; inputs whole"
    assert openvino(coded).precision == "int8"
    alone = openvino(coded).encode("passage", passages[1:2]).states.values
    assert np.abs(alone - rounded[1]).max() < 1e-4


def test_any_model_runs_in_int8_without_calibration(model, tmp_path, monkeypatch):
    """As if it had been quantised; and one that was runs in floats where that is asked for, or is safe."""
    split = Model.split(model("bert", "classes", hidden_size=256, intermediate_size=512), at=2)
    coded = smaller(split, "quantise:embedding=false")
    split.save(tmp_path / "m")
    coded.save(tmp_path / "coded")
    passages = texts(2, *LENGTHS)
    runtimes = [open_runtime(tmp_path / "coded", name="openvino")]
    runtimes += [open_runtime(source, name="openvino-int8") for source in (tmp_path / "m", split)]
    first, *others = [runtime.encode("passage", passages).states.values for runtime in runtimes]
    assert [runtime.precision for runtime in runtimes] == ["int8"] * 3
    assert all(np.abs(other - first).max() < 1e-4 for other in others)
    floats = open_runtime(tmp_path / "coded", name="openvino-fp32")
    weights = openvino(smaller(split, "quantise:inputs=float,embedding=false"))
    exact, found = (r.encode("passage", passages).states.values for r in (weights, floats))
    assert floats.precision == "fp32" and np.abs(exact - found).max() < 1e-4
    monkeypatch.setattr(cpu, "flags", lambda: frozenset({"avx2"}))
    assert open_runtime(tmp_path / "coded", name="openvino").precision == "fp32"


def test_a_thin_model_is_calibrated_to_int8(model):
    split = smaller(Model.split(model("bert", "classes"), at=1), "low-rank:rank=8")
    pairs = list(zip(texts(5, *[7] * 24), texts(6, *range(8, 32)), strict=True))
    ranges = calibrate(split.spec, tensors(split), pairs)
    assert {"0.down>", "0.in>stack.attention.0.attention.query"} <= ranges.keys()
    exact, rounded = openvino(split), openvino(split, ranges=ranges)
    a, b = (r.encode("passage", texts(2, *LENGTHS)).states.values for r in (exact, rounded))
    assert 0 < np.linalg.norm(a - b) / np.linalg.norm(a) < 0.1


# int8 ---------------------------------------------------------------------------------------------


@graphs
def test_int8_is_close_and_ignores_batch_mates(model, one):
    split = Model.split(model(one, "rank"), at=1)
    pairs = list(zip(texts(5, *[7] * 24), texts(6, *range(8, 32)), strict=True))
    ranges = calibrate(split.spec, tensors(split), pairs)
    exact, rounded = openvino(split), openvino(split, ranges=ranges)
    assert (exact.precision, rounded.precision) == ("fp32", "int8")
    passages = texts(2, *LENGTHS)
    a, b = (r.encode("passage", passages).states.values for r in (exact, rounded))
    assert 0 < np.linalg.norm(a - b) / np.linalg.norm(a) < 0.1
    alone = rounded.encode("passage", passages[1:2]).states.values
    together = rounded.encode("passage", passages).states[1]
    assert np.abs(alone - together).max() < 1e-4


def test_the_starter_model_keeps_its_rankings_and_answers_in_int8():
    """Passages that hold an answer among some that do not: the same first hit and answer, like scores."""
    path = folder.starter_model()
    fp32, int8 = (
        Engine(path, runtime=f"openvino-{name}", remember=1 << 26) for name in ("fp32", "int8")
    )
    passages, questions = list(starter.sample_passages()), starter.sample_questions()[:4]
    first, answers, gaps = 0, 0, []
    for sample in questions:
        holds = [p for p in passages if any(a in p.text for a in sample.answers)][:2]
        pool = holds + passages[:3]
        hits = [e.rerank(sample.question, texts=pool, raw=True) for e in (fp32, int8)]
        first += hits[0][0].text == hits[1][0].text
        scores = [{hit.text: hit.score for hit in found} for found in hits]
        gaps += [abs(scores[0][text] - scores[1][text]) for text in scores[0]]
        said = [[a.text for a in e.ask(sample.question, 1, texts=pool)] for e in (fp32, int8)]
        answers += said[0] == said[1]
    assert first >= 3 and answers >= 3
    assert np.mean(gaps) < 0.5, "logits run from about -10 to 10"


@pytest.mark.slow
def test_rounding_as_inputs_come_is_as_exact_as_calibrated_ranges(tmp_path):
    apply(Model.load(folder.starter_model()), parse("quantise")).save(tmp_path / "coded")
    pool = list(starter.sample_passages())[:12]
    question = starter.sample_questions()[0].question
    scores = []
    for path, runtime in (
        (folder.starter_model(), "openvino-fp32"),
        (tmp_path / "coded", "openvino"),
        (folder.starter_model(), "openvino-int8"),
    ):
        hits = Engine(path, runtime=runtime).rerank(question, texts=pool, raw=True)
        scores.append(np.array([hit.score for hit in sorted(hits, key=lambda hit: hit.text)]))
    exact, coded, calibrated = scores
    for rounded in (coded, calibrated):
        assert 0 < np.abs(rounded - exact).mean() < 0.02, "logits run from about -10 to 10"


def test_int8_of_a_map_whose_input_has_two_readers(model):
    """A stored code that is restored in fp32 feeds the residual and the rounding."""
    split = Model.split(model("bert", "rank"), at=1, positions="restart")
    pairs = list(zip(texts(5, *[7] * 24), texts(6, *range(8, 32)), strict=True))
    ranges = calibrate(split.spec, tensors(split), pairs)
    reference = TorchRuntime(split)
    codec = fit_codec("project:12+int8", reference.encode("passage", texts(3, *[40] * 12)).states)
    encoded = codec.encode(reference.encode("passage", [p for _, p in pairs[:6]]).states)
    query = reference.encode("query", [pairs[0][0]]).states
    expected = TorchRuntime(split, codec).cross(query, encoded, ("rank",))["rank"].values
    got = openvino(split, codec, ranges).cross(query, encoded, ("rank",))["rank"].values
    assert np.abs(got - expected).max() < 0.1 * np.abs(expected).max()


def test_ranges_survive_the_disk_and_damage_is_named(model, tmp_path):
    split = Model.split(model("bert", "rank"), at=1)
    split.save(tmp_path / "m")
    assert read_ranges(tmp_path / "m") == {}
    ranges = calibrate(split.spec, tensors(split), [(texts(1, 6)[0], texts(2, 9)[0])])
    file = save_ranges(tmp_path / "m", ranges, {})
    content = bytearray(file.read_bytes())
    file.write_bytes(bytes([*content[:-1], content[-1] ^ 1]))
    with pytest.raises(
        WeightsError, match=r"ranges\.safetensors is damaged \(.*not what was saved"
    ):
        read_ranges(tmp_path / "m")
    file.write_bytes(content)
    found = read_ranges(tmp_path / "m")
    assert found.keys() == ranges.keys()
    assert all(np.array_equal(found[t].low, ranges[t].low) for t in found)
    assert open_runtime(tmp_path / "m", name="openvino-int8").precision == "int8"
    assert open_runtime(tmp_path / "m", name="openvino-fp32").precision == "fp32"
    file.write_bytes(b"half")
    with pytest.raises(
        Exception, match=r"ranges\.safetensors is damaged .* export the model again"
    ):
        open_runtime(tmp_path / "m", name="openvino-int8")


# Choosing -----------------------------------------------------------------------------------------


def test_folders_run_on_openvino_and_models_in_memory_on_torch(model, tmp_path):
    split = Model.split(model("bert", "rank"), at=1)
    split.save(tmp_path / "m")
    assert open_runtime(tmp_path / "m").name == "openvino"
    assert open_runtime(split).name == "torch"
    assert open_runtime(split, name="openvino").name == "openvino"
    with pytest.raises(InputError, match="runtime 'tpu' is unknown; choose one of auto, torch"):
        open_runtime(split, name="tpu")


def test_the_gpu_comes_first(monkeypatch, model, tmp_path):
    Model.split(model("bert", "rank"), at=1).save(tmp_path / "m")
    monkeypatch.setattr(opening, "has_gpu", lambda: True)
    assert open_runtime(tmp_path / "m").name == "torch"


def test_the_joint_model_of_a_split_one_reads_as_the_unsplit_model_does(model, tmp_path):
    split = squeezed(model("bert", "span"), 2, query=True)
    split.save(tmp_path / "m")
    joint = split.rebuild(unsplit(split.spec), {"did": "unsplit"})
    query, passages = texts(1, 7), texts(2, *LENGTHS)
    found = []
    for runtime in (TorchRuntime(joint), opening.open_joint(tmp_path / "m")):
        asked = runtime.encode("query", query).states
        read = runtime.encode("passage", passages, query_length=7).states
        found.append(runtime.cross(asked, read, ("span",))["span"].values)
    assert np.abs(found[0] - found[1]).max() < 1e-3


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import importlib.util as util
real = util.find_spec
util.find_spec = lambda name, *rest: None if name == "torch" else real(name, *rest)
import decoupled as dc
from decoupled.model.folder import starter_model
with dc.Index.create(sys.argv[1]) as index:
    index.add([dc.Passage(id="a", text="Dracula is a novel by Bram Stoker, published in 1897."),
               dc.Passage(id="b", text="Paris is the capital of France.")])
answer = dc.Engine(sys.argv[1]).ask("What is the capital of France?", k=1)[0]
print(answer.passage_id, answer.text, dc.Engine(sys.argv[1]).runtime.name)
assert "openvino_telemetry" not in sys.modules and "transformers" not in sys.modules
"""


def test_the_starter_model_indexes_and_answers_without_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path / "i")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["b", "Paris", "openvino"]


def test_states_of_another_width_are_an_error(model):
    split = Model.split(model("bert", "rank"), at=1)
    states = States(np.zeros((3, 5), np.float32), np.array([3]))
    with pytest.raises(RuntimeError):
        openvino(split).cross(states, states, ("rank",))


def test_assets_stay_small():
    assets = Path(folder.__file__).parents[1] / "assets"
    assert sum(f.stat().st_size for f in assets.rglob("*") if f.is_file()) < 60e6


INTERRUPTED = """
import gc, os, signal, sys, time
from decoupled.search.engine import Engine
engine = Engine(sys.argv[1], runtime="openvino-fp32")
engine.rerank("river", texts=["the king", "a lake"])
del engine
gc.collect()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt:
    sys.exit(7)
"""


SHAPES = """
import sys
from itertools import product
import numpy as np, psutil
from decoupled.model.states import States
from decoupled.runtime.open import open_runtime
runtime = open_runtime(sys.argv[1], name="openvino")

def states(side, count, length):
    width = runtime.spec.state_width(side)
    return States(np.ones((count * length, width), np.float32), np.full(count, length))

seen = []
for count in (6, 5, 4, 3):  # the largest first, which need most beside their kernels
    for length, asked in product(range(512, 16, -16), (8, 16, 24)):
        runtime.cross(states("query", 1, asked), states("passage", count, length), ["rank"])
    seen.append(psutil.Process().memory_info().rss)
print(seen[0], seen[-1])
"""


def test_memory_does_not_grow_with_the_shapes_of_batches(model, tmp_path):
    """The kernels of each shape were kept, 140 MB for 279 of them even of a tiny model."""
    Model.split(model("bert", "rank"), at=2).save(tmp_path / "m")
    dc.export(tmp_path / "m", int8=True, limit=8)
    command = [sys.executable, "-c", SHAPES, tmp_path / "m"]
    # oneDNN keeps kernels of its own, up to a number that this does not reach.
    alone = {"OMP_NUM_THREADS": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}
    done = subprocess.run(command, env={**os.environ, **alone}, capture_output=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after - before < 70 << 20


def test_ctrl_c_after_a_model_has_gone_is_no_crash(model, tmp_path):
    """Each graph used to have a core of its own, and a signal then met what was no longer there."""
    Model.split(model("bert", "rank"), at=1).save(tmp_path / "m")
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, tmp_path / "m"], check=False)
    assert done.returncode == 7
