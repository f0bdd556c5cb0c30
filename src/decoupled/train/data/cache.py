"""What takes long to compute, kept on disk, so that a stopped run does not compute it again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.train.place import Progress

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Cache:
    """Arrays kept under names in a folder; without a folder, everything is computed and nothing kept."""

    folder: Path | None = None
    progress: Progress | None = None

    def at(self, *names: str) -> Cache:
        """A cache in a folder inside this one, named after what its content depends on."""
        name = hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]
        return replace(self, folder=self.folder / name if self.folder else None)

    def kept(self, name: str, make: Callable[[], Array]) -> Array:
        """The array of that name; computed and written, whole or not at all, where it is missing."""
        if self.folder is None:
            return make()
        path = self.folder / f"{name}.npy"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            # A name of this process: two runs may compute the same block at once.
            draft = path.with_suffix(f".{os.getpid()}.draft")
            with draft.open("wb") as file:
                np.save(file, make(), allow_pickle=False)
                file.flush()
                # The rename must not reach the disk before the bytes do.
                os.fsync(file.fileno())
            draft.replace(path)
        return np.load(path, allow_pickle=False)
