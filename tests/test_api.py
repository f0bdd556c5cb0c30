"""The public names: exactly those that are documented, each resolved when it is first used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import decoupled

VERBS = {
    *("adapt", "build_index", "distill", "evaluate", "export", "open", "pretrain", "read_pairs"),
    *("read_passages", "serve_index", "shrink", "sweep", "tune"),
}
TYPES = {"Engine", "Index", "Model", "Passage"}
RESULTS = {"Answer", "Answers", "Evidence", "Hit", "Hits", "Label", "Timing"}
ERRORS = {
    "DecoupledError",
    "IndexBusy",
    "IndexMismatch",
    "InputError",
    "MissingDependency",
    "MissingRecord",
    "SpecError",
    "WeightsError",
}
BEFORE = {
    *(
        "Adapted",
        "Added",
        "Checked",
        "Pretrained",
        "bench",
        "check",
        "cost",
        "deepest_split",
        "demo",
    ),
    *("doctor", "evaluate_retrieval", "fit_scoring", "info", "layers", "plan"),
    *("recipe", "reindex", "report"),
}
"""Names that version 0.1 had here beside these."""


def test_the_api_is_what_is_documented():
    assert set(decoupled.__all__) == VERBS | TYPES | RESULTS | ERRORS
    assert decoupled.__all__ == sorted(decoupled.__all__)
    assert dir(decoupled) == sorted(decoupled.__all__)


@pytest.mark.parametrize("name", decoupled.__all__)
def test_every_name_resolves_to_its_own_thing(name):
    found = getattr(decoupled, name)
    assert found.__name__ == name and found.__doc__
    assert found.__module__.startswith("decoupled.")
    assert isinstance(found, type) == (name not in VERBS)


def test_the_methods_of_the_documented_types():
    for kind, names in {
        "Model": ("split", "load", "save"),
        "Index": ("create", "open", "add", "delete", "compact"),
        "Engine": ("search", "rerank", "ask", "classify"),
    }.items():
        for name in names:
            method = getattr(getattr(decoupled, kind), name)
            assert callable(method) and method.__doc__, f"{kind}.{name}"


def test_errors_have_one_root():
    for name in ERRORS:
        assert issubclass(getattr(decoupled, name), decoupled.DecoupledError)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'decoupled' has no attribute 'nothing'"):
        _ = decoupled.nothing
    assert decoupled.__version__[0].isdigit()


def test_importing_loads_nothing_heavy():
    code = (
        "import sys, decoupled\n"
        "heavy = {'torch', 'numpy', 'lance', 'pyarrow', 'transformers', 'tokenizers'}\n"
        "sys.exit(','.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(BEFORE))
def test_a_name_that_moved_is_still_found_with_a_warning(name):
    with pytest.warns(
        DeprecationWarning, match=f"decoupled.{name} has moved; write: from decoupled"
    ):
        assert getattr(decoupled, name).__name__ == name
    assert name not in decoupled.__all__


def test_searching_loads_neither_methods_nor_lab():
    code = (
        "import sys, decoupled\n"
        "engine = decoupled.open()\n"
        "assert engine.search('Which river runs through Warsaw?', k=1)[0].text\n"
        "assert engine.ask('Which river runs through Warsaw?', k=1)\n"
        "rooms = ('decoupled.methods', 'decoupled.lab')\n"
        "sys.exit(', '.join(m for m in sys.modules if m.startswith(rooms)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_name_is_on_the_page_of_the_api():
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^::: decoupled\.(\w+)$", page, re.MULTILINE)) == set(decoupled.__all__)
