"""Split a Transformer pair encoder: encode passages once, run only the upper layers per query."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decoupled.building import Added
    from decoupled.bundled import open
    from decoupled.corpus import read_pairs, read_passages
    from decoupled.engine import Engine
    from decoupled.errors import (
        DecoupledError,
        IndexBusy,
        IndexMismatch,
        InputError,
        MissingDependency,
        MissingRecord,
        SpecError,
        WeightsError,
    )
    from decoupled.index import Index
    from decoupled.model import Model
    from decoupled.outputs import Answer, Answers, Hit, Hits, Label, Timing
    from decoupled.shrinking.shrink import shrink
    from decoupled.text import Passage
    from decoupled.train.distill import distill

_HOME = {
    "Added": "building",
    "Answer": "outputs",
    "Answers": "outputs",
    "DecoupledError": "errors",
    "Engine": "engine",
    "Hit": "outputs",
    "Hits": "outputs",
    "Index": "index",
    "IndexBusy": "errors",
    "IndexMismatch": "errors",
    "InputError": "errors",
    "Label": "outputs",
    "MissingDependency": "errors",
    "MissingRecord": "errors",
    "Model": "model",
    "Passage": "text",
    "SpecError": "errors",
    "Timing": "outputs",
    "WeightsError": "errors",
    "distill": "train.distill",
    "open": "bundled",
    "read_pairs": "corpus",
    "read_passages": "corpus",
    "shrink": "shrinking.shrink",
}
"""Public name to module. Resolved on first use, so that importing the package stays cheap."""

__all__ = [
    "Added",
    "Answer",
    "Answers",
    "DecoupledError",
    "Engine",
    "Hit",
    "Hits",
    "Index",
    "IndexBusy",
    "IndexMismatch",
    "InputError",
    "Label",
    "MissingDependency",
    "MissingRecord",
    "Model",
    "Passage",
    "SpecError",
    "Timing",
    "WeightsError",
    "distill",
    "open",
    "read_pairs",
    "read_passages",
    "shrink",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("decoupled-transformer")
    if name not in _HOME:
        raise AttributeError(f"module 'decoupled' has no attribute {name!r}")
    return getattr(import_module(f"decoupled.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
