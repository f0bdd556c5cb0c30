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

OLDEST_TRITON = (3, 2)
"""Comes with torch 2.6; the kernels use a setting that older ones lack."""

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
    if lacks := _cuda_lacks():
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


def _cuda_lacks() -> str | None:
    """What this machine would need for the fast path."""
    import torch

    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if torch.cuda.get_device_capability() < (8, 0):
        return f"{torch.cuda.get_device_name()} has no bf16 arithmetic"
    if find_spec("triton") is None:
        return "the package triton is not installed"
    import triton

    major, minor = (int(part) for part in triton.__version__.split(".")[:2])
    if (major, minor) < OLDEST_TRITON:
        return f"triton {triton.__version__} is older than {'.'.join(map(str, OLDEST_TRITON))}"
    return None
