"""Choose a runtime. Nothing heavy is imported until a runtime that needs it is chosen."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from decoupled.errors import InputError, MissingDependency
from decoupled.runtime import cpu
from decoupled.runtime.base import Runtime

if TYPE_CHECKING:
    from decoupled.codec import Codec
    from decoupled.model import Model

RuntimeName = Literal["auto", "torch"]


def open_runtime(
    source: Model | str | Path, codec: Codec | None = None, *, name: str = "auto"
) -> Runtime:
    """A runtime for a model, a model folder or a checkpoint; `auto` picks the fastest there is."""
    if name not in ("auto", "torch"):
        raise InputError(f"runtime {name!r} is unknown; choose auto or torch")
    if find_spec("torch") is None:
        raise MissingDependency("torch", "torch")
    cpu.protect()
    import torch

    from decoupled.model import Model
    from decoupled.runtime.torch import TorchRuntime

    model = source if isinstance(source, Model) else Model.open(source)
    if not isinstance(source, Model) and torch.cuda.is_available():
        model.to("cuda")
    return TorchRuntime(model, codec)
