"""`export` and `--runtime` as a user types them."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from commands import Commands, jsonl
from decoupled.model.model import Model
from decoupled.runtime.cuda.runtime import CudaRuntime
from decoupled.runtime.openvino import calibrate

TEXTS = ["Bram Stoker wrote the novel.", "The river floods the town.", "A ship in the wind."]


@pytest.fixture
def run(monkeypatch, capsys) -> Commands:
    return Commands(monkeypatch, capsys)


@pytest.fixture
def made(model, tmp_path):
    """A model folder with both heads, passages and pairs."""
    rank = model("bert", "rank").spec.head("rank")
    both = Model.split(model("bert", "span").with_heads(rank, seed=1), at=2)
    both.save(tmp_path / "m")
    jsonl(tmp_path / "p.jsonl", ({"id": f"p{i}", "text": text} for i, text in enumerate(TEXTS)))
    jsonl(tmp_path / "pairs.jsonl", ({"query": "who wrote", "passage": text} for text in TEXTS))
    return tmp_path


def test_export_calibrates_on_pairs_or_passages(run, made):
    assert run("info", made / "m", "--json").json["exported"] == []
    plain = run("export", made / "m")
    assert plain.code == 0 and "runs on openvino as it is" in plain.err
    for name in ("pairs.jsonl", "p.jsonl"):
        found = run("export", made / "m", "--int8", "--calibrate", made / name, "--json").json
        assert found["pairs"] == len(TEXTS) and found["bytes"] > 0
    assert run("info", made / "m", "--json").json["exported"] == ["openvino int8"]
    assert "is calibrated for int8" in run("export", made / "m").err


def test_every_command_takes_a_runtime_and_all_agree(run, made):
    run("export", made / "m", "--int8", "--calibrate", made / "pairs.jsonl")
    scores = {}
    for name in ("torch", "openvino-fp32", "openvino-int8"):
        index = made / f"{name}.idx"
        done = run("index", made / "p.jsonl", "-o", index, "--model", made / "m", "--runtime", name)
        assert done.code == 0, done.err
        assert (
            run("add", index, made / "p.jsonl", "--runtime", name, "--json").json["unchanged"] == 3
        )
        how = ("--first-stage", "dense", "--raw", "--runtime", name, "--json")
        hits = run("search", index, "who wrote", *how).json["hits"]
        asked = run("ask", index, "who wrote", "--runtime", name, "--json")
        assert asked.code == 0 and len(hits) == 3
        scores[name] = {hit["id"]: hit["score"] for hit in hits}
        words = ("rerank", "who wrote", made / "p.jsonl", "--model", made / "m", "--raw", "--json")
        again = run(*words, "--runtime", name).json["hits"]
        assert {hit["id"] for hit in again} == set(scores[name])
    exact = scores["torch"]
    assert all(abs(scores["openvino-fp32"][i] - exact[i]) < 1e-3 for i in exact)
    spread = max(exact.values()) - min(exact.values())
    assert all(abs(scores["openvino-int8"][i] - exact[i]) < 0.2 * spread for i in exact)


def test_evaluate_through_a_runtime_gives_the_metrics_of_the_modules(run, made, monkeypatch):
    rows = [
        {"query": "who wrote", "passage": text, "label": int(i == 0)}
        for i, text in enumerate(TEXTS)
    ]
    data = jsonl(made / "judged.jsonl", rows)
    words = ("evaluate", "--task", "pairs", "--data", data, "--model", made / "m", "--json")
    found = [run(*words, "--runtime", name).json for name in ("torch", "openvino-fp32")]
    assert found[0] == found[1]
    if not torch.cuda.is_available():
        failed = run(*words[:-1], "--runtime", "cuda").failure
        assert "runtime 'cuda' cannot run here: torch sees no CUDA device" in failed
    asked = []

    def plain(model, codec, name):
        asked.append(name)
        return CudaRuntime(model, codec, device="cpu", dtype=torch.float32)

    monkeypatch.setattr("decoupled.runtime.torch._cuda", plain)
    assert run(*words, "--runtime", "cuda").json == found[0] and asked == ["cuda"]


def test_a_folder_that_may_not_be_written_is_said_before_pairs_are_read(run, made, monkeypatch):
    readable = SimpleNamespace(access=lambda path, how: False, W_OK=os.W_OK)
    monkeypatch.setattr(calibrate, "os", readable)
    monkeypatch.setattr(calibrate, "calibrate", None)
    failed = run("export", made / "m", "--int8", "--calibrate", made / "pairs.jsonl").failure
    assert "m cannot be written; check its permissions, or export a copy" in failed


def test_failures_say_what_to_do(run, made):
    failed = run("export", made / "m", "--runtime", "gguf").failure
    assert "--runtime is 'gguf'; choose openvino or onnx" in failed
    assert "is not a model folder" in run("export", made / "nothing").failure
    failed = run("search", made / "m", "x", "--runtime", "tpu").failure
    assert "runtime 'tpu' is unknown; choose one of auto, torch, cuda, openvino" in failed
