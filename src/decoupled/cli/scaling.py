"""`plan`: what an index of some size takes to build, to keep and to serve."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoupled.cli import printing
from decoupled.errors import InputError

if TYPE_CHECKING:
    from decoupled.model.model import Model
    from decoupled.serve.cluster.capacity import Capacity, Rates, Workload


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(plan)


def plan(
    passages: Annotated[str, typer.Option(help="How many: 250000, 3M, 1.5B.")],
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a passage.")] = 150,
    codec: Annotated[str, typer.Option(help="How states are stored, as for `index`.")] = "int8",
    rate: Annotated[float, typer.Option(help="Queries per second.")] = 1.0,
    latency: Annotated[float, typer.Option(help="Milliseconds that a query may take.")] = 1000.0,
    candidates: Annotated[int, typer.Option(min=1, help="Records that a query scores.")] = 100,
    workers: Annotated[int, typer.Option(min=1, help="Processes that build.")] = 1,
    model: Annotated[str | None, typer.Option(help="Model; the bundled one if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say how many shards, how much disk, memory and time an index needs, by rates of this machine."""
    from decoupled.index.manifest import check_storable, source_of
    from decoupled.model.folder import starter_model
    from decoupled.runtime.open import open_runtime
    from decoupled.serve.cluster import capacity

    need = capacity.Workload(
        passages=count_of(passages),
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
    rates = capacity.measure(runtime, codec, tokens=tokens, model_bytes=bytes_of(source))
    found = capacity.estimate(need, rates)
    assumed = capacity.assumptions(need)
    if as_json:
        printing.document(
            {
                "need": asdict(need),
                "rates": asdict(rates),
                "plan": found.to_json(),
                "assumptions": assumed,
            }
        )
        return
    show_plan(need, rates, found)
    for line in assumed:
        printing.note(f"assumed: {line}")


def bytes_of(source: Model | Path) -> int:
    """What the weights of a model take in memory."""
    if isinstance(source, Path):
        from decoupled.model.folder import read_tensors

        return 4 * sum(tensor.size for tensor in read_tensors(source).values())
    return 4 * sum(tensor.numel() for tensor in source.net.state_dict().values())


def count_of(text: str) -> int:
    """A number of passages: `250000`, `3M`, `1.5B`."""
    found = re.fullmatch(r"\s*(\d[\d_,]*(?:\.\d+)?)\s*([kKmMbB]?)\s*", text)
    if found is None:
        raise InputError(f"--passages is {text!r}; write a number such as 250000, 3M or 1.5B")
    unit = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}[found[2].lower()]
    return round(float(found[1].replace(",", "").replace("_", "")) * unit)


def show_plan(need: Workload, rates: Rates, found: Capacity) -> None:
    """Needs, measured rates and what follows, for people."""
    if not found.reachable:
        printing.note(
            f"warning: {need.latency_ms:g} ms cannot be reached: {found.query_ms:.0f} ms is the least "
            f"({found.floor_ms:.0f} ms pass before the first candidate is scored); allow more time"
        )
    printing.facts(
        [
            ("passages", f"{need.passages:,} of {need.tokens} tokens"),
            ("states on disk", f"{found.state_bytes / 1e9:,.1f} GB as {need.codec}"),
            ("text and search index", f"{found.catalogue_bytes / 1e9:,.1f} GB"),
            (
                "build",
                f"{found.build_hours:,.1f} hours with {need.workers} workers "
                f"({rates.encode_per_s:,.0f} passages/s each, {rates.runtime})",
            ),
            ("shards", f"{found.shards} of {found.replicas} replicas: {found.processes} processes"),
            ("memory of a process", f"{found.memory_bytes_per_process / 1e9:,.2f} GB"),
            (
                "a query",
                f"{found.query_ms:,.0f} ms; {found.one_process_ms:,.0f} ms in one process "
                f"(first stage {found.retrieve_ms:.0f}, scoring "
                f"{need.candidates * rates.pair_ms:,.0f})",
            ),
        ]
    )
