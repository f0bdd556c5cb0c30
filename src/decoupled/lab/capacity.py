"""How many machines an index needs: a few rates of this one, and arithmetic to check by hand."""

from __future__ import annotations

import math
import timeit
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decoupled.errors import InputError, OptionError
from decoupled.index.encode import encode_texts
from decoupled.index.manifest import check_storable, codec_name, source_of
from decoupled.measure.counts import work
from decoupled.model.codec import fit_codec
from decoupled.model.folder import read_tensors, starter_model
from decoupled.model.jsonable import JsonObject
from decoupled.model.tokens import Ids
from decoupled.runtime.base import Runtime
from decoupled.runtime.open import open_runtime
from decoupled.search import cross

if TYPE_CHECKING:
    from decoupled.model.model import Model

RETRIEVE_MS = {10_000: 1.5, 100_000: 7.8, 1_000_000: 13.7}
"""Hybrid first stage by passages, p50 on 2 cores (benchmarks/results/query_latency.json)."""
TABLE_BYTES, SEARCH_BYTES = 700, 600
"""Of each passage: text, offsets and metadata; the inverted index (benchmarks/results/index_bytes.json)."""
LOCATOR_BYTES = 44
"""Of each passage in the memory of each process: where its states lie 20, its key twice 24."""
FETCH_MS, OVERHEAD_MS = 2.0, 14.0
"""Reading 100 records from a disk; a query to shards and back (benchmarks/results/cluster_serve.json)."""
BUSY = 0.7
"""Share of the time that a process may be busy before queues grow."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is asked for."""

    passages: int
    tokens: int = 150
    """Of a passage."""
    codec: str = "int8"
    candidates: int = 100
    queries_per_second: float = 1.0
    latency_ms: float = 1000.0
    workers: int = 1
    """Processes that build."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, str) and value <= 0:
                raise InputError(f"{name} is {value}; expected more than 0")


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What one process of this machine does, measured."""

    runtime: str
    encode_per_s: float
    """Passages of the wanted length, encoded and compressed."""
    query_ms: float
    """Encoding a query."""
    pair_ms: float
    """The cross component on one candidate."""
    bytes_per_token: int
    vector_width: int
    model_bytes: int
    pair_macs: int = 0
    """Multiply-adds of the cross component on one candidate."""


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What it takes."""

    state_bytes: int
    catalogue_bytes: int
    build_worker_hours: float
    build_hours: float
    shards: int
    replicas: int
    """Of each shard."""
    memory_bytes_per_process: int
    """Without the page cache, which holds the search index and whatever states fit."""
    retrieve_ms: float
    query_ms: float
    """One query on an idle cluster of so many shards."""
    one_process_ms: float
    processes: int
    """Processes that serve."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What is asked for, what this machine does, and what follows from both."""

    workload: Workload
    rates: Rates
    capacity: Capacity

    @property
    def assumptions(self) -> list[str]:
        """What the plan takes for granted."""
        measured = ", ".join(f"{ms} ms at {size:,}" for size, ms in RETRIEVE_MS.items())
        if self.workload.passages > max(RETRIEVE_MS):
            measured += "; beyond that the growth of the last decade goes on, which nobody measured"
        return [
            "encoding, scoring and query rates: measured now, in this process, with all its threads",
            f"first stage: {measured}",
            f"a process is busy {BUSY:.0%} of the time; a query to shards costs {OVERHEAD_MS:g} ms more",
        ]

    def to_json(self) -> JsonObject:
        """Plain values."""
        return {
            "need": asdict(self.workload),
            "rates": asdict(self.rates),
            "plan": asdict(self.capacity),
            "assumptions": self.assumptions,
        }

    def warnings(self) -> list[str]:
        """What was asked for and cannot be had."""
        least, limit = self.capacity.query_ms, self.workload.latency_ms
        late = f"{limit:g} ms cannot be reached: {least:.0f} ms is the least; allow more time"
        return [late] if least > limit else []

    def described(self) -> dict[str, str]:
        """The plan in words, by what it is about."""
        need, rates, plan = self.workload, self.rates, self.capacity
        scoring = need.candidates * rates.pair_ms
        return {
            "passages": f"{need.passages:,} of {need.tokens} tokens",
            "states on disk": f"{plan.state_bytes / 1e9:,.1f} GB as {need.codec}",
            "a candidate": f"{need.tokens * rates.bytes_per_token:,} bytes, "
            f"{rates.pair_macs / 1e6:,.1f} million multiply-adds",
            "text and search index": f"{plan.catalogue_bytes / 1e9:,.1f} GB",
            "build": f"{plan.build_hours:,.1f} hours with {need.workers} workers ({rates.runtime})",
            "shards": f"{plan.shards} of {plan.replicas} replicas: {plan.processes} processes",
            "memory of a process": f"{plan.memory_bytes_per_process / 1e9:,.2f} GB",
            "a query": f"{plan.query_ms:,.0f} ms; {plan.one_process_ms:,.0f} ms in one process "
            f"(first stage {plan.retrieve_ms:.0f}, scoring {scoring:,.0f})",
        }


def plan(
    passages: int | str,
    *,
    tokens: int = 150,
    codec: str | None = None,
    rate: float = 1.0,
    latency: float = 1000.0,
    candidates: int = 100,
    workers: int = 1,
    model: str | Path | Model | None = None,
) -> Planned:
    """How many shards, how much disk, memory and time an index of so many passages needs; takes seconds.

    Passages may be written as `3M`. The codec is by default the model's own, as for an index. `rate` are
    queries per second, `latency` the milliseconds that one may take, `workers` processes that build.
    """
    source = source_of(starter_model() if model is None else model)
    runtime = open_runtime(source)
    check_storable(runtime.spec)
    codec = codec_name(codec or runtime.spec.codec, runtime.spec)
    need = Workload(
        passages=count_of(passages) if isinstance(passages, str) else passages,
        tokens=tokens,
        codec=codec,
        candidates=candidates,
        queries_per_second=rate,
        latency_ms=latency,
        workers=workers,
    )
    tensors = read_tensors(source) if isinstance(source, Path) else source.tensors()
    model_bytes = 4 * sum(tensor.size for tensor in tensors.values())
    rates = measure(runtime, codec, tokens=tokens, model_bytes=model_bytes)
    return Planned(workload=need, rates=rates, capacity=estimate(need, rates))


def count_of(text: str) -> int:
    """A number of passages: `250000`, `3M`, `1.5B`."""
    try:
        # 3M is 3e6.
        return round(float(text.lower().translate({107: "e3", 109: "e6", 98: "e9"})))
    except (ValueError, OverflowError):
        raise OptionError(
            "passages", f"is {text!r}; write a number such as 250000, 3M or 1.5B"
        ) from None


def estimate(workload: Workload, rates: Rates) -> Capacity:
    """The arithmetic. Every shard searches the whole index; scoring alone is divided among them."""
    per_passage = TABLE_BYTES + SEARCH_BYTES + 2 * rates.vector_width
    worker_hours = workload.passages / rates.encode_per_s / 3600
    retrieve = retrieve_ms(workload.passages)
    alone = rates.query_ms + retrieve + FETCH_MS
    scoring = workload.candidates * rates.pair_ms
    shards = 1
    if alone + scoring > workload.latency_ms:
        room = max(workload.latency_ms - alone - OVERHEAD_MS, rates.pair_ms)
        shards = min(workload.candidates, math.ceil(scoring / room))
    busy_ms = alone + scoring / shards
    query_ms = busy_ms + (OVERHEAD_MS if shards > 1 else 0.0)
    replicas = math.ceil(workload.queries_per_second * busy_ms / 1e3 / BUSY)
    return Capacity(
        state_bytes=workload.passages * workload.tokens * rates.bytes_per_token,
        catalogue_bytes=workload.passages * per_passage,
        build_worker_hours=worker_hours,
        build_hours=worker_hours / workload.workers,
        shards=shards,
        replicas=replicas,
        memory_bytes_per_process=rates.model_bytes + LOCATOR_BYTES * workload.passages,
        retrieve_ms=retrieve,
        query_ms=query_ms,
        one_process_ms=alone + scoring,
        processes=shards * replicas,
    )


def retrieve_ms(passages: int) -> float:
    """The first stage, on the line through the measured points where both axes are logarithmic."""
    sizes, times = np.log(list(RETRIEVE_MS)), np.log(list(RETRIEVE_MS.values()))
    beyond = max(0.0, math.log(passages) - sizes[-1])
    slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
    return float(np.exp(np.interp(math.log(passages), sizes, times) + slope * beyond))


def measure(runtime: Runtime, codec: str, *, tokens: int, model_bytes: int, seed: int = 0) -> Rates:
    """The rates of this process, on random tokens of the wanted number; takes seconds."""
    limit = runtime.spec.text.passage_tokens
    if tokens > limit:
        raise InputError(
            f"{tokens} tokens a passage; the model reads {limit} at once: plan with those"
        )
    draw = np.random.default_rng(seed)

    def texts(count: int, length: int) -> list[Ids]:
        vocab = runtime.spec.encoder.embedding.vocab
        return [draw.integers(0, vocab, length).astype(np.int32) for _ in range(count)]

    passages, queries = texts(32, tokens), texts(1, 12)
    states = encode_texts(runtime, "passage", passages).states
    query = encode_texts(runtime, "query", queries).states
    fitted = fit_codec(codec_name(codec, runtime.spec), states)
    encoded, heads = fitted.encode(states), (runtime.spec.heads[0].kind,)
    build_s = _best(lambda: fitted.encode(encode_texts(runtime, "passage", passages).states))
    query_s = _best(lambda: encode_texts(runtime, "query", queries))
    # Decoding counts, since every query decodes its candidates.
    cross_s = _best(lambda: cross.score(runtime, query, fitted.decode(encoded), heads))
    return Rates(
        runtime=runtime.name,
        encode_per_s=len(passages) / build_s,
        query_ms=1e3 * query_s,
        pair_ms=1e3 * cross_s / len(states),
        bytes_per_token=fitted.bytes_per_token,
        vector_width=runtime.spec.vector_width,
        model_bytes=model_bytes,
        pair_macs=work(runtime.spec, query=12, passage=tokens).cross,
    )


def _best(work: Callable[[], Any]) -> float:
    """Seconds of the quickest of a few runs, after one that does not count."""
    work()
    return min(timeit.repeat(work, number=1, repeat=3))
