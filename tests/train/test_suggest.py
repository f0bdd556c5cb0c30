"""Where to split before any training, on tiny models and on trained sweeps."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decoupled.errors import InputError
from decoupled.model.model import Model
from decoupled.train.data.batches import Batches
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import tokenise
from decoupled.train.data.tasks import TASKS
from decoupled.train.loop.forward import forward_pair
from decoupled.train.reshape import with_projection
from decoupled.train.suggest import crossed, layer_states, suggest
from toy import span_pairs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def made(model: Model, count: int = 24) -> Examples:
    return tokenise(span_pairs(count), model.tokenizer, TASKS["squad"], train=False)


def test_the_states_of_the_layers_are_those_of_the_model(family, model):
    whole = model(family, "span")
    for tested in (whole, with_projection(Model.split(whole, at=2), 8)):
        batches = Batches(made(tested), tested.device, pad=tested.spec.text.pad)
        batch = next(batches.walk(batches.ordered(400)))
        with torch.inference_mode():
            passed = layer_states(tested.net, batch)
            expected = forward_pair(tested.net, batch, "span").logits
            y = passed.states[-1]
            y = tested.net.stack.norm(y) if tested.net.stack.norm is not None else y
            query = batch.query_ids.shape[1]
            rows = torch.cat([y[:, :1], y[:, query:]], 1)
            found = tested.net.heads["span"](rows, batch.span_real)
        assert len(passed.states) == len(tested.spec.layers) + 1
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


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


def test_the_suggestion_is_the_deepest_that_leaves_enough():
    flat = suggest([0.2] * 10, [0.2] * 10, leave=0.4)
    assert flat.split == 6 and flat.remaining[0] == 1 and flat.remaining[-1] == 0
    late = suggest([0.0] * 8 + [0.5, 0.5], [0.0] * 10, leave=0.4)
    early = suggest([0.9, 0.2] + [0.01] * 8, [0.5, 0.1] + [0.01] * 8, leave=0.4)
    assert late.split == 9 and early.split == 0
    assert suggest([0.2] * 10, [0.2] * 10, leave=0.1).split == 9
    with pytest.raises(InputError, match="no attention between the texts"):
        suggest([0.0, 0.0], [0.0, 0.0])


def measured() -> list[tuple[str, int, int]]:
    """Datasets whose joint model was studied and whose splits it taught: suggested and best split."""
    compare = runpy.run_path(str(BENCHMARKS / "suggestion.py"))["compare"]
    return [
        (row["dataset"], row["suggested"]["crossing attention, leave 0.5"], row["best"])
        for row in compare(BENCHMARKS / "results")["datasets"]
        # Another model than the teacher of the sweep says nothing about it.
        if row["studied"] == f"{row['dataset']}-joint"
    ]


@pytest.mark.skipif(len(measured()) < 3, reason="fewer than three trained sweeps with their layers")
def test_the_suggestion_is_within_a_layer_of_the_trained_sweeps():
    near = [name for name, suggested, best in measured() if abs(suggested - best) <= 1]
    assert len(near) >= 3, measured()
