"""Queries that are typed one after the other, with arrow keys and a history that outlives the process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

from decoupled.runtime.cpu import cache_folder

KEPT = 1000
"""Lines of the history that are kept."""


def typed_queries(prompt: str = "> ") -> Iterator[str]:
    """Yield each line that is typed, until Ctrl-D or Ctrl-C; empty lines are passed over."""
    sys.stderr.write("Type a question and press Enter; Ctrl-D ends.\n")
    path = cache_folder() / "history"
    try:
        import readline  # with it `input` edits lines
    except ImportError:  # Windows has none
        readline = None  # type: ignore[assignment]
    if readline is not None:
        readline.set_history_length(KEPT)
        with suppress(OSError):
            readline.read_history_file(path)
    try:
        while True:
            line = input(prompt).strip()
            if line:
                yield line
    except (EOFError, KeyboardInterrupt):
        sys.stderr.write("\n")
    finally:
        if readline is not None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                readline.write_history_file(path)
