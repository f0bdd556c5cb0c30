"""Every command of docs/guide.md, in order, on a tiny model."""

from __future__ import annotations

import random
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from commands import Commands, jsonl
from decoupled.cli import GROUPS, app
from tiny import WORDS

GUIDE = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", GUIDE, re.DOTALL)
LINES = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line]
CLIENT = next(text for kind, text in BLOCKS if kind == "python")
COMMANDS = {
    name: None
    for name in re.findall(r"^decoupled (?:lab |methods )?(\S+)", "\n".join(LINES), re.MULTILINE)
}


def known(command: str) -> bool:
    return CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def judged(count: int, seed: int) -> list[dict]:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        query = " ".join(draw.sample(WORDS, 3))
        for label in (1, 0, 0):
            words = draw.sample(WORDS, 8) + (query.split() if label else [])
            rows.append({"query": query, "passage": " ".join(words), "label": label})
    return rows


@pytest.fixture(scope="module")
def place(tmp_path_factory, checkpoint: Callable[..., Path]) -> Path:
    """The files that the guide starts from."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "checkpoint").symlink_to(checkpoint("bert", "rank"))
    jsonl(folder / "train.jsonl", judged(12, 0))
    jsonl(folder / "dev.jsonl", judged(8, 1))
    draw = random.Random(2)
    passages = ["count dracula is a novel that bram stoker wrote"]
    # No other passage has a word of the query, so a model that knows nothing still finds this one.
    others = [word for word in WORDS if word not in ("who", "wrote", "the", "novel")]
    passages += [" ".join(draw.sample(others, 12)) for _ in range(20)]
    jsonl(folder / "docs.jsonl", [{"id": f"p{n}", "text": t} for n, t in enumerate(passages)])
    return folder


def test_the_guide_runs_from_top_to_bottom(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    run = Commands(monkeypatch, capsys)
    for line in LINES:
        program, command, *words = shlex.split(line)
        assert program == "decoupled"
        if command == "serve":
            continue
        done = run(command, *words)
        assert done.code == 0, f"{line}\n{done.err}"
        if command == "search":
            assert "bram stoker" in done.out
    assert {p.name for p in place.iterdir()} >= {"model", "docs.idx", "report.html", "report"}
    assert (place / "report.html").read_text().count("<figure") >= 6


def test_the_guide_shows_the_whole_way():
    assert list(COMMANDS) == [
        *("layers", "sweep", "cost", "report", "split", "distill", "evaluate"),
        *("index", "info", "search", "serve"),
    ]
    named = set(re.findall(r"`decoupled (\w+)", GUIDE)) - {"serve"}
    assert all(known(command) for command in named)


def shown() -> list[str]:
    """Every command that the pages show on a line of its own."""
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages).replace("\\\n", "")
    return sorted(set(re.findall(r"^ {0,4}(decoupled \w.*)$", text, re.MULTILINE)))


@pytest.mark.parametrize("line", shown())
def test_a_command_of_the_docs_has_the_options_that_it_needs(line):
    _, name, *words = shlex.split(line.split(" > ")[0], comments=True)
    command = typer.main.get_command(app).commands[name]
    if name in GROUPS:
        name, *words = words
        command = command.commands[name]
    command.make_context(name, words)  # raises a UsageError for what is unknown or missing


@pytest.mark.skipif(not known("serve"), reason="this version has no `serve` command yet")
def test_the_server_answers_the_client_of_the_guide(place, monkeypatch):
    if not (place / "docs.idx").exists():
        pytest.skip("the index is built by the test before this one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = next(line for line in LINES if line.startswith("decoupled serve"))
    words = shlex.split(line.replace("8000", str(port)))[1:]
    server = subprocess.Popen([sys.executable, "-m", "decoupled", *words], cwd=place)
    try:
        _wait(f"http://127.0.0.1:{port}/ready", server)
        code = CLIENT.replace("8000", str(port))
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
        )
    finally:
        server.terminate()
        server.wait(timeout=20)
    assert done.returncode == 0, done.stderr
    assert "bram stoker" in done.stdout.splitlines()[0]


def _wait(address: str, server: subprocess.Popen) -> None:
    for _ in range(300):
        assert server.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(address, timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{address} does not answer")
