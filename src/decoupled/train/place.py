"""The lines of a run: what counts its preparations, and where it is in words."""

import time
from collections import deque
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


class TimeLeft:
    """The time that a job will still take, by the rate of its last reports."""

    def __init__(self) -> None:
        self._reports = deque([(time.monotonic(), 0)], 50)

    def __call__(self, done: int, total: int | None) -> str:
        """Words to stand behind a count, such as `, 0:01:20 left`; empty where nothing is known yet."""
        self._reports.append((time.monotonic(), done))
        (since, before), (now, _) = self._reports[0], self._reports[-1]
        if not total or not before < done < total:
            return ""
        seconds = (total - done) * (now - since) / (done - before)
        return f", {timedelta(seconds=round(seconds))} left"


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
