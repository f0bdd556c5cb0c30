"""Choose a runtime. Nothing heavy is imported until a runtime that needs it is chosen."""

from __future__ import annotations

import ctypes
import logging
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, cast, get_args

from decoupled.errors import InputError, MissingDependency
from decoupled.model import folder
from decoupled.model.codec import Codec
from decoupled.model.hf import hub
from decoupled.model.split import unsplit
from decoupled.runtime import cpu
from decoupled.runtime.base import Runtime

if TYPE_CHECKING:
    from decoupled.model.model import Model

RuntimeName = Literal["auto", "torch", "cuda", "openvino", "openvino-fp32", "openvino-int8"]
NAMES = get_args(RuntimeName)

log = logging.getLogger(__name__)


def open_runtime(
    source: Model | str | Path, codec: Codec | None = None, *, name: str = "auto"
) -> Runtime:
    """A runtime for a model, a model folder or a checkpoint.

    `auto` takes the GPU where there is one, else OpenVINO for what comes from disk; a model in memory stays
    with torch, where its weights are.
    """
    check_name(name)
    check_source(source)
    in_memory = not isinstance(source, str | Path)
    # Without a GPU OpenVINO is the faster one, and spares the import of torch.
    auto = name == "auto" and not in_memory and find_spec("openvino") and not has_gpu()
    if auto or name.startswith("openvino"):
        return _openvino(source, codec, name)
    return cast(Runtime, _in_torch().open_torch(source, codec, name))


def open_joint(source: Model | Path) -> Runtime:
    """A runtime for the same weights unsplit; a folder runs in fp32 on OpenVINO."""
    cpu.protect()
    if not isinstance(source, Path):
        return cast(Runtime, _in_torch().open_joint(source))
    from decoupled.runtime.openvino.layers import unsupported_reason
    from decoupled.runtime.openvino.runtime import OpenVinoRuntime

    spec = folder.read_spec(source)
    if unsupported_reason(spec):
        return open_joint(load_model(source))
    tokenizer = folder.read_tokenizer(source, spec)
    return OpenVinoRuntime(unsplit(spec), folder.StoredTensors(source), tokenizer)


def check_name(name: str) -> None:
    """Raise `InputError` for a runtime name that does not exist."""
    if name not in NAMES:
        raise InputError(f"runtime {name!r} is unknown; choose one of {', '.join(NAMES)}")


def has_gpu() -> bool:
    """Whether torch sees a GPU; the driver is looked for first, since importing torch takes long."""
    if find_spec("torch") is None:
        return False
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return bool(import_module("torch").cuda.is_available())


def _openvino(source: Model | str | Path, codec: Codec | None, name: str) -> Runtime:
    """An OpenVINO runtime of a model folder, read without torch; a checkpoint is read by torch first.

    A kind of part that OpenVINO lacks is an error where OpenVINO was asked for; else torch runs the model.
    """
    if find_spec("openvino") is None:
        raise InputError("openvino is not installed; run: pip install openvino, or use torch")
    cpu.protect()
    from decoupled.runtime.openvino.blobs import identity_of
    from decoupled.runtime.openvino.calibrate import read_ranges
    from decoupled.runtime.openvino.layers import unsupported_reason
    from decoupled.runtime.openvino.runtime import OpenVinoRuntime

    path = hub.stored(source) if isinstance(source, str | Path) else None
    held = load_model(source) if path is None else path
    spec = folder.read_spec(held) if isinstance(held, Path) else held.spec
    if why := unsupported_reason(spec):
        if name != "auto":
            raise InputError(
                f"a {spec.family} model cannot run on the openvino runtime ({why}); use torch"
            )
        log.warning("a %s model runs through torch, not OpenVINO: %s", spec.family, why)
        return cast(Runtime, _in_torch().open_torch(held, codec, name))
    # Codes are multiplied as floats where bytes would overflow.
    rounds = {"openvino-int8": True, "openvino-fp32": False}.get(name)
    rounds = False if rounds is None and not cpu.multiplies_bytes() else rounds
    if not isinstance(held, Path):
        return OpenVinoRuntime(spec, held.tensors(), held.tokenizer, codec, rounds=rounds)
    # `auto` takes int8 only where the processor gains by it and the model was calibrated.
    in_bytes = name == "openvino-int8" or (name != "openvino-fp32" and cpu.multiplies_bytes())
    ranges = read_ranges(held) if in_bytes else {}
    tokenizer, tensors = folder.read_tokenizer(held, spec), folder.StoredTensors(held)
    # Shapes are checked before compiling, whose own errors do not name the tensor.
    expected = {name: tensor.shape for name, tensor in spec.tensors().items()}
    folder.check_shapes(expected, tensors.shapes)
    rounds = None if ranges else rounds
    same = identity_of(held)
    return OpenVinoRuntime(
        spec, tensors, tokenizer, codec, ranges=ranges, rounds=rounds, identity=same
    )


def check_source(source: Model | str | Path) -> None:
    """Raise `InputError` for a path at which there is no model; what may be a hub name passes.

    This comes before anything is imported, so that a wrong path is not taken for a missing package.
    """
    if not isinstance(source, str | Path):
        return
    path, needed = Path(source), (folder.SPEC, "config.json", "manifest.json")
    if path.is_dir() and not any((path / name).is_file() for name in needed):
        raise InputError(
            f"{source} holds no model: it has no {folder.SPEC} of a model, no config.json of a checkpoint, "
            "and no manifest.json of an index; check the path"
        )
    # A hub name is one or two words, such as organisation/model@revision.
    is_name = isinstance(source, str) and re.fullmatch(
        r"[\w-][\w.-]*(/[\w.-]+)?(@[\w./-]+)?", source
    )
    if not path.exists() and (not is_name or path.suffix == ".idx"):
        raise InputError(
            f"{source} does not exist; give an index, a model folder, a checkpoint folder or a hub name"
        )


def load_model(source: Model | str | Path) -> Model:
    """The model of a folder, a checkpoint or a hub name, in torch; one that is loaded stays as it is."""
    check_source(source)
    return cast("Model", _in_torch().load_model(source))


def _in_torch() -> ModuleType:
    """The module of what needs torch; it is imported by name, so that serving never imports torch."""
    if find_spec("torch") is None:
        raise MissingDependency("torch", "torch")
    cpu.protect()
    return import_module("decoupled.runtime.torch")
