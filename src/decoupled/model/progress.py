"""Progress of work that takes a while: how much is done, and of how much, told to whoever watches."""

from collections.abc import Callable

Progress = Callable[[int, int | None], None]
"""Called with the amount that is done and the total; the total is None where nobody knows it."""


def counter(progress: Progress | None, total: int | None) -> Callable[[int], None]:
    """A function that adds up the counts it is called with and reports the sum to `progress`."""
    done = 0

    def add(count: int = 1) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return add
