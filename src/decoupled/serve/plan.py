"""`plan`: what an index of some size takes to build, to keep and to serve, by rates of this machine."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoupled.errors import OptionError
from decoupled.index.manifest import check_storable, source_of
from decoupled.model.folder import read_tensors, starter_model
from decoupled.runtime.open import open_runtime
from decoupled.serve.cluster.capacity import (
    Capacity,
    Rates,
    Workload,
    assumptions,
    estimate,
    measure,
)

if TYPE_CHECKING:
    from decoupled.model.model import Model


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What is asked for, what this machine does, and what follows from both."""

    workload: Workload
    rates: Rates
    capacity: Capacity
    assumptions: list[str]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "need": asdict(self.workload),
            "rates": asdict(self.rates),
            "plan": self.capacity.to_json(),
            "assumptions": self.assumptions,
        }


def plan(
    passages: int | str,
    *,
    tokens: int = 150,
    codec: str = "int8",
    rate: float = 1.0,
    latency: float = 1000.0,
    candidates: int = 100,
    workers: int = 1,
    model: str | Path | Model | None = None,
) -> Planned:
    """How many shards, how much disk, memory and time an index of so many passages needs; takes seconds.

    Passages may be written as `3M`. `rate` are queries per second, `latency` the milliseconds that one may
    take, `workers` processes that
    build.
    """
    workload = Workload(
        passages=count_of(passages) if isinstance(passages, str) else passages,
        tokens=tokens,
        codec=codec,
        candidates=candidates,
        queries_per_second=rate,
        latency_ms=latency,
        workers=workers,
    )
    source = source_of(starter_model() if model is None else model)
    runtime = open_runtime(source)
    check_storable(runtime.spec)
    rates = measure(runtime, codec, tokens=tokens, model_bytes=_bytes(source))
    return Planned(
        workload=workload,
        rates=rates,
        capacity=estimate(workload, rates),
        assumptions=assumptions(workload),
    )


def count_of(text: str) -> int:
    """A number of passages: `250000`, `3M`, `1.5B`."""
    match = re.fullmatch(r"\s*(\d[\d_,]*(?:\.\d+)?)\s*([kKmMbB]?)\s*", text)
    if match is None:
        raise OptionError(f"--passages is {text!r}; write a number such as 250000, 3M or 1.5B")
    unit = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}[match[2].lower()]
    return round(float(match[1].replace(",", "").replace("_", "")) * unit)


def _bytes(source: Model | Path) -> int:
    """What the weights of a model take in memory."""
    if isinstance(source, Path):
        return 4 * sum(tensor.size for tensor in read_tensors(source).values())
    return 4 * sum(tensor.numel() for tensor in source.net.state_dict().values())
