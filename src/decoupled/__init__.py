"""Split a Transformer pair encoder: encode passages once, run only the upper layers per query.

The public names are those of `__init__.pyi` beside this file. Each is loaded on its first use, so that
importing the package stays cheap and needs neither torch nor numpy.
"""

import warnings
from importlib import import_module
from importlib.metadata import version
from typing import Any

import lazy_loader

_resolve, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

_MOVED = {
    "Adapted": "train.adapt",
    "Added": "index.ingest",
    "Checked": "index.check",
    "Pretrained": "methods.pretrain.pretrain",
    "bench": "lab.bench.race",
    "check": "index.check",
    "cost": "lab.cost",
    "deepest_split": "measure.agreement",
    "demo": "measure.demo",
    "doctor": "runtime.doctor",
    "evaluate_retrieval": "measure.retrieval",
    "fit_scoring": "methods.scores.scoring",
    "info": "measure.info",
    "layers": "lab.study.layers",
    "plan": "lab.capacity",
    "recipe": "train.run",
    "reindex": "index.build",
    "report": "lab.report.write",
}
"""Names that version 0.1 had here, and where they are now."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("decoupled-transformer")
    if name in _MOVED:
        home = f"decoupled.{_MOVED[name]}"
        warnings.warn(
            f"decoupled.{name} has moved; write: from {home} import {name}",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(import_module(home), name)
    if name not in __all__:
        raise AttributeError(f"module 'decoupled' has no attribute {name!r}")
    try:
        return _resolve(name)
    except ModuleNotFoundError as error:
        extras = {"torch": "torch", "accelerate": "train"}
        if error.name not in extras:
            raise
        from decoupled.errors import MissingDependency

        raise MissingDependency(error.name, extras[error.name]) from None
