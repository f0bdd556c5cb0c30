"""The curves over the layers, on tiny models whose truth is known."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from decoupled.errors import InputError
from decoupled.lab.study.layers import crossed, crossing, layer_curves, layer_states
from decoupled.model.model import Model
from decoupled.train.data.batches import Batches
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import tokenise
from decoupled.train.data.tasks import TASKS
from decoupled.train.loop.forward import forward_pair
from decoupled.train.reshape import with_projection
from toy import class_pairs, span_pairs


def made(model: Model, count: int = 24) -> Examples:
    return tokenise(span_pairs(count), model.tokenizer, TASKS["squad"], train=False)


def test_states_vary_with_the_query_only_above_the_embedding(family, model):
    found = layer_curves(model(family, "span"), made(model(family, "span")), passages=6, queries=3)
    assert found.variance[0] == pytest.approx(0, abs=1e-6)
    assert all(value > 1e-5 for value in found.variance[1:])
    assert found.passages == 6 and found.pairs == 18
    assert len(found.variance) == found.layers + 1 == len(found.variance_spread)


def test_a_split_departs_from_the_joint_model_where_it_must(model):
    whole = model("bert", "span")
    found = layer_curves(whole, made(whole), passages=6, queries=3, others={"itself": whole})
    assert set(found.distances) == {"k=1, as split", "k=2, as split", "itself"}
    for side in ("query", "passage"):
        assert max(getattr(found.distances["itself"], side)) == pytest.approx(0, abs=1e-5)
    deep = found.distances["k=2, as split"]
    # A query stands where it stood; a passage starts again at position 0.
    assert deep.split == 2 and deep.query[0] < 1e-6 < deep.passage[0]
    assert all(value > 1e-3 for value in deep.query[1:])
    json.dumps(found.to_json())


def test_attention_that_crosses_is_a_share_and_none_where_there_is_one_block(model):
    whole = model("bert", "span")
    found = layer_curves(whole, made(whole), passages=6, queries=3)
    for curve in (found.crossing_query, found.crossing_passage):
        assert len(curve) == 3 and all(0 < value < 1 for value in curve)
    batches = Batches(made(whole), whole.device, pad=0)
    batch = next(batches.walk(batches.ordered(400)))
    with torch.inference_mode():
        states, contexts = layer_states(whole.net, batch)
        query = batch.query_ids.shape[1]
        side = torch.arange(query + batch.passage_ids.shape[1]) >= query
        contexts[1].frame.block_BT = side.long().expand(len(batch.rows), -1)
        contexts[1].frame._made.clear()
        for share in crossing(whole.net, states[1], contexts[1], query):
            assert float(share.max()) < 1e-6


def test_a_model_of_fewer_layers_cannot_be_compared(model):
    whole, small = model("bert", "span"), model("bert", "span", num_hidden_layers=2)
    with pytest.raises(InputError, match="small has 2 layers and the joint model 3"):
        layer_curves(whole, made(whole), passages=2, queries=2, others={"small": small})


def test_pair_tasks_have_curves_too(model):
    whole = model("bert", "classes", num_labels=2)
    full = tokenise(class_pairs(32), whole.tokenizer, TASKS["boolq"], train=False)
    assert np.isfinite(layer_curves(whole, full, passages=4, queries=3).variance).all()


def test_the_states_of_the_layers_are_those_of_the_model(family, model):
    whole = model(family, "span")
    for tested in (whole, with_projection(Model.split(whole, at=2), 8)):
        batches = Batches(made(tested), tested.device, pad=tested.spec.text.pad)
        batch = next(batches.walk(batches.ordered(400)))
        with torch.inference_mode():
            states, _ = layer_states(tested.net, batch)
            expected = forward_pair(tested.net, batch, "span").logits
            y = states[-1]
            y = tested.net.stack.norm(y) if tested.net.stack.norm is not None else y
            query = batch.query_ids.shape[1]
            rows = torch.cat([y[:, :1], y[:, query:]], 1)
            logits = tested.net.heads["span"](rows, batch.span_real)
        assert len(states) == len(tested.spec.layers) + 1
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_passages_are_read_beside_their_own_queries_first(model):
    whole = model("bert", "span")
    pairs = span_pairs(12)
    pairs = [replace(p, passage=pairs[n // 4].passage) for n, p in enumerate(pairs)]
    full = tokenise(pairs, whole.tokenizer, TASKS["squad"], train=False)
    groups = crossed(full, passages=3, queries=5)
    for start in range(0, len(groups), 5):
        passage = groups.passage_of[start]
        own = set(full.query_of[full.passage_of == passage].tolist())
        chosen = groups.query_of[start : start + 5].tolist()
        assert own <= set(chosen) and len(set(chosen)) == 5
    with pytest.raises(InputError, match="different queries; give at least 50"):
        crossed(full, passages=1, queries=50)
