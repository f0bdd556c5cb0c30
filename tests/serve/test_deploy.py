"""What Containerfile and docs/deploy.md type: options that there are, and a health check that tells."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from decoupled.cli import app
from live import free_port

ROOT = Path(__file__).parents[2]
CONTAINER = (ROOT / "Containerfile").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def options() -> set[str]:
    command = typer.main.get_command(app).commands["serve"]
    return {name for parameter in command.params for name in parameter.opts}


def test_every_option_of_serve_exists():
    asked = set(
        re.findall(r"(?<![\w-])--[a-z][a-z-]+", " ".join(re.findall(r"serve .*", PAGE + CONTAINER)))
    )
    inline = set(re.findall(r"`(--[a-z-]+)", PAGE))
    assert {"--host", "--api-key-file"} <= asked
    assert (asked | inline) - options() <= {"--preset", "--passages"}
    words = json.loads(re.search(r"^CMD (\[.*\])", CONTAINER, re.MULTILINE)[1])
    assert words[0] == "serve" and {w for w in words if w.startswith("--")} <= options()


def test_what_is_copied_is_there_and_enough_to_install():
    copied = [
        name
        for line in re.findall(r"^COPY (?!--)(.*)", CONTAINER, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    assert "src" in copied and all((ROOT / name).exists() for name in copied)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'readme = "(.*)"', project)[1] in copied
    ignored = (ROOT / ".containerignore").read_text(encoding="utf-8").split()
    assert not set(ignored) & set(copied)


def test_the_health_check_fails_where_nothing_answers():
    check = json.loads(re.search(r"CMD (\[\"python\".*\])", CONTAINER)[1])
    code = check[2].replace("8000", str(free_port()))
    done = subprocess.run([sys.executable, check[1], code], capture_output=True, check=False)
    assert done.returncode != 0 and b"refused" in done.stderr


@pytest.mark.parametrize("line", re.findall(r"^ExecStart=(.*)", PAGE, re.MULTILINE))
def test_the_unit_starts_a_server(line):
    program, command, *rest = shlex.split(line)
    assert program.endswith("/decoupled") and command == "serve" and "--api-key-file" in rest
