"""`adapt` and `index --from` as a user types them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import Commands, jsonl
from decoupled.index.index import Index
from decoupled.model.model import Model
from toy import word_passages

PAGE = Path(__file__).parents[2] / "docs" / "adapt.md"
QUICK = ("--limit", 40, "--set", "drawing.passages=4", "--set", "optimiser.batch=4", "--anyway")


@pytest.fixture
def cli(monkeypatch, capsys):
    return Commands(monkeypatch, capsys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, checkpoint) -> Path:
    """What the page begins with."""
    made = tmp_path_factory.mktemp("adapt")
    (made / "cross-encoder").symlink_to(checkpoint("bert", "rank", num_hidden_layers=5))
    rows = [{"id": p.id, "text": p.text, "title": p.title} for p in word_passages(60)]
    jsonl(made / "docs.jsonl", rows)
    return made


def test_the_commands_of_the_page_run_as_typed(cli, folder, monkeypatch):
    monkeypatch.chdir(folder)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    every = [line for block in blocks for line in block.splitlines()]
    lines = [line for line in every if line.startswith("decoupled ")]
    names = ["split", "index", "adapt", "index", "adapt", "index"]
    assert [line.split()[1] for line in lines] == names
    for line in lines:
        words = shlex.split(line.replace("--minutes 20", ""))[1:]
        done = cli(*words, *(QUICK if words[0] == "adapt" else ()))
        assert done.code == 0, f"{line}\n{done.err}"
        if "--keep-index" in words:
            assert f"put it to use: {lines[-1]}" == done.err.splitlines()[-1]
    assert len(Index.open("adapted.idx")) == len(Index.open("docs.idx")) == 60
    done = cli("search", "adapted.idx", "old castle", "--json")
    assert len(done.json["hits"]) == 10
    before, upper = Index.open("docs.idx").manifest.fingerprint, Model.load("upper")
    assert upper.fingerprint == before and Model.load("adapted").fingerprint != before


def test_the_json_says_both_agreements_and_both_times(cli, folder, tmp_path):
    out = tmp_path / "m"
    told = cli("adapt", folder / "docs.idx", "-o", out, "--json", "--teacher", "joint", *QUICK).json
    assert set(told) == {"kind", "model", "teachers", "queries", "held_out", "before", "after"} | {
        "trained",
        "scoring",
        "teacher_ms",
        "curve",
        "split_ms",
        "seconds",
    }
    assert set(told["before"]) == set(told["after"]) == {"ndcg@10", "tau", "top-1"}
    assert told["teachers"] == ["joint"] and 0 < told["after"]["ndcg@10"] <= 1


def test_bad_input_is_one_line(cli, folder, tmp_path):
    index, out = folder / "docs.idx", tmp_path / "m"
    gone = cli("adapt", index, "-o", out, "--queries", tmp_path / "none.txt")
    assert "none.txt does not exist; give a file with one query a line" in gone.failure
    assert "no-such.idx" in cli("adapt", tmp_path / "no-such.idx", "-o", out).failure
    full = cli("adapt", index, "-o", folder, "--limit", 20)
    assert "choose another" in full.failure
    both = cli("index", folder / "docs.jsonl", "--from", index, "-o", tmp_path / "i")
    assert "give a corpus, or --from INDEX, and not both" in both.failure
    none = cli("index", "-o", tmp_path / "i")
    assert "give a corpus, or --from INDEX" in none.failure


def test_a_build_from_an_index_keeps_its_codec_and_goes_on(cli, folder, tmp_path):
    docs, out = tmp_path / "docs.idx", tmp_path / "new.idx"
    cli("index", folder / "docs.jsonl", "-o", docs, "--model", folder / "split", "--codec", "fp16")
    command = ("index", "--from", docs, "-o", out, "--model", folder / "adapted", "--json")
    told = cli(*command).json
    assert (told["added"], told["passages"]) == (60, 60)
    assert Index.open(out).manifest.codec == "fp16"
    again = cli(*command).json
    assert (again["added"], again["unchanged"]) == (0, 60)
    one, other = (list(Index.open(path).refresh().scan()) for path in (docs, out))
    assert [(e.id, e.text, e.title) for e in one] == [(e.id, e.text, e.title) for e in other]


@pytest.mark.slow
def test_a_killed_run_goes_on(cli, folder, tmp_path):
    out = tmp_path / "m"
    words = [sys.executable, "-m", "decoupled", "adapt", folder / "docs.idx", "-o", out, *QUICK]
    words += ["--set", "optimiser.epochs=400", "--set", "watch.save_every=2"]
    process = subprocess.Popen([*map(str, words)], env=os.environ, stderr=subprocess.DEVNULL)
    saved = tmp_path / "m.run" / "checkpoint" / "checkpoint.json"
    ended = time.monotonic() + 90
    while not saved.exists() and time.monotonic() < ended and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert saved.exists() and not out.exists()
    other = cli(*words[3:], "--keep-index")
    assert "holds an unfinished run with other settings (keep_index was False" in other.failure
    short = [w if w != "optimiser.epochs=400" else "optimiser.epochs=2" for w in words[3:]]
    assert "optimiser.epochs" in cli(*short).failure
    process = subprocess.Popen(
        [*map(str, words)], env=os.environ, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "going on with the run" in process.stderr.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
