"""What trains and describes models is imported where neither the readers of documents nor a store are."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import pkgutil, sys
missing = "lance pydantic fastapi selectolax markdown_it charset_normalizer pathspec openvino optuna ray"
for name in missing.split():
    sys.modules[name] = None
import decoupled.model, decoupled.train
for room in (decoupled.model, decoupled.train):
    for found in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
        __import__(found.name)
"""


def test_rooms_of_models_need_torch_alone():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
