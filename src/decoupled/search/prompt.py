"""Queries that are typed one after the other, with arrow keys and a history that outlives the process."""

import sys
from collections.abc import Iterator
from contextlib import suppress

from decoupled.runtime.cpu import cache_folder


def typed_queries(prompt: str = "> ") -> Iterator[str]:
    """Yield each line that is typed, until `exit`, Ctrl-D or Ctrl-C; empty lines are passed over."""
    sys.stderr.write("Type a question and press Enter; exit or Ctrl-D ends.\n")
    history = cache_folder() / "history"
    # Windows has no readline, and a history that cannot be read or written is none.
    with suppress(ImportError, OSError):
        import readline

        readline.read_history_file(history)
    try:
        while (line := input(prompt).strip()) not in ("exit", "quit"):
            if line:
                yield line
    except (EOFError, KeyboardInterrupt):
        sys.stderr.write("\n")
    finally:
        with suppress(NameError, OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history)
