"""How far speed is from what arithmetic, bytes and cores allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from results import Table, read

READ, QUERY, PASSAGE = 7, 20, 150
"""Passages that `ask` of the starter reads of a hundred, and tokens of both sides."""
WIDTH, FFN, LAYERS = 384, 1536, 3
"""Of its cross component."""


def floors() -> Table:
    header = ("figure", "measured", "at best", "times", "<which is")
    return header, [
        (name, f"{got:,.{places}f}", f"{least:,.{places}f}", f"{max(got, least) / min(got, least):.1f}", why)
        for name, got, least, places, why in (*_cpu(), *_gpu(), *_index())
    ]  # fmt: skip


def _cpu() -> Iterator[tuple[Any, ...]]:
    core = read("bench_cpu.json")["ceiling"]["int8"] / 2
    rows = READ * (QUERY + PASSAGE)
    layer = 2 * (4 * WIDTH**2 + 2 * WIDTH * FFN) + 4 * WIDTH * (QUERY + PASSAGE)
    least = rows * LAYERS * layer / core / 1e6
    spent = read("cpu_ask.json")["processor_ms"]["split"]
    yield (
        "`ask` of the starter, 100 candidates, processor ms",
        spent,
        least,
        0,
        f"the products of {READ} passages in the fastest int8 of the machine",
    )


def _gpu() -> Iterator[tuple[Any, ...]]:
    of = read("gpu_rerank.json")
    found = _narrow(of)
    for kind in of["clients"]:
        what = "products and bytes at the best of the machine"
        yield (
            f"H200, rerank 1,000, {kind}, ms",
            found[f"rerank 1000 {kind}"]["wall_ms"],
            _least(of, kind),
            2,
            what,
        )
    for kind, many in of["clients"].items():
        name = f"H200, queries a second of 128 clients, {kind}"
        yield (
            name,
            many["128"]["per_second"],
            1e4 / _least(of, kind),
            0,
            "products of 100 candidates each",
        )


def _least(of: Mapping[str, Any], kind: str) -> float:
    """Milliseconds of the arithmetic of 1,000 candidates."""
    return float(_narrow(of)[f"cross 1000 {kind}"]["floor_ms"])


def _narrow(of: Mapping[str, Any]) -> Mapping[str, Any]:
    """BERT-base with codes of a quarter of its width."""
    return next(one for name, one in of["BERT-base"].items() if name.startswith("project"))


def clients() -> Table:
    of = read("gpu_rerank.json")["clients"]
    counts = list(next(iter(of.values())))
    return ("queries a second, of so many clients", *counts), [
        (kind, *(f"{many[n]['per_second']:,.0f}" for n in counts)) for kind, many in of.items()
    ]


def _index() -> Iterator[tuple[Any, ...]]:
    sizes = read("query_latency.json")["sizes"]
    least, *_, most = (sizes[n]["search hybrid"]["p50_ms"] for n in sizes)
    yield "whole `search` of a million passages, ms", most, least, 0, "that of 10,000 passages"
    least, _, most = (sizes[n]["served_rss_mib"] * 2**20 / 1e6 for n in sizes)
    yield "MB of a server of a million passages", most, least, 0, "that of 10,000 passages"


FLOORS = (floors, clients)
