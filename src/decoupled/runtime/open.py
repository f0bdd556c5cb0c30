"""Choose a runtime. Nothing heavy is imported until a runtime that needs it is chosen."""

from __future__ import annotations

import ctypes
import logging
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from decoupled import folder
from decoupled.errors import InputError, MissingDependency, SpecError
from decoupled.runtime import cpu
from decoupled.runtime.base import Runtime
from decoupled.spec import unsplit

if TYPE_CHECKING:
    from decoupled.codec import Codec
    from decoupled.model import Model

RuntimeName = Literal["auto", "torch", "openvino", "openvino-fp32", "openvino-int8"]
NAMES = ("auto", "torch", "openvino", "openvino-fp32", "openvino-int8")

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
    if name.startswith("openvino"):
        return _openvino(source, codec, name)
    if name == "auto" and not in_memory and find_spec("openvino") and not has_gpu():
        try:
            return _openvino(source, codec, name)
        except SpecError as error:
            log.warning("%s: going on with torch", error)
    return _torch(source, codec)


def open_joint(path: Path) -> Runtime:
    """The joint model of a folder's weights, unsplit, in fp32 on OpenVINO: what a split is compared with."""
    cpu.protect()
    from decoupled.runtime.openvino.runtime import OpenVinoRuntime

    spec = folder.read_spec(path)
    tokenizer = folder.read_tokenizer(path, spec)
    return OpenVinoRuntime(unsplit(spec), folder.read_tensors(path), tokenizer)


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


def _torch(source: Model | str | Path, codec: Codec | None) -> Runtime:
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


def _openvino(source: Model | str | Path, codec: Codec | None, name: str) -> Runtime:
    """From a model folder without torch; a checkpoint is read by torch first."""
    if find_spec("openvino") is None:
        raise InputError("openvino is not installed; run: pip install openvino, or use torch")
    cpu.protect()
    from decoupled.runtime.openvino.calibrate import read_ranges
    from decoupled.runtime.openvino.runtime import OpenVinoRuntime

    if isinstance(source, str | Path) and folder.is_model(source):
        place = Path(source)
        spec = folder.read_spec(place)
        wanted = name == "openvino-int8" or (name != "openvino-fp32" and cpu.multiplies_bytes())
        ranges = read_ranges(place) if wanted else {}
        if name == "openvino-int8" and not ranges:
            raise InputError(
                f"{place} was not exported to int8; run: decoupled export {place} --int8"
            )
        tokenizer = folder.read_tokenizer(place, spec)
        return OpenVinoRuntime(spec, folder.read_tensors(place), tokenizer, codec, ranges=ranges)
    if name == "openvino-int8":
        raise InputError(f"{source} is no model folder, and only an exported one runs in int8")
    if find_spec("torch") is None:
        raise MissingDependency("torch", "torch")
    from decoupled.model import Model

    model = source if isinstance(source, Model) else Model.open(source)
    tensors = {n: t.float().cpu().numpy() for n, t in model.net.state_dict().items()}
    return OpenVinoRuntime(model.spec, tensors, model.tokenizer, codec)
