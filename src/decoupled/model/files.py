"""Files of a model folder on a disk that may be full."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def written(file: Path) -> Iterator[Path]:
    """Yield a file for safetensors to write, and turn its error into the `OSError` of the disk."""
    try:
        yield file
    except SafetensorError as error:
        # safetensors reports a full disk in its own type, with the errno only in the text.
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(file)) from None


def copy(source: str | Path, target: Path) -> None:
    """Copy all files of a model folder; the first one that cannot be written raises its `OSError`."""
    for file in sorted(Path(source).rglob("*")):
        if file.is_file():
            there = target / file.relative_to(source)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, there)
