"""What the `.gitignore` files of a folder leave out, by the rules of git."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

GITIGNORE = ".gitignore"
_LARGEST = 1 << 20


class _IgnoreFile(NamedTuple):
    folder: str
    patterns: Any


class Ignored:
    """The rules of a folder and of those above it, of which the deepest decides."""

    def __init__(self, files: tuple[_IgnoreFile, ...] = ()) -> None:
        self._files = files

    def within(self, folder: Path) -> Ignored:
        """The rules together with those of a folder's `.gitignore`; unchanged where none can be read."""
        path = folder / GITIGNORE
        if not path.is_file() or path.is_symlink() or path.stat().st_size > _LARGEST:
            return self
        # Here and not above: most folders have none.
        from pathspec import GitIgnoreSpec

        try:
            patterns = GitIgnoreSpec.from_lines(path.read_text(encoding="utf-8").splitlines())
        except (OSError, ValueError):
            return self
        return Ignored((*self._files, _IgnoreFile(str(folder), patterns)))

    def __call__(self, path: str, *, folder: bool) -> bool:
        """Whether the rules leave out a file or folder."""
        for file in reversed(self._files):
            name = Path(os.path.relpath(path, file.folder)).as_posix() + "/" * folder
            decided = file.patterns.check_file(name).include
            if decided is not None:
                return bool(decided)
        return False
