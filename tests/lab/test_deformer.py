"""`benchmarks/deformer.py`: the tables of the paper beside what is counted and measured."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from decoupled.lab.bench.shapes import SHAPES


def test_a_split_asks_for_less_memory_and_the_printed_values_are_the_papers(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    deformer = import_module("deformer")
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
