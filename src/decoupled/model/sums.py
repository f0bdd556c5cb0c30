"""Checksums of files and tensors: what is not what was saved is noticed when it is read."""

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from decoupled.errors import WeightsError

Tensors = Mapping[str, npt.NDArray[np.generic]]
Selects = Callable[[str], bool]

SUMS, HEADER = "sums.json", "#header"
"""The file of CRC-32 sums, and the suffix for sums of headers; without the file nothing is checked."""
LAYOUT = "#layout"
"""Among the checksums of a file: the type and shape of each tensor, which its bytes do not tell."""


def check_file(folder: Path, name: str) -> None:
    """Raise `WeightsError` where a file is not what was saved."""
    file = folder / name
    try:
        if (folder / SUMS).exists() and not (folder / SUMS).is_file():
            raise ValueError("it is no regular file")  # a pipe or a device would not end
        sums = json.loads((folder / SUMS).read_text(encoding="utf-8"))
        expected = {part: sums[part] for part in (name, name + HEADER) if part in sums}
    except FileNotFoundError:
        return
    except (ValueError, TypeError, RecursionError) as error:
        raise WeightsError(
            f"{folder / SUMS} is damaged ({error}); restore it from a copy, or remove it if the rest of "
            "the model is sound"
        ) from None
    if file.is_file() and any(expected[part] != file_sum(file, part) for part in expected):
        raise WeightsError(
            f"{name} in {folder} was damaged or replaced since the model was saved; restore it from a copy "
            f"or save the model again (if you changed it yourself, remove {SUMS})"
        )


def file_sum(file: Path, part: str) -> int:
    """The CRC-32 of a file, or of the header of a safetensors file, which has those of its tensors."""
    with file.open("rb") as opened:
        if part.endswith(HEADER):
            length = opened.read(8)
            # A damaged length must not make us read gigabytes: no header is larger than 128 MiB.
            return zlib.crc32(opened.read(min(int.from_bytes(length, "little"), 1 << 27)))
        total = 0
        while block := opened.read(1 << 20):
            total = zlib.crc32(block, total)
        return total


def checksums(tensors: Tensors) -> dict[str, str]:
    """The CRC-32 of each tensor, for the header of a safetensors file: damage is noticed when it is read."""
    # One entry: the order of several would change from one file to the next.
    return {"crc32": json.dumps(_sums(tensors), sort_keys=True)}


def damaged(
    tensors: Tensors, header: Mapping[str, str], selects: Selects = lambda name: True
) -> list[str]:
    """Tensors that are not what was written, or not there; those of a file without checksums pass."""
    try:
        expected = json.loads(header.get("crc32", "{}"))
        layouts = expected.pop(LAYOUT, {})
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ["the list of checksums"]
    # Files of other programs carry no sums and are taken as they are.
    if not expected:
        return []
    crc32, shapes = _sums(tensors), _layouts(tensors)
    names = sorted(crc32.keys() | set(filter(selects, expected)))
    return [
        name
        for name in names
        if crc32.get(name) != expected.get(name) or layouts.get(name, shapes[name]) != shapes[name]
    ]


def pack(tensors: Tensors, notes: Mapping[str, str] | None = None) -> bytes:
    """A whole safetensors file that `unpack` checks."""
    sums = json.dumps({**_sums(tensors), LAYOUT: _layouts(tensors)}, sort_keys=True)
    return save(dict(tensors), metadata={**(notes or {}), "crc32": sums})


def unpack(content: bytes) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a whole safetensors file, checked; `WeightsError` says only what is wrong with it."""
    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except Exception as error:  # a type that numpy lacks has no error of its own
        raise WeightsError(f"damaged ({error})") from None
    if wrong := damaged(tensors, header.get("__metadata__", {})):
        raise WeightsError(f"damaged ({', '.join(wrong[:3])} are not what was saved)")
    return tensors


def _sums(tensors: Tensors) -> dict[str, int]:
    return {name: zlib.crc32(np.ascontiguousarray(t).data) for name, t in tensors.items()}


def _layouts(tensors: Tensors) -> dict[str, str]:
    return {name: f"{t.dtype} {list(t.shape)}" for name, t in tensors.items()}
