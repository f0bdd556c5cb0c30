"""Numbers of the pages: one that its result does not give, or that has none, fails the check."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for place in ("docs/tables", "docs/results", "benchmarks"):
        shutil.copytree(ROOT / place, tmp_path / place)
    shutil.copy(ROOT / "README.md", tmp_path)
    # Only read: scripts, the model's card, and files that are counted.
    for place in ("examples", "src"):
        (tmp_path / place).symlink_to(ROOT / place)
    return tmp_path


@pytest.fixture
def checked(copy: Path, monkeypatch, capsys) -> Callable[[], str]:
    """What `python docs/tables --check` prints, run here: torch is imported already."""
    monkeypatch.setattr(sys, "argv", ["tables", "--check"])

    def run() -> str:
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(copy / "docs/tables"), run_name="__main__")
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(copy)):
                del sys.modules[name]
        told = capsys.readouterr().out
        assert ended.value.code == (told != "")
        return told

    return run


def test_every_number_is_that_of_a_result_of_a_clean_commit(copy, checked):
    assert checked() == ""
    page = copy / "README.md"
    page.write_text(page.read_text() + "\nA query takes 3.5 ms.\n")
    file = copy / "benchmarks/results/serve_memory.json"
    gone = {"commit": "0123-dirty", "command": "python benchmarks/gone.py --limit 3"}
    file.write_text(json.dumps({**json.loads(file.read_text()), **gone}))
    file = copy / "benchmarks/results/bench_cpu.json"
    raced = json.loads(file.read_text())
    ours = raced["cells"]["BERT-base | 100 | decoupled openvino-int8 exact"]
    ours["p50_ms"] *= 2
    times = raced["cells"]["BERT-base | 100 | CrossEncoder torch"]["p50_ms"] / ours["p50_ms"]
    file.write_text(json.dumps(raced))
    told = checked()
    assert "README.md" in told and "cpu.md" in told and f"cpu-over-torch -->{times:.1f}<" in told
    assert "README.md: 3.5 ms stand outside of tables and numbers" in told
    assert "serve_memory.json names 0123-dirty: measure it on a clean one" in told
    assert "serve_memory.json names benchmarks/gone.py, which is not there" in told
