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
GROUPS: tuple[tuple[str, ...], ...] = ((), ("lab",), ("methods",))


def said(place: Path, *words: str | Path) -> str:
    """What Python prints for this command line, run in a folder that is also its cache."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "XDG_CACHE_HOME": str(place)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_quickstart_answers(tmp_path):
    answer, hit, again = said(tmp_path, ROOT / "examples" / "quickstart.py").splitlines()
    assert "text='Bram Stoker'" in answer and "id='p2'" in hit and "Lyon" in again


def test_every_command_of_the_readme_exists():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = {group: CliRunner().invoke(app, [*group, "--help"]).output for group in GROUPS}
    lines = re.findall(
        r"^decoupled (?:(lab|methods) )?(\w+)(?:.*# also: ([\w, ]+))?", text, re.MULTILINE
    )
    named = {
        ((group,) if group else (), first, *re.findall(r"\w+", more))
        for group, first, more in lines
    }
    assert {word for _, *words in named for word in words} >= {
        "index",
        "ask",
        "search",
        "sweep",
        "shrink",
    }
    for group, *commands in named:
        for command in commands:
            assert re.search(rf"\b{command}\b", shown[group]), command


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
    warsaw, dracula, paris = said(tmp_path, "-c", seen).splitlines()
    assert "Vistula" in warsaw and dracula.startswith("Answers(") and paris.startswith("Hits(")


@pytest.mark.slow
def test_the_demo_answers_nine_of_ten(tmp_path):
    found = json.loads(said(tmp_path, "-m", "decoupled", "demo", "--json"))
    assert len(found["questions"]) == 10 and found["right"] >= 9


def test_the_settings_of_agents_start_the_command():
    """Each client's file names `decoupled mcp`, in the shape that the client reads."""
    import yaml

    folder = Path(__file__).parents[1] / "examples" / "agents"
    for name in ("claude.json", "cursor.json"):
        servers = json.loads((folder / name).read_text(encoding="utf-8"))["mcpServers"]
        assert servers["docs"]["command"] == "decoupled" and servers["docs"]["args"][0] == "mcp"
    settings = yaml.safe_load((folder / "continue.yaml").read_text(encoding="utf-8"))
    assert settings["schema"] == "v1"
    # Continue takes a file of exactly one server.
    assert [server["args"][0] for server in settings["mcpServers"]] == ["mcp"]
    assert {"name", "version"} <= settings.keys()
    head = (folder / "search-documents" / "SKILL.md").read_text(encoding="utf-8").split("---")[1]
    skill = yaml.safe_load(head)
    assert skill["name"] == "search-documents" and len(skill["description"]) < 1024
