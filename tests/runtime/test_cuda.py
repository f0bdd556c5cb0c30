"""The CUDA runtime against the reference, in the plain torch forms that it takes without a GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from decoupled.errors import InputError
from decoupled.index.encode import encode_texts
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model
from decoupled.model.spec import ProjectionSpec
from decoupled.model.states import States
from decoupled.runtime.cuda.batch import chunks
from decoupled.runtime.cuda.graphs import whole
from decoupled.runtime.cuda.runtime import CROSS_ROWS, CudaRuntime
from decoupled.runtime.open import open_runtime
from decoupled.runtime.torch import TorchRuntime
from decoupled.search import cross

LENGTHS = (9, 1, 21, 14, 2, 17, 30)
FAST = ("bert", "roberta", "xlm-roberta", "electra", "distilbert", "albert")


def squeezed(model: Model, width: int, *, query: bool = True) -> Model:
    spec = replace(model.spec, projection=ProjectionSpec(width=width, query=query))
    return model.rebuild(spec, {"did": "squeeze"}, seed=3)


def plain(model: Model, codec=None, **options) -> CudaRuntime:
    return CudaRuntime(model, codec, device="cpu", dtype=torch.float32, **options)


def texts(lengths=LENGTHS, seed=0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.integers(5, 1000, n).astype(np.int32) for n in lengths]


def both(model: Model, head: str, codec_name: str | None = None, rows: int | None = None):
    """Logits of the reference and of the CUDA runtime on the same query and passages."""
    reference = TorchRuntime(model)
    query = encode_texts(reference, "query", texts([7], seed=1)).states
    passages = encode_texts(reference, "passage", texts(), query_length=7).states
    sample = States.concat([passages] * 3)  # a projection is fitted on some hundred tokens
    codec = fit_codec(codec_name, sample) if codec_name else None
    stored = codec.encode(passages) if codec else passages
    reference.codec = codec
    fast = plain(model, codec)
    fast.chunk_rows = rows or fast.chunk_rows
    return (
        reference.cross(query, stored, (head,))[head],
        fast.cross(query, stored, (head,))[head],
    )


def agree(expected, got, tolerance=1e-4):
    assert np.array_equal(expected.lengths, got.lengths)
    assert np.abs(expected.values - got.values).max() < tolerance


@pytest.mark.parametrize("head", ["rank", "span", "classes"])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_every_split_and_head_gives_the_reference(model, head, at):
    agree(*both(Model.split(model("bert", head), at=at), head))


@pytest.mark.parametrize("family", FAST)
def test_every_family_of_the_kind_gives_the_reference(model, family):
    agree(*both(Model.split(model(family, "rank"), at=1), "rank"))


@pytest.mark.parametrize(
    "text", ["factorise-embedding:rank=8", "define:rank=8,steps=1", "complex-embedding"]
)
def test_every_token_table_gives_the_reference(model, text):
    made = Model.split(apply(model("bert", "rank"), parse(text)), at=1)
    agree(*both(made, "rank"))
    agree(
        TorchRuntime(made).encode("passage", texts()).states,
        plain(made).encode("passage", texts()).states,
    )


@pytest.mark.parametrize(
    ("head", "layers"), [("rank", "auto"), ("rank", (2,)), ("span", "auto")], ids=str
)
@pytest.mark.parametrize("codec", [None, "project:12+int8"])
def test_one_way_layers_give_the_reference(model, head, layers, codec):
    split = Model.split(model("bert", head), at=1, one_way=layers)
    agree(*both(split, head, codec))


@pytest.mark.parametrize(
    "codec",
    ["fp32", "fp16", "int8", "int8:64", "int4", "project:12+int8", "project:11+int4"],
)
def test_every_codec_is_decoded_on_the_device(model, codec):
    agree(*both(Model.split(model("bert", "rank"), at=1), "rank", codec))


@pytest.mark.parametrize("query", [True, False])
@pytest.mark.parametrize("width", [16, 32])  # narrower than the model, and as wide
@pytest.mark.parametrize("codec", [None, "int8", "project:8+int8"])
def test_the_learned_projection_is_folded_into_the_first_layer(model, query, width, codec):
    split = squeezed(Model.split(model("bert", "rank"), at=1), width, query=query)
    agree(*both(split, "rank", codec))


@pytest.mark.parametrize("tables", ["add", "add_ln"])
@pytest.mark.parametrize("positions", ["restart", "offset"])
@pytest.mark.parametrize("codec", [None, "project:12+int8"])
def test_tables_at_the_split_give_the_reference(model, tables, positions, codec):
    whole = model("bert", "span")
    split = Model.split(whole, at=1, positions=positions, cross_embed=tables)
    agree(*both(split, "span", codec))


@pytest.mark.parametrize("head", ["rank", "span"])
@pytest.mark.parametrize("rows", [1, 40, 61])
def test_where_a_batch_is_cut_changes_nothing(model, head, rows):
    split = Model.split(model("bert", head), at=1)
    agree(*both(split, head, "int8", rows))


@pytest.mark.parametrize("side", ["query", "passage"])
@pytest.mark.parametrize("positions", ["restart", "offset"])
@pytest.mark.parametrize("width", [16, 32])
def test_texts_alone_give_the_reference(model, side, positions, width):
    split = squeezed(Model.split(model("bert", "rank"), at=2, positions=positions), width)
    expected = TorchRuntime(split).encode(side, texts())
    got = plain(split).encode(side, texts())
    assert np.abs(expected.states.values - got.states.values).max() < 1e-5
    assert np.abs(expected.vectors - got.vectors).max() < 1e-5


def test_kept_passages_score_as_those_that_are_sent(model):
    split = Model.split(model("bert", "span"), at=1)
    passages = encode_texts(TorchRuntime(split), "passage", texts()).states
    query = encode_texts(TorchRuntime(split), "query", texts([6], seed=2)).states
    codec = fit_codec("project:12+int8", passages)
    encoded, fast = codec.encode(passages), plain(split, codec)
    which = np.asarray([4, 0, 6, 6, 2])
    sent = cross.score(fast, query, encoded.select(which), ("span",))["span"]
    kept = cross.score(fast, query, fast.keep(encoded).select(which), ("span",))["span"]
    agree(sent, kept, 1e-6)


@pytest.mark.parametrize(("head", "rows", "one_way"), [("span", 61, ()), ("rank", None, "auto")])
@pytest.mark.parametrize("kept", [True, False])
def test_queries_of_a_batch_score_as_each_alone(model, head, rows, one_way, kept):
    split = Model.split(model("bert", head), at=1, one_way=one_way)
    reference = TorchRuntime(split)
    queries = encode_texts(reference, "query", texts([6, 2, 9], seed=2)).states
    passages = encode_texts(reference, "passage", texts()).states
    codec = fit_codec("project:12+int8", passages)
    encoded, fast = codec.encode(passages), plain(split, codec)
    fast.chunk_rows = rows or fast.chunk_rows
    given = fast.keep(encoded) if kept else encoded
    asked = [np.asarray(which) for which in ([4, 0, 6], [6, 2], [1, 3, 5, 0])]
    pairs = [(queries.select([n]), given.select(which)) for n, which in enumerate(asked)]
    calls, single = [], fast.cross
    fast.cross = lambda *args, **how: calls.append(how) or single(*args, **how)
    together = cross.score_many(fast, pairs, (head,))
    assert len(calls) == 1, "one batch"
    for (query, own), mixed in zip(pairs, together, strict=True):
        agree(single(query, own, (head,))[head], mixed[head], 1e-5)


@pytest.mark.parametrize(
    ("head", "one_way", "rows"), [("rank", (), None), ("span", (), 61), ("rank", "auto", None)]
)
@pytest.mark.parametrize("width", [None, 16])
@pytest.mark.parametrize("graph", [True, False])
def test_a_query_that_waits_is_read_with_its_passages(model, head, one_way, rows, width, graph):
    split = Model.split(model("bert", head, num_hidden_layers=4), at=1, one_way=one_way)
    split = squeezed(split, width) if width else split
    passages = encode_texts(TorchRuntime(split), "passage", texts()).states
    codec = fit_codec("project:12+int8", passages)
    fast, ids = plain(split, codec), texts([6], seed=1)
    fast.chunk_rows = rows or fast.chunk_rows
    known = encode_texts(fast, "query", ids).states
    waiting = encode_texts(fast, "query", ids, vectors=False).states
    kept = fast.keep(codec.encode(passages))
    if graph:
        fast._crossing.graphs.enabled = True
        fast._crossing.graphs.run = lambda key, inputs, work: whole(work(*inputs))
    expected = cross.score(fast, known, kept, (head,))[head]
    agree(expected, cross.score(fast, waiting.select([0]), kept, (head,))[head], 1e-5)
    assert waiting.waits_for(fast) == (rows is None), "unless several batches need it"
    assert np.abs(known.values - waiting.values).max() < 1e-5
    assert not waiting.waits_for(fast)
    agree(expected, cross.score(fast, waiting, kept, (head,))[head], 1e-5)
    other = encode_texts(plain(split), "query", texts([6], seed=2), vectors=False).states
    assert not other.waits_for(fast), "its reader may be another model"
    assert len(waiting.select([0, 0])) == 2 and len(States.concat([waiting, known])) == 2


def test_room_for_more_pairs_changes_nothing(model):
    """What a graph computes: sizes rounded up, with rows and pairs that are not there."""
    split = Model.split(model("bert", "span"), at=1)
    states = encode_texts(TorchRuntime(split), "passage", texts()).states
    query = encode_texts(TorchRuntime(split), "query", texts([6], seed=2)).states
    fast = plain(split)
    exact = fast.cross(query, states, ("span",))["span"]
    runs = []
    for lane in (fast._encoding, fast._crossing):
        lane.graphs.enabled = True
        lane.graphs.run = lambda key, inputs, work: runs.append(key) or whole(work(*inputs))
    agree(exact, fast.cross(query, states, ("span",))["span"], 1e-5)
    both, owner = States.concat([query.select([0]), query]), np.arange(len(states)) % 2
    agree(exact, fast.cross(both, states, ("span",), owner=owner)["span"], 1e-5)
    for lengths in ([6], [6, 2, 9]):
        alone = plain(split).encode("query", texts(lengths, seed=2))
        again = fast.encode("query", texts(lengths, seed=2))
        assert np.abs(alone.states.values - again.states.values).max() < 1e-5
        assert np.abs(alone.vectors - again.vectors).max() < 1e-5
    assert len(runs) == 4


def test_batches_of_several_queries_come_in_few_sizes(model):
    """Each size is a graph of its own, captured at a cost, and only so many are kept."""
    fast = plain(Model.split(model("bert", "rank"), at=1))
    fast._crossing.graphs.enabled = fast._encoding.graphs.enabled = True
    fast.graph_rows = CROSS_ROWS
    crossing, reading = set(), set()
    draw = np.random.default_rng(0)
    for queries in range(2, 33):
        asker = np.repeat(np.arange(queries), 100)
        length = draw.integers(120, 180, len(asker))
        asks = np.full_like(asker, 20)
        cut = chunks(asker, asks, asker, length, rows=CROSS_ROWS)
        crossing |= {fast._room(chunk, fast.graph_rows) for chunk in cut}
        none = np.zeros(queries, np.int64)
        asked = draw.integers(6, 24, queries)
        reading |= {fast._reading_room(c) for c in chunks(none, none, none, asked, rows=4096)}
    assert all(room.graph for room in crossing | reading)
    assert len(crossing) <= 40 and len(reading) <= 12


def test_a_query_is_read_while_passages_of_another_are(model):
    """Or the device would wait for the next batch to be prepared."""
    fast = plain(Model.split(model("bert", "rank"), at=1))
    with fast._crossing.turn(), ThreadPoolExecutor(1) as other:
        encoding = other.submit(fast.encode, "query", texts([6])).result(timeout=5)
    assert len(encoding.states) == 1


def test_bf16_ranks_as_the_reference_does(model):
    split = Model.split(model("bert", "rank"), at=1)
    reference = TorchRuntime(split)
    ids = texts(np.random.default_rng(4).integers(3, 30, 64))
    query = encode_texts(reference, "query", texts([7], seed=1)).states
    passages = encode_texts(reference, "passage", ids).states
    expected = reference.cross(query, passages, ("rank",))["rank"].values[:, 0]
    fast = CudaRuntime(split, device="cpu", dtype=torch.bfloat16)
    got = fast.cross(query, passages, ("rank",))["rank"].values[:, 0]
    places = [np.argsort(np.argsort(x)) for x in (expected, got)]
    assert np.corrcoef(*places)[0, 1] > 0.99


@pytest.mark.parametrize("family", ["modernbert", "deberta-v2"])
def test_other_families_are_refused_with_the_reason(model, family):
    with pytest.raises(InputError, match=r"cannot run on the cuda runtime .*; use torch"):
        plain(Model.split(model(family, "rank"), at=1))


def test_without_a_gpu_auto_means_torch_and_cuda_says_why(model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    split = Model.split(model("bert", "rank"), at=1)
    assert open_runtime(split).name == "torch"
    with pytest.raises(InputError, match="runtime 'cuda' cannot run here: torch sees no CUDA"):
        open_runtime(split, name="cuda")
    with pytest.raises(InputError, match="choose one of auto, torch, cuda"):
        open_runtime(split, name="tpu")


def test_passages_that_another_runtime_keeps_are_refused(model):
    split = Model.split(model("bert", "rank"), at=1)
    states = States(np.zeros((3, 32), np.float32), np.asarray([3]))
    codec = fit_codec("int8", states)
    kept = plain(split, codec).keep(codec.encode(states))
    with pytest.raises(TypeError, match="by that one only"):
        TorchRuntime(split, codec).cross(states, kept, ("rank",))


def test_encoded_passages_without_a_codec_are_refused(model):
    split = Model.split(model("bert", "rank"), at=1)
    states = States(np.zeros((3, 32), np.float32), np.asarray([3]))
    encoded = fit_codec("int8", states).encode(states)
    with pytest.raises(ValueError, match="need the codec"):
        plain(split).cross(states, encoded, ("rank",))
