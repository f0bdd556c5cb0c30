"""How long do small requests take beside the server of another checkout, both over one index?

    python benchmarks/serve_latency.py --other ../before --json benchmarks/results/serve_latency.json

Two servers of one machine, a keep-alive connection to each, requests in turns. The index is made by the
other checkout with its model, so that both compute the same. Texts come again, so they lie in the cache of
texts, and what remains is HTTP, checking, queueing and the cross component.
"""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench_report import options, percentiles, write_report
from decoupled.lab.bench.report import commit
from decoupled.search.starter import sample_passages
from serve_load import server


def main() -> None:
    """Time both, print and write the medians."""
    args = options(__doc__, other=Path, rounds=300)
    passages = [passage.text for passage in sample_passages()][:200]
    with tempfile.TemporaryDirectory() as work:
        write_report(args, race(Path(work), passages, args.other.resolve(), args.rounds))


def race(work: Path, passages: list[str], other: Path, rounds: int) -> dict[str, Any]:
    """Both servers on each kind of request, in turns."""
    (work / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in passages))
    build = [sys.executable, "-m", "decoupled", "index", str(work / "texts.jsonl")]
    source = other / "src"
    there = {**os.environ, "PYTHONPATH": str(source)}
    subprocess.run([*build, "-o", str(work / "idx")], env=there, check=True, capture_output=True)
    before, now = commit(other), commit()
    times: dict[str, dict[str, Any]] = {}
    with server(work / "idx", source=source) as (_, old), server(work / "idx") as (_, new):
        lines = {"before": connect(old), "now": connect(new)}
        for name, (path, body) in requests(passages).items():
            waits: dict[str, list[float]] = {side: [] for side in lines}
            for turn in range(rounds + 20):
                for side in sorted(lines, reverse=bool(turn % 2)):
                    waits[side].append(once(lines[side], path, body))
            spent = {side: np.array(of[20:]) for side, of in waits.items()}
            times[name] = {side: percentiles(of) for side, of in spent.items()}
            times[name]["difference_p50_ms"] = float(
                round(np.median(spent["now"] - spent["before"]), 3)
            )
    return {"before": before, "now": now, "rounds": rounds, "load": os.getloadavg()[0], **times}


def connect(port: int) -> http.client.HTTPConnection:
    """A connection that stays."""
    return http.client.HTTPConnection("127.0.0.1", port)


def requests(passages: list[str]) -> dict[str, tuple[str, bytes]]:
    """Small bodies, and one of fifty passages, by name."""
    short = [text[:80] for text in passages]
    bodies: dict[str, tuple[str, Any]] = {
        "/rerank, 1 text": ("/rerank", {"query": "river", "texts": short[:1]}),
        "/rerank, 3 texts": ("/rerank", {"query": "river", "texts": short[:3]}),
        "/rerank, 10 texts": ("/rerank", {"query": "river", "texts": short[:10]}),
        "/v2/rerank, 3 texts": ("/v2/rerank", {"query": "river", "documents": short[:3]}),
        "/rerank, 50 passages": ("/rerank", {"query": "river", "texts": passages[:50]}),
    }
    return {name: (path, json.dumps(body).encode()) for name, (path, body) in bodies.items()}


def once(line: http.client.HTTPConnection, path: str, body: bytes) -> float:
    """Milliseconds from the request to the whole answer."""
    begun = time.perf_counter()
    line.request("POST", path, body, {"content-type": "application/json"})
    reply = line.getresponse()
    text = reply.read()
    took = (time.perf_counter() - begun) * 1e3
    assert reply.status == 200, text[:200]
    return took


if __name__ == "__main__":
    main()
