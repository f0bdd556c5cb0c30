"""What the `.gitignore` files of a folder leave out, by the rules of git, in time that grows with their size.

A pattern is matched part by part between slashes. Within a part `fnmatch` never tries a star again once what
follows it was found, and `**` between parts is treated alike, so that no pattern can be made to take long.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

GITIGNORE = ".gitignore"
_LARGEST = 1 << 20
_ANY = "**"
# What `fnmatch` writes in another way: a character after a backslash, and a class that begins with ^.
_OTHERWISE = re.compile(r"\\(.)|\[\^")


class _Pattern(NamedTuple):
    """One line of a file."""

    parts: tuple[str, ...]
    ignores: bool
    """False for a line that takes back what lines above it ignore."""
    folders: bool
    """Whether only folders match."""

    def matches(self, names: Sequence[str]) -> bool:
        """Whether a path, as the names of its folders and its own, fits the pattern."""
        at = part = 0
        again: tuple[int, int] | None = None
        while at < len(names):
            if part < len(self.parts) and self.parts[part] == _ANY:
                again, part = (at, part + 1), part + 1
                if part == len(self.parts):
                    return True
            elif part < len(self.parts) and _regex(self.parts[part]).match(names[at]):
                at, part = at + 1, part + 1
            elif again is not None:
                # One name more for the last `**`; what stood before it never needs another try.
                again = again[0] + 1, again[1]
                at, part = again
            else:
                return False
        return part == len(self.parts)


class Ignored:
    """The rules of a folder and of those above it, of which the deepest decides."""

    def __init__(self, files: tuple[tuple[str, tuple[_Pattern, ...]], ...] = ()) -> None:
        self._files = files

    def within(self, folder: Path) -> Ignored:
        """The rules together with those of a folder's `.gitignore`; unchanged where none can be read."""
        path = folder / GITIGNORE
        if not path.is_file() or path.is_symlink() or path.stat().st_size > _LARGEST:
            return self
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return self
        patterns = tuple(pattern for line in lines if (pattern := _parsed(line)) is not None)
        return Ignored((*self._files, (str(folder), patterns)))

    def __call__(self, path: str, *, folder: bool) -> bool:
        """Whether the rules leave out a file or folder."""
        for top, patterns in reversed(self._files):
            names = Path(os.path.relpath(path, top)).parts
            for pattern in reversed(patterns):
                if (folder or not pattern.folders) and pattern.matches(names):
                    return pattern.ignores
        return False


def _parsed(line: str) -> _Pattern | None:
    """The pattern on a line; None for a comment or a blank."""
    text = re.sub(r"(?<!\\) +$", "", line)
    if not text or text.startswith("#"):
        return None
    ignores = not text.startswith("!")
    text = text if ignores else text[1:]
    folders = text.endswith("/")
    parts = text.rstrip("/").split("/")
    # A pattern without a slash, but for the last, matches at any depth.
    parts = parts[1:] if not parts[0] else parts if len(parts) > 1 else [_ANY, *parts]
    return _Pattern(tuple(parts), ignores, folders) if any(parts) else None


@lru_cache(maxsize=1 << 14)
def _regex(part: str) -> re.Pattern[str]:
    def rewritten(match: re.Match[str]) -> str:
        if match[1] is None:
            return "[!"
        return f"[{match[1]}]" if match[1] in "*?[" else match[1]

    return re.compile(translate(_OTHERWISE.sub(rewritten, part)))
