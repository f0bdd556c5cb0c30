"""Files of a model folder on a disk that may be full."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def written(file: Path) -> Iterator[Path]:
    """A file that safetensors writes: what the disk says is an `OSError`, not in the library's own words."""
    try:
        yield file
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(file)) from None


def copy(source: str | Path, target: Path) -> None:
    """Copy what is in a model folder; the first file that cannot be written is the error."""
    for file in sorted(Path(source).rglob("*")):
        if file.is_file():
            there = target / file.relative_to(source)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, there)
