"""Exits: what a model says below its last layer, and which candidates are read no further for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from decoupled.errors import SpecError
from decoupled.index.encode import encode_texts
from decoupled.index.index import Index
from decoupled.measure.info import info
from decoupled.methods.exits.model import with_exits
from decoupled.methods.exits.search import going_on
from decoupled.model.codec import fit_codec
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.model import Model
from decoupled.model.parts.exits import ExitSpec
from decoupled.model.spec import ModelSpec
from decoupled.model.split import with_split
from decoupled.model.tokens import Passage
from decoupled.runtime.cuda.runtime import CudaRuntime
from decoupled.runtime.open import open_runtime
from decoupled.runtime.torch import TorchRuntime
from decoupled.search.engine import Engine
from decoupled.search.request import Request

TEXTS = [f"the {word} by the sea in year {n}" for n in range(12) for word in ("town", "moon")]


@pytest.fixture(scope="module", params=["bert", "modernbert"])
def split(request, model):
    """With exits of their own weights."""
    made = with_exits(Model.split(model(request.param, "rank"), at=1))
    torch.manual_seed(1)
    for parameter in made.net.exits.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def states_of(split):
    windows = [w.ids for group in split.tokenizer.windows(TEXTS[:6]) for w in group]
    runtime = TorchRuntime(split)
    query = encode_texts(runtime, "query", [split.tokenizer.query("the river")]).states
    return query, encode_texts(runtime, "passage", windows).states


def with_margins(split, margin):
    exits = tuple(replace(one, margin=margin) for one in split.spec.exits)
    made = split.rebuild(replace(split.spec, exits=exits), {})
    made.net.spec = replace(made.spec, exits=exits)
    return made


def test_an_exit_is_the_model_cut_off_there(split):
    query, passages = states_of(split)
    for one in split.spec.exits:
        layers = split.spec.layers[: one.layer]
        spec = replace(split.spec, exits=(), encoder=replace(split.spec.encoder, layers=layers))
        cut = split.rebuild(spec, {})
        cut.net.heads["rank"].load_state_dict(split.net.exits[str(one.layer)].state_dict())
        expected = TorchRuntime(cut).cross(query, passages, ("rank",))["rank"].values
        found = TorchRuntime(split).cross(query, passages, ("rank",), last=one.layer)
        assert np.allclose(found["rank"].values, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["openvino", "cuda"])
def test_every_runtime_has_the_same_exits(name, split):
    query, passages = states_of(split)
    codec = fit_codec("fp32", passages)
    if name == "cuda":
        if split.spec.family != "bert":
            pytest.skip("the fast path for GPUs is for models of the BERT kind")
        runtime = CudaRuntime(split, codec, device="cpu", dtype=torch.float32, graphs=False)
    else:
        runtime = open_runtime(split, codec, name="openvino-fp32")
    encoded, reference = codec.encode(passages), TorchRuntime(split, codec)
    seen = []
    for last in (*(one.layer for one in split.spec.exits), None):
        expected = reference.cross(query, encoded, ("rank",), last=last)["rank"].values
        found = runtime.cross(query, encoded, ("rank",), last=last)["rank"].values
        assert np.allclose(found, expected, atol=1e-3)
        seen.append(expected.ravel().tolist())
    assert seen[0] != seen[-1]


def test_exits_join_no_fingerprint_and_no_older_json(split):
    plain = split.rebuild(replace(split.spec, exits=()), {})
    assert split.fingerprint == plain.fingerprint and "exits" not in to_json(plain.spec)
    assert from_json(ModelSpec, to_json(split.spec)) == split.spec
    assert with_split(split.spec, 2).exits == (), "made for one split"


@pytest.mark.parametrize("layers", [(1,), (3,), (2, 2)])
def test_exits_stand_after_cross_layers_but_the_last(layers, model):
    split = Model.split(model("bert", "rank"), at=1)
    with pytest.raises(SpecError, match="exits after layers"):
        replace(split.spec, exits=tuple(ExitSpec(layer=layer) for layer in layers))


def test_info_says_what_exits_stop(split, tmp_path):
    exits = tuple(replace(one, margin=1.5, stops=0.6) for one in split.spec.exits)
    split.rebuild(replace(split.spec, exits=exits), {}).save(tmp_path / "m")
    assert info(tmp_path / "m")["exits"] == [to_json(one) for one in exits]
    assert index_of(tmp_path / "i", split).info()["exits"][0]["stops"] is None


def test_scores_stay_as_they_were(split):
    query, passages = states_of(split)
    plain = split.rebuild(replace(split.spec, exits=()), {})
    expected = TorchRuntime(plain).cross(query, passages, ("rank",))["rank"].values
    assert (TorchRuntime(split).cross(query, passages, ("rank",))["rank"].values == expected).all()


def test_who_goes_on_is_within_the_margin_of_the_last_result():
    logits, none = np.array([0.0, 5.0, 3.0, 2.5, -9.0], np.float32), np.zeros(0)
    chosen = lambda margin: going_on(logits, none, 2, margin).tolist()  # noqa: E731
    assert chosen(0.0) == [1, 2] and chosen(0.5) == [1, 2, 3] and chosen(99) == [0, 1, 2, 3, 4]
    prior = np.array([6.0, 0, 0, 0, 0])
    assert going_on(logits, prior, 2, 0.0).tolist() == [0, 1], "the first stage counts"
    assert going_on(logits, none, 2, 0.0, ["a", "b", "b", "c", "d"]).tolist() == [1, 2, 3]
    assert going_on(logits, none, 2, 0.0, ["a"] * 4 + ["b"]).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("k", [2, 4])
def test_a_search_of_long_passages_reads_nothing_twice(k, split, tmp_path):
    made = with_margins(split, 0.0)
    with Index.create(tmp_path / "i", made, codec="fp32") as index:
        index.add(Passage(id=str(n), text=f"{TEXTS[n]} " * 40) for n in range(4))
    engine = Engine(Index.open(tmp_path / "i", model=made))
    engine.index._runtime = counted = Counted(made, engine.index.codec)
    (hits,) = engine.run([replace(request("auto"), k=k, candidates=100)])
    (whole,) = engine.score([replace(request("all"), candidates=100)])
    windows, counted.read = len(whole.windows), counted.read - len(whole.windows)
    assert len(hits) == k and windows > 8
    assert counted.read <= windows if k == 4 else counted.read < windows


def index_of(path, split):
    with Index.create(path, split, codec="fp32") as index:
        index.add(Passage(id=str(n), text=text) for n, text in enumerate(TEXTS))
    return index


class Counted(TorchRuntime):
    """Counts the pairs that are read to the end, and those that are read to an exit."""

    read = stopped = 0

    def cross(self, query, passages, heads, *, last=None):
        if last is None:
            self.read += len(passages)
        else:
            self.stopped += len(passages)
        return super().cross(query, passages, heads, last=last)


@pytest.mark.parametrize(("margin", "reads"), [(None, 24), (1e9, 24), (0.0, 3)])
def test_a_search_reads_on_with_those_near_the_results(margin, reads, split, tmp_path):
    made = with_margins(split, margin)
    whole = Engine(Index.open(index_of(tmp_path / "i", made).path, model=made))
    expected = [hit.id for hit in whole.run([request("all")])[0]]
    engine = Engine(Index.open(tmp_path / "i", model=made))
    engine.index._runtime = counted = Counted(made, engine.index.codec)
    found = [hit.id for hit in engine.run([request("auto")])[0]]
    assert counted.read == reads
    assert len(found) == 3 and (margin == 0.0 or found == expected)


def request(read):
    return Request(query="the sea", head="rank", k=3, retrieve=True, candidates=24, read=read)


def test_exits_that_say_what_the_last_layer_says_lose_nothing(split, tmp_path):
    made = with_margins(split, 0.0)
    whole = Engine(Index.open(index_of(tmp_path / "i", made).path, model=made))
    expected = [hit.id for hit in whole.run([request("all")])[0]]
    engine = Engine(Index.open(tmp_path / "i", model=made))

    class Oracle(Counted):
        def cross(self, query, passages, heads, *, last=None):
            super().cross(query, passages, heads, last=last)
            return TorchRuntime.cross(self, query, passages, heads)

    engine.index._runtime = oracle = Oracle(made, engine.index.codec)
    assert [hit.id for hit in engine.run([request("auto")])[0]] == expected
    assert oracle.read == 3
