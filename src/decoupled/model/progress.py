"""Progress of work that takes a while: how much is done, and of how much, told to whoever watches."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int | None], None]
"""Called with what is done and with all that there is, None where nobody knows."""


def counter(progress: Progress | None, total: int | None) -> Callable[[int], None]:
    """Adds up what it is called with, and tells the sum."""
    done = 0

    def add(count: int = 1) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return add
