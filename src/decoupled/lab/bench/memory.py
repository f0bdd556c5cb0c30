"""Memory where the work is done: of this process, or of the GPU that it uses."""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress
from pathlib import Path


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
