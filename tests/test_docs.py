"""Numbers of the pages: one that its result does not give, or that has none, fails the check."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for place in ("docs/tables", "docs/results", "benchmarks/results"):
        shutil.copytree(ROOT / place, tmp_path / place)
    card = "src/decoupled/assets/starter/MODEL_CARD.md"
    (tmp_path / card).parent.mkdir(parents=True)
    for page in ("README.md", card):
        shutil.copy(ROOT / page, tmp_path / page)
    return tmp_path


def checked(root: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(root / "docs/tables"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == (done.stdout == ""), done.stderr
    return done.stdout


def test_every_number_is_that_of_its_result(copy):
    assert checked(copy) == ""
    file = copy / "benchmarks/results/bench_cpu.json"
    raced = json.loads(file.read_text())
    ours = raced["cells"]["BERT-base | 100 | decoupled openvino-int8 exact"]
    ours["p50_ms"] *= 2
    times = raced["cells"]["BERT-base | 100 | CrossEncoder torch"]["p50_ms"] / ours["p50_ms"]
    file.write_text(json.dumps(raced))
    told = checked(copy)
    assert "README.md" in told and "cpu.md" in told and f"cpu-over-torch -->{times:.1f}<" in told


def test_a_number_without_a_result_is_named(copy):
    page = copy / "README.md"
    page.write_text(page.read_text() + "\nA query takes 3.5 ms.\n")
    assert "README.md: 3.5 ms stand outside of tables and numbers" in checked(copy)


def test_a_result_names_a_clean_commit(copy):
    file = copy / "benchmarks/results/cascade.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "commit": "0123-dirty"}))
    assert "cascade.json names 0123-dirty: measure it on a clean one" in checked(copy)
