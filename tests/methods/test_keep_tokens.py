"""Indexes that keep some of the tokens of a passage: which, how many, and what cannot be asked of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import decoupled as dc
from decoupled.errors import InputError, SpecError
from decoupled.index.encode import encode_passages, encode_texts
from decoupled.index.index import Index
from decoupled.methods.keep_tokens.pruner import TokenPruner, least_missed
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model
from decoupled.model.nn.frame import ALL
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.tokens import Passage
from decoupled.runtime.torch import TorchRuntime
from decoupled.search.engine import Engine
from decoupled.train.reshape import with_projection
from served import tiny_split

TEXTS = ["the river by the town in the valley", "a castle", "the moon and the old sea by the town"]
PASSAGES = [Passage(id=str(n), text=text) for n, text in enumerate(TEXTS)]


@pytest.fixture(scope="module", params=["plain", "projected"])
def split(request, model):
    made = tiny_split(model)
    return made if request.param == "plain" else with_projection(made, 12)


def states_of(split):
    windows = [w for group in split.tokenizer.windows(TEXTS) for w in group]
    return windows, encode_texts(TorchRuntime(split), "passage", [w.ids for w in windows]).states


def test_tokens_are_worth_what_an_empty_query_looks_at(split):
    """As the module of the first cross layer weighs them, the passage's among themselves."""
    _, states = states_of(split)
    net, runtime = split.net, TorchRuntime(split)
    query = torch.from_numpy(runtime.encode("query", [split.tokenizer.query("")]).states.values)
    number, rows = split.spec.split, len(query)
    for text in states:
        passage = torch.from_numpy(np.asarray(text, np.float32))
        real = [torch.ones(1, len(x), dtype=torch.bool) for x in (query, passage)]
        sides = [net.restore(s, x[None]) for s, x in (("query", query), ("passage", passage))]
        joined, frame = net.join(sides[0], real[0], sides[1], real[1])
        seen = []

        def observe(context, x, _, seen=seen):
            seen.append(net.stack.attending(context).scores(x, context))

        net.stack(
            joined, frame, rows=ALL, first=number, last=number + 1, query=rows, observe=observe
        )
        weights = seen[0][0, :, :rows, rows:].softmax(-1).sum((0, 1)).detach().numpy()
        assert np.abs(TokenPruner(runtime, 0.5).looked(passage.numpy()) - weights).max() < 1e-5


def test_tokens_that_others_stand_for_go_first():
    one, two, three = np.eye(3, dtype=np.float32)
    near = 0.99 * two + 0.05 * three
    states = np.stack([one, two, 3 * one, near, three, one])
    worth, stays = np.array([1, 2, 1, 1, 1, 1], np.float32), np.arange(6) == 5
    assert least_missed(states, worth, stays, 4).tolist() == [1, 3, 4, 5]
    assert least_missed(states, worth, stays, 3).tolist() == [1, 4, 5], "worth more than its like"
    assert least_missed(states, worth, stays, 2).tolist() == [1, 5], "who stands for another stays"
    assert least_missed(states[:1], worth[:1], stays[:1], 1).tolist() == [0]


def test_records_are_those_tokens_of_the_whole_ones(split):
    runtime = TorchRuntime(split)
    codec = fit_codec("int8", states_of(split)[1])
    whole = encode_passages(runtime, codec, PASSAGES, titles=True)
    some = encode_passages(runtime, codec, PASSAGES, titles=True, keep=0.5)
    kept = TokenPruner(runtime, 0.5).rows(states_of(split)[1])
    for full, part, rows in zip(whole, some, kept, strict=True):
        assert len(part.states) == -(-len(full.states) // 2)
        assert (part.states == full.states[rows]).all() and (
            part.offsets == full.offsets[rows]
        ).all()
        assert (part.vector == full.vector).all() and part.digest == full.digest


def test_the_states_of_a_part_are_held_a_portion_at_a_time(split, monkeypatch):
    runtime, codec = TorchRuntime(split), fit_codec("int8", states_of(split)[1])
    whole, held, encode = (
        encode_passages(runtime, codec, PASSAGES, titles=True),
        [],
        type(codec).encode,
    )
    monkeypatch.setattr(
        type(codec), "encode", lambda self, states: held.append(len(states)) or encode(self, states)
    )
    monkeypatch.setattr(type(runtime), "token_budget", 8)
    monkeypatch.setattr("decoupled.index.encode.HELD", 1)
    made = encode_passages(runtime, codec, PASSAGES, titles=True)
    assert held == [1, 1, 1]
    for one, other in zip(whole, made, strict=True):
        assert (one.id, one.window) == (other.id, other.window)
        assert np.abs(one.vector - other.vector).max() < 1e-5


def test_such_an_index_ranks_and_says_why_it_does_not_answer(split, tmp_path):
    with Index.create(tmp_path / "i", split, keep_tokens=0.5) as index:
        index.add(PASSAGES)
    index = Index.open(tmp_path / "i", model=split)
    assert index.keep_tokens == index.info()["keep_tokens"] == 0.5
    engine = Engine(index)
    assert {hit.id for hit in engine.search("the town", k=2)} <= {"0", "1", "2"}
    for asked in ({}, {"ids": ["0"]}):
        with pytest.raises(InputError, match=r"keeps 0\.5 of the tokens.*without --keep-tokens"):
            engine.ask("where is the town?", **asked)
    assert engine.ask("where is the town?", texts=TEXTS) is not None
    with index.reopen(write=True) as writer:
        assert writer.add([Passage(id="x", text=TEXTS[0])]).added == 1
    snapshot = Index.open(tmp_path / "i", model=split).refresh()
    lengths = snapshot.states(snapshot.locate(["0", "x"])).lengths
    assert lengths[0] == lengths[1], "what is added later is kept alike"


def test_keeping_all_is_what_it_was(split, tmp_path):
    with Index.create(tmp_path / "i", split, keep_tokens=1.0) as index:
        assert "keep_tokens" not in index.manifest.to_json()
    for share in (0.0, 1.5):
        with pytest.raises(InputError, match="choose a share"):
            Index.create(tmp_path / "j", split, keep_tokens=share)


@pytest.mark.parametrize("family", ["modernbert", "deberta-v2"])
def test_layers_that_look_at_positions_need_all_tokens(family, model, tmp_path):
    with pytest.raises(SpecError, match="do not look at positions"):
        Index.create(tmp_path / "i", Model.split(model(family, "rank"), at=1), keep_tokens=0.5)


def test_a_build_goes_on_with_the_same_share(split, tmp_path):
    corpus = tmp_path / "c.txt"
    corpus.write_text(TEXTS[0])
    split.save(tmp_path / "m")
    built = {"model": tmp_path / "m", "runtime": "torch"}
    dc.build_index([str(corpus)], tmp_path / "i", keep_tokens=0.5, **built)
    dc.build_index([str(corpus)], tmp_path / "i", runtime="torch")
    with pytest.raises(InputError, match=r"keeps 0\.5 of the tokens, not 0\.25"):
        dc.build_index([str(corpus)], tmp_path / "i", keep_tokens=0.25, runtime="torch")
    dc.reindex(tmp_path / "i", tmp_path / "j", **built)
    assert Index.open(tmp_path / "j").keep_tokens == 0.5


def test_shrunk_matrices_are_refused(split, tmp_path):
    thin = LinearSpec(rank=4)
    layers = tuple(replace(one, attention_maps=thin) for one in split.spec.layers)
    made = split.rebuild(
        replace(split.spec, encoder=replace(split.spec.encoder, layers=layers)), {}
    )
    with pytest.raises(SpecError, match="whole matrices"):
        Index.create(tmp_path / "i", made, keep_tokens=0.5)
