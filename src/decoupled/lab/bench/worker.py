"""One contender in a process of its own: orders come as lines of JSON, answers go as lines of JSON.

A process for each keeps their thread pools and allocators apart, and makes the memory of each its own.
"""

import ctypes
import json
import os
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from decoupled.errors import DecoupledError
from decoupled.lab.bench.shapes import shape_named, texts, write_checkpoint

BEST = 10
"""Ids that a query returns: as many as people show."""


def main() -> None:
    """Answer until the input ends."""
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    state = State()
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(state, order.pop("do"))(**order)
        except DecoupledError as error:
            answer = {"failed": str(error)}
        except ImportError as error:
            answer = {"failed": f"{error.name or error} is not installed"}
        except Exception as error:  # a peer may fail in ways of its own: its cell says how
            answer = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class State:
    """What a worker has opened."""

    def __init__(self) -> None:
        self.contender: Any = None
        self.texts = texts(1)
        self.device = "cpu"
        self.base = 0
        """Bytes in memory once everything is loaded and compiled."""

    def open(
        self, contender: str, shape: str, count: int, work: str, threads: int, device: str
    ) -> dict[str, Any]:
        """Load a contender and let it rank one passage; says how long that took and what stays in memory."""
        from decoupled.lab.bench.contenders import open_contender

        self.device = device
        # torch obeys OMP_NUM_THREADS; it is not loaded for contenders that do without.
        os.environ["OMP_NUM_THREADS"] = str(threads)
        self.texts = texts(count)
        folder = Path(work)
        checkpoint = write_checkpoint(shape_named(shape), folder / shape)
        before, begun = memory_now(), time.perf_counter()
        self.contender = open_contender(
            contender, shape_named(shape), checkpoint, self.texts, folder, device
        )
        self._timed(0, 1)
        opened = round(time.perf_counter() - begun, 2)
        reset_peak(device)
        self.base = in_use(device)
        stays = memory_now() - before
        held = {"open_bytes": stays, "loaded_bytes": self.base}
        return {"open_s": opened, **held, **self.contender.facts}

    def first(self, count: int) -> dict[str, Any]:
        """The first query of that size: its time, the most that it added to what opening left, and in all."""
        reset_peak(self.device)
        milliseconds = self._timed(0, count)
        peak = peak_since(self.device)
        added = max(0, peak - self.base)
        return {"first_ms": milliseconds, "query_bytes": added, "peak_bytes": peak}

    def once(self, number: int, count: int) -> dict[str, Any]:
        """One query, end to end: text in, ranked ids out."""
        return {"ms": self._timed(number, count)}

    def stages(self, count: int) -> dict[str, Any]:
        """Where the time of a query goes; empty for contenders that do not know."""
        if self.contender.stages is None:
            return {}
        times = [self.contender.stages(q, count, BEST) for q in self.texts.queries[:3]]
        return {name: sorted(one[name] for one in times)[1] for name in times[0]}

    def _timed(self, number: int, count: int) -> float:
        query = self.texts.queries[number % len(self.texts.queries)]
        begun = time.perf_counter()
        ids = self.contender.rank(query, count, BEST)
        elapsed = (time.perf_counter() - begun) * 1e3
        if len(ids) != min(BEST, count):
            raise DecoupledError(f"{len(ids)} ids came back for {count} passages")
        return elapsed


# Memory where the work is done: of this process, or of the GPU that it uses -----------------------


def memory_now() -> int:
    """Bytes of this process in memory."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


def in_use(device: str) -> int:
    """Bytes in use where the work is done."""
    if device == "cpu":
        return memory_now()
    import torch

    return int(torch.cuda.memory_allocated())


def reset_peak(device: str) -> None:
    """Begin to look for the peak anew, where the system lets us."""
    if device != "cpu":
        import torch

        torch.cuda.reset_peak_memory_stats()
        return
    # What was freed goes back first, or the next query would seem to need nothing.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # where it cannot be reset, the peak is that since the start
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_since(device: str) -> int:
    """The most bytes in memory since `reset_peak`."""
    if device != "cpu":
        import torch

        return int(torch.cuda.max_memory_allocated())
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
