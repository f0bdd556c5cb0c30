"""Experiments: the data of a preset, and the run of a whole experiment."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

import decoupled_transformer
import pytest
import torch
from presets import DATASETS, pairs_of

from decoupled.measure.pairs import Pair, Span
from toy import span_pairs


def write_squad(path: Path, pairs: list[Pair]) -> None:
    path.parent.mkdir(exist_ok=True)
    paragraphs = [
        {
            "context": pair.passage,
            "qas": [
                {
                    "id": pair.id,
                    "question": pair.query,
                    "answers": [{"text": a.text, "answer_start": a.start} for a in pair.answers],
                }
            ],
        }
        for pair in pairs
    ]
    with lzma.open(path, "wt", encoding="utf-8") as file:
        json.dump({"data": [{"title": "", "paragraphs": paragraphs}]}, file)


def test_the_preset_of_a_part_of_squad2_reads_it_in_lower_case(tmp_path):
    answer = Span(text="River", start=20)
    whole = Pair(query="Where is IT?", passage="The Castle beside a River", answers=(answer,))
    dataset = DATASETS["squad2"]
    for part in ("train", "test"):
        write_squad(tmp_path / dataset[part][0], [whole])
        (pair,) = pairs_of(tmp_path, dataset, part, None)
        assert (pair.query, pair.passage) == ("where is it?", "the castle beside a river")
        assert pair.answers == (Span(text="river", start=20),)
        (cased,) = pairs_of(tmp_path, {**dataset, "lower": False}, part, None)
        assert cased.passage == "The Castle beside a River"


@pytest.mark.slow
def test_the_experiment_of_decoupled_transformer_runs_and_goes_on(
    checkpoint, tmp_path, monkeypatch, capsys
):
    for part in ("train", "test"):
        write_squad(tmp_path / DATASETS["squad"][part][0], span_pairs(24))
    base = checkpoint("bert", "bare", max_position_embeddings=400)
    report = tmp_path / "report.json"
    words = f"x --data {tmp_path} --base {base} --at 1 --epochs 1 --batch 8 --narrower 4 --rounds 1"
    words += f" --work {tmp_path / 'work'} --json {report}"
    monkeypatch.setattr(sys, "argv", words.split())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    decoupled_transformer.main()
    first = json.loads(report.read_text())
    joint, split, narrow = (first["models"][f"{n}-s0"] for n in ("joint", "split-1x", "split-4x"))
    width = joint["width"]
    assert (joint["tables"], split["tables"], narrow["tables"]) == ("none", "add", "add")
    assert split["bytes_of_150_tokens"] == {"fp": 300 * width, "int8": 150 * (width + 2)}
    assert narrow["bytes_of_150_tokens"]["int8"] == 150 * (width // 4 + 2)
    for model in (split, narrow):
        assert model["test"].keys() == model["ms_a_pair"].keys() == {"fp", "int8"}
        assert model["test"]["int8"]["lost"]["against"] == "joint-s0"
    assert first["overall"]["split-4x int8"]["f1"]["seeds"] == 1
    # A second call trains nothing: it would stop here.
    monkeypatch.setattr(decoupled_transformer, "execute", pytest.fail)
    decoupled_transformer.main()
    again = json.loads(report.read_text())
    assert again["models"]["split-4x-s0"]["test"] == narrow["test"]
