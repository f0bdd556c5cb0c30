"""Tiny models of every family, made once per test session."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

# Before anything loads Triton, which makes its functions for one or the other when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from decoupled.model.model import Model
from decoupled.runtime import cpu
from tiny import FAMILIES, save_tiny

torch.set_num_threads(1)
cpu.protect()  # some tests multiply brain floats without opening a runtime, which would see to it
# Where several processes share the cores, threads of one only wait for those of another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault(cpu.THREADS, "1")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder that `transformers` wrote: `checkpoint("bert", "rank", num_hidden_layers=2)`."""
    made: dict[object, Path] = {}

    def make(family: str = "bert", task: str = "rank", **overrides: object) -> Path:
        key = (family, task, tuple(sorted(overrides.items())))
        if key not in made:
            made[key] = tmp_path_factory.mktemp(f"{family}-{task}")
            save_tiny(made[key], family, task, tokenizer=True, **overrides)
        return made[key]

    return make


@pytest.fixture(scope="session")
def model(checkpoint: Callable[..., Path]) -> Callable[..., Model]:
    """A tiny joint model: `model("bert", "span")`."""

    def make(family: str = "bert", task: str = "rank", **overrides: object) -> Model:
        return Model.open(checkpoint(family, task, **overrides))

    return make


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    """Every family in turn."""
    return request.param
