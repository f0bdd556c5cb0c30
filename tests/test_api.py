"""The public names: exactly those that are documented, each resolved when it is first used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import decoupled

VERBS = {
    *(
        "bench",
        "build_index",
        "check",
        "cost",
        "deepest_split",
        "demo",
        "distill",
        "doctor",
        "evaluate",
    ),
    *(
        "evaluate_retrieval",
        "export",
        "fit_cascade",
        "fit_scoring",
        "info",
        "layers",
        "open",
        "plan",
    ),
    *("read_pairs", "read_passages", "recipe", "reindex", "report", "serve_index", "shrink"),
    *("adapt", "pretrain", "suggest_split", "sweep", "train_reader", "tune"),
}
TYPES = {"Engine", "Index", "Model", "Passage"}
RESULTS = {"Adapted", "Added", "Answer", "Answers", "Checked", "Evidence", "Hit", "Hits", "Label"}
RESULTS |= {"Pretrained", "Timing"}
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


def test_integrations_are_found_under_their_first_name():
    from decoupled.integrations import scoring as old  # type: ignore[import-not-found]

    from decoupled.serve.integrations import scoring as new

    assert old is new
    with pytest.raises(ModuleNotFoundError):
        import decoupled.integrations.nothing  # type: ignore[import-not-found]  # noqa: F401


def test_every_name_is_on_the_page_of_the_api():
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^::: decoupled\.(\w+)$", page, re.MULTILINE)) == set(decoupled.__all__)
