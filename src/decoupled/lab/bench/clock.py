"""Time and memory where the work is done: of this process, or of the GPU that it uses."""

from __future__ import annotations

import ctypes
import resource
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np


class Clock:
    """Times alternatives in turns, on the wall and on the device; on a CPU both are the wall."""

    def __init__(self, device: str) -> None:
        self.device = device

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize(self.device)

    def once(self, run: Callable[[], Any]) -> tuple[float, float]:
        """Milliseconds of one run: on the device, and on the wall."""
        self.wait()
        begun = time.perf_counter()
        if self.device == "cpu":
            run()
            wall = (time.perf_counter() - begun) * 1e3
            return wall, wall
        import torch

        event: Any = torch.cuda.Event
        first, last = (event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        self.wait()
        wall = (time.perf_counter() - begun) * 1e3
        return float(first.elapsed_time(last)), wall

    def compare(
        self, runs: Mapping[str, Callable[[], Any]], *, rounds: int, warm: int = 3
    ) -> dict[str, dict[str, float]]:
        """Every run in turn, round after round: medians, and the 95th percentile of the wall."""
        for run in runs.values():
            for _ in range(warm):
                run()
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                times[name].append(self.once(run))
        found = {}
        for name, pairs in times.items():
            device, wall = np.asarray(pairs).T
            found[name] = {
                "device_ms": round(float(np.median(device)), 4),
                "wall_ms": round(float(np.median(wall)), 4),
                "wall_p95_ms": round(float(np.percentile(wall, 95)), 4),
                "n": rounds,
            }
        return found


# Memory -------------------------------------------------------------------------------------------


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
