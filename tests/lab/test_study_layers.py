"""The curves over the layers, on tiny models whose truth is known."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from decoupled.errors import InputError
from decoupled.lab.study.layers import layer_curves, layers
from decoupled.model.model import Model
from decoupled.train.data.batches import Batches
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import tokenise
from decoupled.train.data.tasks import TASKS
from decoupled.train.suggest import crossing, layer_states, suggest_split
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
        passed = layer_states(whole.net, batch)
        query = batch.query_ids.shape[1]
        side = torch.arange(query + batch.passage_ids.shape[1]) >= query
        passed.contexts[1].frame.block_BT = side.long().expand(len(batch.rows), -1)
        passed.contexts[1].frame._made.clear()
        for share in crossing(whole.net, passed, 1, query):
            assert float(share.max()) < 1e-6


def test_a_model_of_fewer_layers_cannot_be_compared(model):
    whole, small = model("bert", "span"), model("bert", "span", num_hidden_layers=2)
    with pytest.raises(InputError, match="small has 2 layers and the joint model 3"):
        layer_curves(whole, made(whole), passages=2, queries=2, others={"small": small})


def test_pair_tasks_have_curves_too(model):
    whole = model("bert", "classes", num_labels=2)
    full = tokenise(class_pairs(32), whole.tokenizer, TASKS["boolq"], train=False)
    assert np.isfinite(layer_curves(whole, full, passages=4, queries=3).variance).all()


def test_the_suggestion_of_a_split_is_that_of_the_study(model):
    whole, pairs = model("bert", "span"), span_pairs(24)
    study = layers(whole, data=pairs, passages=50)
    assert suggest_split(whole, pairs).to_json() == study["suggestion"]
