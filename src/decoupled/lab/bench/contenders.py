"""Who races: our runtimes and ways of reading, and the peers, by name."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from decoupled.errors import InputError
from decoupled.lab.bench import ours
from decoupled.lab.bench.shapes import SHAPES, Shape, Texts, shape_named, write_checkpoint

if TYPE_CHECKING:
    from decoupled.lab.bench.ours import Way
    from decoupled.lab.bench.worker import Contender

CROSS_ENCODER = "CrossEncoder torch"
COMPILED = "CrossEncoder torch compiled"
OPENVINO = "CrossEncoder OpenVINO int8"
ONNX, ONNX_INT8 = "onnxruntime fp32", "onnxruntime int8"
FLASHRANK = "FlashRank's shape (TinyBERT-L2, onnxruntime)"
MODERN = "ModernBERT-17M, CrossEncoder torch"
JOINT = "decoupled torch joint"

NEEDS: dict[str, tuple[str, ...]] = {
    CROSS_ENCODER: ("sentence_transformers",),
    COMPILED: ("sentence_transformers",),
    OPENVINO: ("sentence_transformers", "openvino", "nncf"),
    ONNX: ("onnxruntime", "onnxscript", "transformers"),
    ONNX_INT8: ("onnxruntime", "onnxscript", "transformers"),
    FLASHRANK: ("onnxruntime", "onnxscript", "transformers"),
    MODERN: ("sentence_transformers",),
}
"""Peers and the packages that they need, all in the extra `bench`."""

RACED = tuple(name for name, shape in SHAPES.items() if shape.split)
"""Shapes that we race with."""
BASELINES = (CROSS_ENCODER, JOINT)
"""What ratios are against: the first of these that raced."""


def ours_by_name() -> dict[str, tuple[str, Way]]:
    """Our contenders: (runtime, way)."""
    found: dict[str, tuple[str, Way]] = {
        f"decoupled {runtime} {way}": (runtime, way)
        for runtime in ours.runtimes()
        for way in ours.WAYS.get(runtime, ours.ALL_WAYS)
    }
    return {**found, JOINT: ("torch", "joint")}


def contenders(device: str, *, quick: bool) -> list[str]:
    """Everyone who could race on this kind of machine, our own last."""
    peers = [CROSS_ENCODER, OPENVINO, ONNX, ONNX_INT8, FLASHRANK, MODERN]
    if quick:
        peers = [CROSS_ENCODER]
    elif device != "cpu":
        peers = [CROSS_ENCODER, COMPILED, MODERN]
    ours_here = [
        name
        for name, (runtime, _) in ours_by_name().items()
        if device != "cpu" or runtime != "cuda"
    ]
    return [*peers, JOINT, *(name for name in ours_here if name != JOINT)]


def missing(name: str) -> str | None:
    """Why a contender cannot race here, or None."""
    lacking = [package for package in NEEDS.get(name, ()) if find_spec(package) is None]
    if lacking:
        return f"{lacking[0]} is not installed (extra `bench`)"
    runtime = ours_by_name().get(name, ("", ""))[0]
    if runtime.startswith("openvino") and find_spec("openvino") is None:
        return "openvino is not installed"
    return None


def arithmetic(name: str, facts: dict[str, Any]) -> str:
    """The kind of matrix product that a contender lives on."""
    if "int8" in name or "int8" in str(facts.get("runtime", "")):
        return "int8"
    return "bf16" if "bf16" in str(facts.get("notes", "")) or "cuda" in name else "fp32"


def open_contender(
    name: str, shape: Shape, checkpoint: Path, texts: Texts, work: Path, device: str
) -> Contender:
    """Load a contender in this process."""
    import os

    from decoupled.lab.bench import peers
    from decoupled.runtime import cpu

    cpu.protect()
    if name in ours_by_name():
        runtime, way = ours_by_name()[name]
        return ours.open_ours(shape, checkpoint, way, runtime, texts, work)
    threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    made: dict[str, Any] = {
        CROSS_ENCODER: lambda: peers.cross_encoder(checkpoint, texts, device, compiled=False),
        COMPILED: lambda: peers.cross_encoder(checkpoint, texts, device, compiled=True),
        OPENVINO: lambda: peers.openvino_int8(checkpoint, texts, work, threads),
        ONNX: lambda: peers.onnx(checkpoint, texts, work, threads, int8=False),
        ONNX_INT8: lambda: peers.onnx(checkpoint, texts, work, threads, int8=True),
        FLASHRANK: lambda: peers.onnx(_own("TinyBERT-L2", work), texts, work, threads, int8=False),
        MODERN: lambda: peers.cross_encoder(
            _own("ModernBERT-17M", work), texts, device, compiled=False
        ),
    }
    if name not in made:
        raise InputError(f"contender {name!r} is unknown; choose one of {', '.join(made)}")
    return cast("Contender", made[name]())


def _own(shape: str, work: Path) -> Path:
    return write_checkpoint(shape_named(shape), work / shape)
