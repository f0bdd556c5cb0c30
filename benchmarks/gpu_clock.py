"""Time on a device: events and the wall clock, interleaved repetitions, medians; peak memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch


class Clock:
    """Measures on one device; on a CPU the wall clock stands for the events."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"

    def wait(self) -> None:
        """Until the device has done all it was given."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def once(self, work: Callable[[], Any]) -> tuple[float, float]:
        """Milliseconds of one run: on the device, and on the wall."""
        self.wait()
        begun = time.perf_counter()
        if not self.cuda:
            work()
            wall = (time.perf_counter() - begun) * 1e3
            return wall, wall
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        self.wait()
        wall = (time.perf_counter() - begun) * 1e3
        return first.elapsed_time(last), wall

    def compare(
        self, works: Mapping[str, Callable[[], Any]], *, rounds: int, warm: int = 3
    ) -> dict[str, dict[str, float]]:
        """Every work in turn, round after round; medians and 95th percentiles."""
        for work in works.values():
            for _ in range(warm):
                work()
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
        for _ in range(rounds):
            for name, work in works.items():
                times[name].append(self.once(work))
        return {name: summary(found) for name, found in times.items()}

    def peak(self, make: Callable[[], Any], use: Callable[[Any], Any]) -> dict[str, float] | None:
        """Megabytes that a thing made and used takes at most, and those it holds at rest."""
        if not self.cuda:
            use(make())
            return None
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(self.device)
        thing = make()
        use(thing)
        self.wait()
        torch.cuda.reset_peak_memory_stats(self.device)
        rest = torch.cuda.memory_allocated(self.device) - before
        use(thing)
        self.wait()
        peak = torch.cuda.max_memory_allocated(self.device) - before
        return {"peak_mb": round(peak / 2**20, 1), "at_rest_mb": round(rest / 2**20, 1)}


def summary(times: list[tuple[float, float]]) -> dict[str, float]:
    """Medians of both clocks, and how far the slow runs lie."""
    device, wall = np.asarray(times).T
    return {
        "device_ms": round(float(np.median(device)), 4),
        "wall_ms": round(float(np.median(wall)), 4),
        "wall_p95_ms": round(float(np.percentile(wall, 95)), 4),
        "n": len(times),
    }


def ceilings(clock: Clock, *, size: int) -> dict[str, float]:
    """What the device reaches at best: bf16 matrix products on random data, and copies."""
    a, b = (torch.randn(size, size, device=clock.device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.empty(size * size * 16, dtype=torch.bfloat16, device=clock.device).normal_()
    target = torch.empty_like(source)
    found = clock.compare(
        {"product": lambda: torch.mm(a, b), "copy": lambda: target.copy_(source)}, rounds=20
    )
    product, copy = found["product"]["device_ms"], found["copy"]["device_ms"]
    return {
        "tflops": round(2 * size**3 / product / 1e9, 3),
        "copy_gb_s": round(2 * source.numel() * 2 / copy / 1e6, 1),
    }
