"""Every script of benchmarks and examples starts and says what it does."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = ("benchmarks/**/*.py", "examples/*/*.py", "tests/cuda_checks.py")
SCRIPTS = [
    str(path.relative_to(ROOT))
    for place in PLACES
    for path in sorted(ROOT.glob(place))
    if "__name__ ==" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_says_what_it_does(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    monkeypatch.syspath_prepend(str((ROOT / script).parent))
    known = dict(sys.modules)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    # Modules of one folder are called as those of another.
    for name in sys.modules.keys() - known.keys():
        if str(getattr(sys.modules[name], "__file__", None)).startswith(
            str((ROOT / script).parent)
        ):
            del sys.modules[name]
    said = capsys.readouterr().out
    assert ended.value.code == 0 and said.startswith(f"usage: {Path(script).name}")
    assert f"python {script}" in (ROOT / script).read_text(encoding="utf-8"), "where it lies"
