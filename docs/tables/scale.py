"""The tables of docs/scale.md: a cluster on one machine, and Wikipedia on paper."""

from __future__ import annotations

from typing import Any

from results import Table, read

SIZES = ("10000", "100000", "1000000")


def cluster() -> Table:
    kill, rate, serve = (read(f"cluster_{name}.json") for name in ("kill", "rate", "serve"))
    marks = " and at ".join(f"{one['added']:,}" for one in kill["killed"])
    alone, worker = (max(rate[f"{name}_per_cpu_second"]) for name in ("one_process", "worker"))
    over, asked = serve["overhead"], f"{serve['queries']} queries over {serve['passages']} passages"
    rows = [
        (
            f"{kill['passages']:,} passages of 12 words, {kill['workers']} Ray workers, a worker killed at {marks}",
            f"{kill['compared']:,} records compared with a build in one process, {kill['different']} differ",
            "`cluster.py kill`",
        ),
        (
            "passages per processor second, bundled model, one thread",
            f"one process {alone:.0f}, a worker {worker:.0f}",
            "`cluster.py rate`",
        ),
        (
            f"{asked}, {serve['candidates']} candidates, {serve['shards']} shards against one process",
            f"{serve['different_rankings']} rankings differ, ties aside (1e-4)",
            "`cluster.py serve`",
        ),
        (
            "the fan-out itself: time of a query less that of its slowest shard",
            f"p50 {over['p50_ms']:.1f} ms, p95 {over['p95_ms']:.1f} ms",
            "`cluster.py serve`",
        ),
        (
            "the whole query",
            f"p50 {serve['fleet']['p50_ms']:.0f} ms, {serve['one_process']['p50_ms']:.0f} in one process",
            "`cluster.py serve`",
        ),
        (
            f"a shard killed, time limit {serve['limit_s']:g} s",
            f"{serve['partial_answers']} partial, the slowest after {serve['slowest_partial_s']} s, "
            f"whole answers again after {serve['whole_again_after_s']} s",
            "`cluster.py serve`",
        ),
    ]
    return ("what", "<result", "<command"), rows


def wikipedia() -> Table:
    sizes, seen, plan = (
        read("query_latency.json")["sizes"],
        read("scale_simulation.json"),
        read("plan_32m.json")["plan"],
    )

    def each(digits: int, what: str) -> list[str]:
        return [f"{sizes[size][what]['p50_ms']:.{digits}f} ms" for size in SIZES]

    def row(what: str, left: Any = ("", "", ""), simulated: str = "", paper: str = "") -> Any:
        return (what, *left, simulated, paper)

    states, rest = (plan[f"{name}_bytes"] / 1e9 for name in ("state", "catalogue"))
    parts = f"{plan['shards']} shards of {plan['replicas']} replicas, {plan['processes']} processes"
    rows = [
        row(
            "index on disk",
            [f"{sizes[size]['bytes'] / 1e9:.2g} GB" for size in SIZES],
            paper=f"{states:.0f} GB of states, {rest:.0f} GB of text and search index",
        ),
        row(
            "open",
            [f"{sizes[size]['open_ms']:.0f} ms" for size in SIZES],
            f"{seen['open_ms']:.0f} ms",
        ),
        row("count the passages", simulated=f"{seen['count_ms']:.0f} ms"),
        row("first stage, hybrid, p50", each(1, "hybrid"), paper=f"{plan['retrieve_ms']:.0f} ms"),
        row(
            "fetch 100 records, warm",
            each(1, "fetch"),
            f"{seen['fetch_100']['p50_ms']:.1f} ms",
        ),
        row(
            "load where all states lie, once",
            simulated=f"{seen['where_all_states_lie_ms'] / 1e3:.1f} s, "
            f"{seen['where_all_states_lie_mib'] / 1024:.1f} GiB at the peak",
        ),
        row(
            "find the first id, then another",
            simulated=f"{seen['find_an_id_ms'] / 1e3:.1f} s, then {seen['find_an_id_again_ms']:.0f} ms",
        ),
        row("build", paper=f"{plan['build_worker_hours']:.0f} worker hours"),
        row(
            "a query, 100 candidates",
            each(0, "search hybrid"),
            paper=f"{plan['one_process_ms'] / 1e3:.2f} s in one process; {plan['query_ms'] / 1e3:.2f} s on "
            f"{parts} of {plan['memory_bytes_per_process'] / 1e9:.1f} GB",
        ),
    ]
    return ("", "10,000", "100,000", "1,000,000", "32 M simulated", "32 M on paper"), rows


SCALE = (cluster, wikipedia)
