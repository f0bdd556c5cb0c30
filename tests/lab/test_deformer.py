"""`benchmarks/deformer.py`: the tables of the paper beside what is counted and measured."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
import torch

from decoupled.lab.bench.shapes import SHAPES


@pytest.fixture
def deformer(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return import_module("deformer")


def test_a_split_asks_for_less_memory_and_the_printed_values_are_the_papers(deformer, monkeypatch):
    monkeypatch.setattr(deformer, "SPLIT", 2)
    monkeypatch.setattr(deformer, "DECOMPOSED", (2, 47.7, 359.7))
    for name in ("BERT-base", "BERT-large"):
        monkeypatch.setitem(deformer.SHAPES, name, SHAPES["tiny"])
    found = deformer.tables()
    squad, mnli = found["tasks"]["SQuAD"], found["tasks"]["MNLI"]
    assert squad["printed"] == {"speedup": 3.2, "memory_saved": 70.3}
    # Two of three layers read the query alone: the more is stored, the more is saved.
    assert squad["requested_saved"] > mnli["requested_saved"] > 10
    assert 2 < squad["speedup"] < 3 and squad["peak_saved"] > 0
    whole, split = found["models"]["BERT-large"], found["models"]["BERT-large, split"]
    assert split["gflops"] <= whole["gflops"] and split["requested_mb"] < whole["requested_mb"]
    assert whole["printed"] == {"gflops": 204.1, "memory_mb": 1549.6}


@pytest.mark.slow
def test_the_memory_on_the_page_is_that_of_today(deformer):
    path = Path(__file__).parents[2] / "benchmarks/results/deformer.json"
    on_page = json.loads(path.read_text(encoding="utf-8"))["tasks"]["QQP"]
    base, (query, passage) = deformer.encoder("BERT-base"), on_page["tokens"]
    joint, split = (deformer.bytes_of(base, at, query, passage) for at in (0, deformer.SPLIT))
    for name in ("requested", "peak"):
        saved = 100 * (1 - split[name] / joint[name])
        assert saved == pytest.approx(on_page[f"{name}_saved"], abs=0.5), name


def test_memory_counts_what_lives_and_what_was_asked_for(deformer):
    x = torch.zeros(1000, 100)
    size = x.numel() * 4
    one = deformer.memory(lambda: x + 1)
    assert one.peak == one.requested == size
    chain = deformer.memory(lambda: [(x + n).sum() for n in range(5)])
    assert size < chain.peak < 1.1 * size and chain.requested == 5 * (size + 4)
    assert deformer.memory(lambda: x.view(-1)[:10]).requested == 0
