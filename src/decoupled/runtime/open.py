"""Choose a runtime. Nothing heavy is imported until a runtime that needs it is chosen."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from decoupled.errors import InputError, MissingDependency
from decoupled.runtime import cpu
from decoupled.runtime.base import Runtime

if TYPE_CHECKING:
    from decoupled.codec import Codec
    from decoupled.model import Model

RuntimeName = Literal["auto", "torch", "cuda"]

log = logging.getLogger(__name__)


def open_runtime(
    source: Model | str | Path, codec: Codec | None = None, *, name: str = "auto"
) -> Runtime:
    """A runtime for a model, a model folder or a checkpoint; `auto` picks the fastest there is."""
    if name not in ("auto", "torch", "cuda"):
        raise InputError(f"runtime {name!r} is unknown; choose auto, torch or cuda")
    if find_spec("torch") is None:
        raise MissingDependency("torch", "torch")
    cpu.protect()
    import torch

    from decoupled.model import Model
    from decoupled.runtime.torch import TorchRuntime

    model = source if isinstance(source, Model) else Model.open(source)
    if name != "torch" and (fast := _cuda(model, codec, forced=name == "cuda")):
        return fast
    if not isinstance(source, Model) and torch.cuda.is_available():
        half = name == "auto" and torch.cuda.is_bf16_supported()
        model.to("cuda", torch.bfloat16 if half else None)
    return TorchRuntime(model, codec)


def _cuda(model: Model, codec: Codec | None, *, forced: bool) -> Runtime | None:
    """The fast path for GPUs, where the machine and the model allow it."""
    import torch

    lacks = None
    if not torch.cuda.is_available():
        lacks = "torch sees no CUDA device"
    elif torch.cuda.get_device_capability() < (8, 0):
        lacks = f"{torch.cuda.get_device_name()} has no bf16 arithmetic"
    elif find_spec("triton") is None:
        lacks = "the package triton is not installed"
    if lacks:
        if forced:
            raise InputError(f"runtime 'cuda' cannot run here: {lacks}; choose auto or torch")
        return None
    from decoupled.runtime.cuda.runtime import CudaRuntime
    from decoupled.runtime.cuda.weights import obstacle

    if not forced and (why := obstacle(model.spec)):
        log.warning(
            "a %s model runs on the GPU through torch, without the fast path: %s",
            model.spec.family,
            why,
        )
        return None
    return CudaRuntime(model, codec)
