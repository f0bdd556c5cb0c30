"""The lines of a run: what counts its preparations, and where it is in words."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

Line = dict[str, Any]
"""A line of the log: phase, step and total, seconds, and perhaps losses, rate and score by name."""
Progress = Callable[[Line], None]
Count = Callable[[int, int | None], None]
"""Called with the amount that is done, and the total where it is known."""


def counted(phase: str, progress: Progress | None) -> Count:
    """A counter for work before training, which reports lines like those of training."""
    started = time.perf_counter()

    def count(done: int, total: int | None) -> None:
        if progress is not None:
            seconds = round(time.perf_counter() - started, 3)
            progress({"phase": phase, "step": done, "total": total, "seconds": seconds})

    return count


class LogPosition:
    """The last line of a log, with the latest loss and score."""

    def __init__(self) -> None:
        self._last: Line = {}
        self._before = ""

    def __str__(self) -> str:
        if not self._last:
            return "before the first step was logged"
        if self._last["total"] is None:
            return f"while {self._last['phase']} was looking at the data"
        return f"at step {self._last['step']} of {self._last['total']}"

    def reach(self, line: Line, run: str = "") -> str:
        """Go on to a line of a run, and describe it: steps, loss, score, rate and time left."""
        # A new run or phase starts afresh: its first lines have no loss or score yet.
        if run != self._before or line["phase"] != self._last.get("phase", line["phase"]):
            self._last, self._before = {}, run
        self._last |= line
        step, total, seconds = line["step"], line["total"], line["seconds"]
        parts = [f"{step:,} pairs looked at" if total is None else f"{step}/{total}"]
        parts += [f"{n} {self._last[n]:.3f}" for n in ("loss", "tune") if n in self._last]
        if seconds and total is None:
            parts += [f"{step / seconds:.1f} pairs/s"]
        elif seconds:
            left = timedelta(seconds=round((total - step) * seconds / max(step, 1)))
            parts += [f"{step / seconds:.1f} steps/s", f"{left} left"]
        return ", ".join(parts)
