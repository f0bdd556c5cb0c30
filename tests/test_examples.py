"""What the README shows, run as a newcomer would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands import jsonl
from decoupled.cli import app

ROOT = Path(__file__).parent.parent


def test_the_quickstart_answers():
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "quickstart.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answer, hit, again = done.stdout.splitlines()
    assert "text='Bram Stoker'" in answer and "id='p2'" in hit and "Lyon" in again


def test_every_command_of_the_readme_exists():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^decoupled (\w+)", text, re.MULTILINE))
    named |= {w for line in re.findall(r"# also: (.*)", text) for w in re.findall(r"\w+", line)}
    assert {"index", "ask", "search", "split", "rerank", "distill"} <= named
    shown = CliRunner().invoke(app, ["--help"]).output
    for command in named:
        assert re.search(rf"\b{command}\b", shown), command


@pytest.mark.slow
def test_the_python_of_the_readme_runs(tmp_path, checkpoint):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (name,) = re.findall(r'split\("(.*?)"', block)
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).symlink_to(checkpoint("bert", "rank", num_hidden_layers=12))
    jsonl(tmp_path / "docs.jsonl", [{"id": f"p{n}", "text": f"Paris {n}"} for n in range(9)])
    pairs = [{"query": "a river", "passage": f"river {n}", "label": n % 2} for n in range(8)]
    jsonl(tmp_path / "train.jsonl", pairs)
    seen = re.sub(r"^(engine\.(?!rerank).*?)(  #.*)?$", r"print(\1)", block, flags=re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", seen],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    warsaw, dracula, paris = done.stdout.splitlines()
    assert "Vistula" in warsaw and dracula.startswith("Answers(") and paris.startswith("Hits(")


@pytest.mark.slow
def test_the_demo_answers_nine_of_ten(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "decoupled", "demo", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["questions"]) == 10 and found["right"] >= 9
