"""Compiled components in the cache folder, so that a new process imports them instead of compiling."""

import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import openvino as ov

from decoupled.model.folder import SPEC, WEIGHTS
from decoupled.model.jsonable import JsonObject
from decoupled.runtime import cpu
from decoupled.runtime.openvino.graph import core

LEAST = 4 << 20
"""Bytes of weights from which on importing is faster than compiling."""
KEPT = 8
"""Compiled components that stay in the cache: those of a few models."""


def identity_of(model: Path) -> str | None:
    """A digest of what a model folder compiles to; None where it is too small to be worth a file."""
    weights = model / WEIGHTS
    if weights.stat().st_size < LEAST:
        return None
    digest = blake2b((model / SPEC).read_bytes(), digest_size=16)
    with weights.open("rb") as file:
        # The header has a checksum of every tensor, so that these need not be read.
        digest.update(file.read(int.from_bytes(file.read(8), "little")))
    for ranges in sorted(model.glob("*/*.safetensors")):
        digest.update(ranges.read_bytes())
    return digest.hexdigest()


def compiled(
    build: Callable[[], ov.Model], settings: JsonObject, identity: str | None, key: object
) -> ov.CompiledModel:
    """A component from the cache; else it is built, compiled and put there.

    `identity` and `key` name the weights and the component; without an identity nothing is kept.
    """
    if identity is None:
        return core().compile_model(build(), "CPU", settings)
    folder, name = cpu.cache_folder() / "compiled", _name(identity, key, settings)
    for path in folder.glob(f"{name}-*.blob"):
        # A blob that is damaged, or of another OpenVINO that calls itself the same, is compiled anew.
        with suppress(OSError, RuntimeError):
            content = path.read_bytes()
            if path.stem.endswith(f"{zlib.crc32(content):08x}"):
                return core().import_model(content, "CPU", settings)
    component = core().compile_model(build(), "CPU", settings)
    with suppress(OSError, RuntimeError):
        _keep(component, folder, name)
    return component


def _name(identity: str, key: object, settings: JsonObject) -> str:
    """The name of a component: another one for other weights, settings, versions and processors."""
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA")
    parts = (identity, key, sorted(settings.items()), ov.get_version(), sorted(cpu.flags()), isa)
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _keep(component: ov.CompiledModel, folder: Path, name: str) -> None:
    """Write a component so that another process sees all of it or nothing; the oldest ones go."""
    folder.mkdir(parents=True, exist_ok=True)
    content, half = component.export_model().getvalue(), folder / f"{name}.{os.getpid()}.tmp"
    half.write_bytes(content)
    for damaged in folder.glob(f"{name}-*.blob"):
        damaged.unlink(missing_ok=True)
    half.replace(folder / f"{name}-{zlib.crc32(content):08x}.blob")
    blobs = sorted(folder.glob("*.blob"), key=lambda blob: -blob.stat().st_mtime)
    for old in blobs[KEPT:]:
        old.unlink(missing_ok=True)
