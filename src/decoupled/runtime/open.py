"""Choose a runtime. Nothing heavy is imported until a runtime that needs it is chosen."""

from __future__ import annotations

import ctypes
import logging
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from decoupled.errors import InputError, MissingDependency
from decoupled.model import folder
from decoupled.model.codec import Codec
from decoupled.model.spec import unsplit
from decoupled.runtime import cpu
from decoupled.runtime.base import Runtime

if TYPE_CHECKING:
    from decoupled.model.model import Model

RuntimeName = Literal[
    "auto", "torch", "cuda", "cuda-fp8", "openvino", "openvino-fp32", "openvino-int8"
]
NAMES = get_args(RuntimeName)

OLDEST_TRITON = (3, 2)
"""Comes with torch 2.6; the kernels use a setting that older ones lack."""
OLDEST_TRITON_FP8 = (3, 4)
"""Has tensor descriptors, by which that kernel reads and writes."""

log = logging.getLogger(__name__)


def open_runtime(
    source: Model | str | Path, codec: Codec | None = None, *, name: str = "auto"
) -> Runtime:
    """A runtime for a model, a model folder or a checkpoint.

    `auto` takes the GPU where there is one, else OpenVINO for what comes from disk; a model in memory stays
    with torch, where its weights are.
    """
    check_name(name)
    in_memory = not isinstance(source, str | Path)
    auto = name == "auto" and not in_memory and find_spec("openvino") and not has_gpu()
    if auto or name.startswith("openvino"):
        return _openvino(source, codec, name)
    return _torch(source, codec, name)


def open_joint(source: Model | Path) -> Runtime:
    """The same weights unsplit, what a split is compared with: those of a folder in fp32 on OpenVINO."""
    cpu.protect()
    if not isinstance(source, Path):
        from decoupled.model.model import Model
        from decoupled.runtime.torch import TorchRuntime

        return TorchRuntime(Model.split(source, at=0))
    from decoupled.runtime.openvino.layers import obstacle
    from decoupled.runtime.openvino.runtime import OpenVinoRuntime

    spec = folder.read_spec(source)
    if obstacle(spec):
        return open_joint(_model(source))
    tokenizer = folder.read_tokenizer(source, spec)
    return OpenVinoRuntime(unsplit(spec), folder.StoredTensors(source), tokenizer)


def check_name(name: str) -> None:
    """Refuse a runtime that there is not."""
    if name not in NAMES:
        raise InputError(f"runtime {name!r} is unknown; choose one of {', '.join(NAMES)}")


def has_gpu() -> bool:
    """Is there a torch with a driver for NVIDIA devices? Tells without importing torch, which takes long."""
    if find_spec("torch") is None:
        return False
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    import torch

    return torch.cuda.is_available()


def _torch(source: Model | str | Path, codec: Codec | None, name: str) -> Runtime:
    """On a GPU, by its fast path where that can be; else on the CPU."""
    model = _model(source)
    import torch

    from decoupled.runtime.torch import TorchRuntime

    if name != "torch" and (fast := _cuda(model, codec, name)):
        return fast
    if model is not source and torch.cuda.is_available():
        half = name == "auto" and torch.cuda.is_bf16_supported()
        model.to("cuda", torch.bfloat16 if half else None)
    return TorchRuntime(model, codec)


def _cuda(model: Model, codec: Codec | None, name: str) -> Runtime | None:
    """The fast path for GPUs, where the machine and the model allow it."""
    eight, forced = name == "cuda-fp8", name.startswith("cuda")
    if lacks := _cuda_lacks(eight=eight):
        if forced:
            raise InputError(f"runtime {name!r} cannot run here: {lacks}; choose auto or torch")
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
    return CudaRuntime(model, codec, eight=eight)


def _cuda_lacks(*, eight: bool) -> str | None:
    """What this machine would need for the fast path."""
    import torch

    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    needed, kind = ((9, 0), "fp8") if eight else ((8, 0), "bf16")
    if torch.cuda.get_device_capability() < needed:
        return f"{torch.cuda.get_device_name()} has no {kind} arithmetic"
    if find_spec("triton") is None:
        return "the package triton is not installed"
    import triton

    major, minor = (int(part) for part in triton.__version__.split(".")[:2])
    oldest = OLDEST_TRITON_FP8 if eight else OLDEST_TRITON
    if (major, minor) < oldest:
        return f"triton {triton.__version__} is older than {'.'.join(map(str, oldest))}"
    return None


def _openvino(source: Model | str | Path, codec: Codec | None, name: str) -> Runtime:
    """From a model folder without torch; a checkpoint is read by torch first.

    A kind of part that OpenVINO lacks is an error where OpenVINO was asked for; else torch runs the model.
    """
    if find_spec("openvino") is None:
        raise InputError("openvino is not installed; run: pip install openvino, or use torch")
    cpu.protect()
    from decoupled.runtime.openvino.calibrate import read_ranges
    from decoupled.runtime.openvino.layers import obstacle
    from decoupled.runtime.openvino.runtime import OpenVinoRuntime

    stored = isinstance(source, str | Path) and folder.is_model(source)
    held = source if stored else _model(source)
    spec = folder.read_spec(held) if isinstance(held, str | Path) else held.spec
    if why := obstacle(spec):
        if name != "auto":
            raise InputError(
                f"a {spec.family} model cannot run on the openvino runtime ({why}); use torch"
            )
        log.warning("a %s model runs through torch, not OpenVINO: %s", spec.family, why)
        return _torch(held, codec, name)
    # Codes are multiplied as floats where bytes would overflow.
    rounds = {"openvino-int8": True, "openvino-fp32": False}.get(name)
    rounds = False if rounds is None and not cpu.multiplies_bytes() else rounds
    if not isinstance(held, str | Path):
        return OpenVinoRuntime(spec, held.tensors(), held.tokenizer, codec, rounds=rounds)
    wanted = name == "openvino-int8" or (name != "openvino-fp32" and cpu.multiplies_bytes())
    ranges = read_ranges(Path(held)) if wanted else {}
    tokenizer, tensors = folder.read_tokenizer(held, spec), folder.StoredTensors(held)
    expected = {name: tensor.shape for name, tensor in spec.tensors().items()}
    folder.check_shapes(expected, tensors.shapes)
    rounds = None if ranges else rounds
    return OpenVinoRuntime(spec, tensors, tokenizer, codec, ranges=ranges, rounds=rounds)


def _model(source: Model | str | Path) -> Model:
    """In torch."""
    if find_spec("torch") is None:
        raise MissingDependency("torch", "torch")
    cpu.protect()
    from decoupled.model.model import Model

    return source if isinstance(source, Model) else Model.open(source)
