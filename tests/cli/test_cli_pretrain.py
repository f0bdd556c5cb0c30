"""`pretrain` as a user types it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from commands import Commands, jsonl
from decoupled.model.model import Model

PAGE = Path(__file__).parents[2] / "docs" / "pretrain.md"
QUICK = ("--batch", 4, "--set", "pretraining.tokens=32")
ROWS = [
    {"id": str(n), "text": f"The old castle of stone {n} stood. The king of the river burned it."}
    for n in range(12)
]


@pytest.fixture
def cli(monkeypatch, capsys):
    return Commands(monkeypatch, capsys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, checkpoint) -> Path:
    """What the page begins with."""
    made = tmp_path_factory.mktemp("pretrain")
    (made / "encoder").symlink_to(checkpoint("bert", "bare"))
    jsonl(made / "docs.jsonl", ROWS)
    shape = {"layers": 1, "width": 8, "heads": 2, "embedding": 4, "positions": 64}
    (made / "small.json").write_text(json.dumps(shape))
    return made


def test_the_commands_of_the_page_run_as_typed(cli, folder, monkeypatch):
    monkeypatch.chdir(folder)
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for line in block.splitlines():
        words = shlex.split(line.replace("--steps 20", "--steps 2"))[1:]
        done = cli(*words, *QUICK)
        assert done.code == 0, f"{line}\n{done.err}"
        assert "perplexity" in done.out
    assert Model.load("field").spec.encoder.width == 32
    assert Model.load("small").spec.encoder.width == 8


def test_the_json_has_both_measures(cli, folder, tmp_path):
    command = (
        "pretrain",
        folder / "docs.jsonl",
        "-o",
        tmp_path / "m",
        "--base",
        folder / "encoder",
    )
    told = cli(*command, "--objective", "sop", "--steps", 2, "--json", *QUICK).json
    assert told["steps"] == 2 and told["documents"] == 12 and told["objective"] == "sop"
    assert {"mlm", "pair", "pair_accuracy", "perplexity"} <= told["before"].keys() & told[
        "after"
    ].keys()


def test_what_is_wrong_is_said_in_a_line(cli, folder, tmp_path):
    out, docs = tmp_path / "m", folder / "docs.jsonl"
    assert "neither base nor spec" in cli("pretrain", docs, "-o", out).failure
    assert "choose mlm, nsp" in cli("pretrain", docs, "-o", out, "--objective", "gpt").failure
    assert "nowhere" in cli("pretrain", tmp_path / "nowhere", "-o", out).failure
    assert "exists" in cli("pretrain", docs, "-o", folder).failure
