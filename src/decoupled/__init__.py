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
    from decoupled.index.check import Checked, check
    from decoupled.index.documents import read_pairs, read_passages
    from decoupled.index.index import Index
    from decoupled.index.ingest import Added
    from decoupled.lab.bench.race import bench
    from decoupled.lab.demo import demo
    from decoupled.lab.report.write import report
    from decoupled.lab.study.study import layers, suggest_split, sweep
    from decoupled.measure.agreement import deepest_split
    from decoupled.measure.info import info
    from decoupled.measure.late_interaction import fit_cascade
    from decoupled.measure.money import cost
    from decoupled.measure.retrieval import evaluate_retrieval
    from decoupled.measure.scoring import fit_scoring
    from decoupled.model.model import Model
    from decoupled.model.tokens import Passage
    from decoupled.runtime.doctor import doctor
    from decoupled.search.engine import Engine
    from decoupled.search.export import export
    from decoupled.search.results import Answer, Answers, Evidence, Hit, Hits, Label, Timing
    from decoupled.search.starter import open
    from decoupled.serve.build import build_index, reindex
    from decoupled.serve.cluster.capacity import plan
    from decoupled.serve.http.server import serve_index
    from decoupled.train.adapt import Adapted, adapt
    from decoupled.train.evaluate import evaluate
    from decoupled.train.pretrain import Pretrained, pretrain
    from decoupled.train.reader import train_reader
    from decoupled.train.run import distill, recipe
    from decoupled.train.shrink.shrink import shrink
    from decoupled.train.tune import tune

_NAMES = {
    "errors": "DecoupledError IndexBusy IndexMismatch InputError MissingDependency MissingRecord "
    "SpecError WeightsError",
    "index.check": "Checked check",
    "index.documents": "read_pairs read_passages",
    "index.index": "Index",
    "index.ingest": "Added",
    "lab.bench.race": "bench",
    "lab.demo": "demo",
    "lab.report.write": "report",
    "lab.study.study": "layers suggest_split sweep",
    "measure.agreement": "deepest_split",
    "measure.info": "info",
    "measure.late_interaction": "fit_cascade",
    "measure.money": "cost",
    "measure.retrieval": "evaluate_retrieval",
    "measure.scoring": "fit_scoring",
    "model.model": "Model",
    "model.tokens": "Passage",
    "runtime.doctor": "doctor",
    "search.engine": "Engine",
    "search.export": "export",
    "search.results": "Answer Answers Evidence Hit Hits Label Timing",
    "search.starter": "open",
    "serve.build": "build_index reindex",
    "serve.cluster.capacity": "plan",
    "serve.http.server": "serve_index",
    "train.adapt": "Adapted adapt",
    "train.evaluate": "evaluate",
    "train.pretrain": "Pretrained pretrain",
    "train.reader": "train_reader",
    "train.run": "distill recipe",
    "train.shrink.shrink": "shrink",
    "train.tune": "tune",
}
"""Module to its public names. Resolved on first use, so that importing the package stays cheap."""
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Adapted",
    "Added",
    "Answer",
    "Answers",
    "Checked",
    "DecoupledError",
    "Engine",
    "Evidence",
]
__all__ += ["Hit", "Hits", "Index", "IndexBusy", "IndexMismatch", "InputError", "Label"]
__all__ += ["MissingDependency", "MissingRecord", "Model", "Passage", "Pretrained"]
__all__ += ["SpecError", "Timing"]
__all__ += [
    "WeightsError",
    "adapt",
    "bench",
    "build_index",
    "check",
    "cost",
    "deepest_split",
    "demo",
]
__all__ += ["distill", "doctor", "evaluate", "evaluate_retrieval", "export", "fit_cascade"]
__all__ += ["fit_scoring"]
__all__ += ["info", "layers", "open", "plan", "pretrain", "read_pairs", "read_passages", "recipe"]
__all__ += ["reindex", "report", "serve_index", "shrink", "suggest_split", "sweep"]
__all__ += ["train_reader", "tune"]


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
