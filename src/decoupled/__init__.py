"""Split a Transformer pair encoder: encode passages once, run only the upper layers per query."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from decoupled.index.documents import read_pairs, read_passages
    from decoupled.index.index import Index
    from decoupled.index.ingest import Added
    from decoupled.model.model import Model
    from decoupled.model.tokens import Passage
    from decoupled.search.engine import Engine
    from decoupled.search.results import Answer, Answers, Hit, Hits, Label, Timing
    from decoupled.search.starter import open
    from decoupled.train.evaluate import evaluate
    from decoupled.train.run import distill
    from decoupled.train.shrink.shrink import shrink
    from decoupled.train.tune import tune

_HOME = {
    "Added": "index.ingest",
    "Answer": "search.results",
    "Answers": "search.results",
    "DecoupledError": "errors",
    "Engine": "search.engine",
    "Hit": "search.results",
    "Hits": "search.results",
    "Index": "index.index",
    "IndexBusy": "errors",
    "IndexMismatch": "errors",
    "InputError": "errors",
    "Label": "search.results",
    "MissingDependency": "errors",
    "MissingRecord": "errors",
    "Model": "model.model",
    "Passage": "model.tokens",
    "SpecError": "errors",
    "Timing": "search.results",
    "WeightsError": "errors",
    "distill": "train.run",
    "evaluate": "train.evaluate",
    "open": "search.starter",
    "read_pairs": "index.documents",
    "read_passages": "index.documents",
    "shrink": "train.shrink.shrink",
    "tune": "train.tune",
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
    "evaluate",
    "open",
    "read_pairs",
    "read_passages",
    "shrink",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("decoupled-transformer")
    if name not in _HOME:
        raise AttributeError(f"module 'decoupled' has no attribute {name!r}")
    return getattr(import_module(f"decoupled.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Moved(MetaPathFinder, Loader):
    """`decoupled.integrations`, which programs and pipeline files name, lies in `decoupled.serve`."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        mine = f"{name}.".startswith("decoupled.integrations.")
        return ModuleSpec(name, self, is_package=True) if mine else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return import_module(spec.name.replace("decoupled.", "decoupled.serve.", 1))

    def exec_module(self, module: ModuleType) -> None:
        """It ran when it was imported by its own name."""


sys.meta_path.append(_Moved())
