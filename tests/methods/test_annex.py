"""The annex: each method is one folder, which the rest neither imports nor needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import decoupled
from decoupled.model import annex

SOURCE = Path(decoupled.__file__).parent
FOLDERS = sorted(p.name for p in (SOURCE / "methods").iterdir() if (p / "__init__.py").exists())
OUTSIDE = {"methods", "lab", "cli"}
"""What may import methods and lab."""


def test_the_table_names_folders_that_are_there_and_each_folder_is_named():
    named = {*annex.KINDS.values(), *annex.SHRINKING.values()}
    named |= {module.partition(".")[0] for module in annex.OBJECTIVES.values()}
    # Named by `fit_scoring` and `index --keep-tokens`.
    assert named | {"scores", "keep_tokens"} == set(FOLDERS)
    for tag in annex.KINDS:
        annex.load_kind(tag)
    for name in annex.OBJECTIVES.values():
        assert annex.load(name).OBJECTIVE


def test_the_core_imports_neither_methods_nor_lab():
    lines = re.compile(r"^\s*(?:from|import) decoupled\.(?:methods|lab)\b", re.MULTILINE)
    core = [f for f in SOURCE.rglob("*.py") if f.parts[len(SOURCE.parts)] not in OUTSIDE]
    assert [str(f) for f in core if lines.search(f.read_text(encoding="utf-8"))] == []


def test_a_method_imports_no_other():
    for folder in FOLDERS:
        other = re.compile(rf"decoupled\.methods\.(?!{folder}\b)({'|'.join(FOLDERS)})\.")
        for file in (SOURCE / "methods" / folder).glob("*.py"):
            assert not other.search(file.read_text(encoding="utf-8")), file


PROGRAM = """
import sys
sys.path[:0] = sys.argv[3:]
import tiny
from decoupled import Model
from decoupled.errors import SpecError
from decoupled.methods.names import described, parse
from decoupled.methods.shrink import shrink
from decoupled.model import annex

gone, checkpoint = sys.argv[1], sys.argv[2]
tiny.save_tiny(checkpoint, "bert", "rank", tokenizer=True)
small = Model.split(checkpoint, at=2)
works = {"lsra": "lsra", "share": "share:groups=1", "low_rank": "low-rank:rank=4", "lsh": "lsh"}
for folder, method in works.items():
    if folder != gone:
        shrink(small, [method])
assert [n for n, f in annex.SHRINKING.items() if f != gone] == [n for n, *_ in described()]
for name, folder in annex.SHRINKING.items():
    try:
        parse(name)
    except SpecError as error:
        assert folder == gone and f"decoupled.methods.{gone}" in str(error), (name, error)
    else:
        assert folder != gone, name
for tag, folder in annex.KINDS.items():
    try:
        annex.load_kind(tag)
    except SpecError:
        assert folder == gone
"""


@pytest.mark.parametrize("gone", ["define", "lsra", "vocabulary"])
def test_without_a_folder_that_method_is_missing_and_no_other(tmp_path, gone):
    shutil.copytree(
        SOURCE, tmp_path / "decoupled", ignore=shutil.ignore_patterns("starter", "sample")
    )
    shutil.rmtree(tmp_path / "decoupled" / "methods" / gone)
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, gone, tmp_path / "bert", tests],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
