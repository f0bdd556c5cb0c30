"""Load on a live server: is every answer its own and right, how much is refused, does memory stay flat?

    python benchmarks/serve_load.py --clients 200 --seconds 60 --json benchmarks/results/serve_load.json

`decoupled serve` runs over the sample passages with the starter model, its cache of texts off. Requests are
of mixed sizes: sentences to score or rerank, stored passages by id, searches and questions. Every answer is
compared with what the engine says to the same request alone, to a float's last digits with `--runtime
openvino-fp32`; in int8 what is computed beside it moves a score a little. Clients are coroutines of one
process over keep-alive connections; they share the processor with the server. One client comes before and
after all of them; its wait beyond the engine's own time is the overhead of HTTP and batching.
"""

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

import numpy as np
import psutil

import decoupled as dc
from bench_report import percentiles
from decoupled.lab.script import options, write_report
from decoupled.search.starter import sample_passages, sample_questions

TOLERANCE = {"fp32": 2e-4, "int8": 0.05}
"""Batch mates change the last digits of a float; where states are rounded they change more."""
REFUSED = (429, 503)
SHAPES = {
    "list": ("index", "score"),
    "results": ("index", "relevance_score"),
    "data": ("index", "score"),
    "hits": ("id", "score"),
    "answers": ("text", "score"),
}
"""Where an answer holds its rows, and what names and scores them there."""
VENDORS = (
    ("/v2/rerank", "query", "documents"),
    ("/rerank", "query", "texts"),
    ("/score", "text_1", "text_2"),
)
"""Routes that score texts, and their words for a query and its texts."""


@dataclass(frozen=True)
class Call:
    """One request, as bytes, and the scores that it must get."""

    kind: str
    wire: bytes
    scores: dict[str, float]


@dataclass
class Tally:
    """What the clients of one phase saw; times in milliseconds."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    tolerance: float = 0.0
    largest: float = 0.0
    """Difference of a score that was taken as right."""
    waits: list[float] = field(default_factory=list)
    overheads: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "requests": self.statuses.total(),
            "statuses": {str(k): v for k, v in sorted(self.statuses.items())},
            "wrong": len(self.wrong),
            "largest_difference": round(self.largest, 5),
            "per_second": round(self.statuses[200] / self.seconds, 2),
            "latency": percentiles(self.waits),
        }


def main() -> None:
    """Run both phases and report."""
    args = options(
        __doc__, clients=200, seconds=60.0, single=20.0, calls=300, runtime="auto", seed=0
    )
    path = dc.open().index.path
    engine = dc.Engine(path, runtime=args.runtime)
    calls = workload(engine, args.calls, args.seed)
    precision, memory = engine.runtime.precision, []
    warm, one, many = (Tally(tolerance=TOLERANCE[precision]) for _ in range(3))
    with server(path, "--cache", "0", "--runtime", args.runtime) as (process, port):
        asyncio.run(phase(warm, port, calls[:32], clients=4, seconds=5))
        assert not warm.wrong, warm.wrong[:3]
        asyncio.run(phase(one, port, calls, clients=1, seconds=args.single / 2))
        Thread(target=watch, args=(process, memory), daemon=True).start()
        asyncio.run(phase(many, port, calls, clients=args.clients, seconds=args.seconds))
        resident, batches = list(memory), batch_sizes(port)
        asyncio.run(phase(one, port, calls, clients=1, seconds=args.single / 2))
    alone, together = one.to_json(), many.to_json()
    results = {
        "clients": args.clients,
        "precision": precision,
        "one_client": alone,
        "many_clients": together,
        "throughput_ratio": round(together["per_second"] / alone["per_second"], 3),
        "overhead_ms": {kind: percentiles(values) for kind, values in one.overheads.items()},
        "requests_per_batch": batches,
        "rss_mib": flatness(resident),
    }
    write_report(args, results)
    faults = set(many.statuses) - {200, *REFUSED}
    if many.wrong or one.wrong or faults:
        sys.exit(f"wrong answers: {[*one.wrong, *many.wrong][:3]}, faults: {dict(many.statuses)}")


# Requests -----------------------------------------------------------------------------------------


def workload(engine: dc.Engine, count: int, seed: int) -> list[Call]:
    """Requests in random order, with the answers of an engine that gets them one at a time."""
    draw = random.Random(seed)
    passages = list(sample_passages())
    sentences = [s.strip() for p in passages for s in p.text.split(". ") if 40 < len(s) < 200]
    questions = [q.question for q in sample_questions()]
    calls = []
    for number in range(count):
        query = f"{draw.choice(questions)} {draw.choice(('', 'please', 'exactly'))}".strip()
        turn = number % 10
        if turn < 7:
            texts = draw.sample(sentences, 10 if turn == 6 else draw.randint(1, 3))
            hits = engine.rerank(query, texts=texts)
            words = VENDORS[turn % 3]
            body = {words[1]: query, words[2]: texts}
            calls.append(Call("score", wire(words[0], body), {h.id: h.score for h in hits}))
        elif turn == 7:
            ids = [p.id for p in draw.sample(passages, 3)]
            scores = {str(ids.index(h.id)): h.score for h in engine.rerank(query, ids=ids)}
            body = {"query": query, "documents": [{"id": i} for i in ids]}
            calls.append(Call("by id", wire("/v2/rerank", body), scores))
        elif turn == 8:
            scores = {h.id: h.score for h in engine.search(query, 3, candidates=4)}
            body = {"query": query, "k": 3, "candidates": 4}
            calls.append(Call("search", wire("/v1/search", body), scores))
        else:
            texts = draw.sample(sentences, 2)
            scores = {a.text: a.score for a in engine.ask(query, 2, texts=texts)}
            body = {"question": query, "k": 2, "texts": texts}
            calls.append(Call("ask", wire("/v1/ask", body), scores))
    draw.shuffle(calls)
    return calls


def wire(route: str, body: dict[str, Any]) -> bytes:
    """The bytes of a POST."""
    content = json.dumps(body).encode()
    head = f"POST {route} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def scores_of(document: Any) -> dict[str, float]:
    """The scores of an answer, whichever shape it has, by what they belong to."""
    if isinstance(document, list):
        document = {"list": document}
    name = next(name for name in SHAPES if name in document)
    key, score = SHAPES[name]
    return {str(row[key]): row[score] for row in document[name]}


# Clients ------------------------------------------------------------------------------------------


async def phase(
    tally: Tally, port: int, calls: Sequence[Call], *, clients: int, seconds: float
) -> None:
    """So many clients, each sending its next request when it has the answer to the one before."""
    begun = time.perf_counter()
    turned = (calls[n % len(calls) :] + calls[: n % len(calls)] for n in range(clients))
    await asyncio.gather(*(client(port, mine, begun + seconds, tally) for mine in turned))
    tally.seconds += time.perf_counter() - begun


async def client(port: int, calls: Sequence[Call], until: float, tally: Tally) -> None:
    """One connection. Who is refused comes back a little later."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    for call in cycle(calls):
        if (begun := time.perf_counter()) >= until:
            break
        writer.write(call.wire)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        document = json.loads(await reader.readexactly(length))
        wait, status = (time.perf_counter() - begun) * 1e3, int(head.split()[1])
        tally.statuses[status] += 1
        if status != 200:
            await asyncio.sleep(0.25)
            continue
        tally.waits.append(wait)
        found = scores_of(document)
        gaps = [abs(found.get(name, np.inf) - score) for name, score in call.scores.items()]
        if len(found) != len(gaps) or max(gaps, default=0.0) > tally.tolerance:
            tally.wrong.append(f"{call.kind}: {found} instead of {call.scores}")
        else:
            tally.largest = max(tally.largest, *gaps, 0.0)
        if isinstance(document, dict) and "timing" in document:
            tally.overheads[call.kind].append(wait - document["timing"]["total_ms"])
    writer.close()


# The server ---------------------------------------------------------------------------------------


@contextmanager
def server(
    path: Path,
    *options: str,
    source: Path | None = None,
    command: Sequence[str] = (),
    ready_at: str = "ready",
) -> Iterator[tuple[int, int]]:
    """`decoupled serve`, ready: its process and its port. `source` is the `src` of another checkout.

    Or another server, started by `command`, that is ready when `ready_at` answers.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = (sys.executable, "-m", "decoupled", "serve", str(path))
    command = [*(command or own), "--port", str(port)]
    there = {**os.environ, "PYTHONPATH": str(source)} if source else None
    process = subprocess.Popen([*command, *options, "--log-level", "warning"], env=there)
    try:
        ready = False
        while not ready:
            assert process.poll() is None, "the server stopped"
            time.sleep(0.1)
            with suppress(OSError):
                ready = urlopen(f"http://127.0.0.1:{port}/{ready_at}", timeout=5).status == 200
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(60)


def batch_sizes(port: int) -> float:
    """Mean number of requests that were computed together, over the whole run."""
    text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    name = 'decoupled_batch_size_{}{{queue="read"}}'
    return round(float(values[name.format("sum")]) / float(values[name.format("count")]), 2)


def watch(pid: int, memory: list[int]) -> None:
    """The server's resident memory, every second, in bytes."""
    with suppress(psutil.NoSuchProcess):
        while True:
            memory.append(psutil.Process(pid).memory_info().rss)
            time.sleep(1)


def flatness(memory: Sequence[int]) -> dict[str, Any]:
    """Memory over time, and the growth from the second quarter to the last."""
    values = np.array(memory) / 2**20
    quarter = max(1, len(values) // 4)
    growth = np.median(values[-quarter:]) - np.median(values[quarter : 2 * quarter])
    seconds = [round(float(v), 1) for v in values]
    return {"each_second": seconds, "growth_second_to_last_quarter": round(float(growth), 1)}


if __name__ == "__main__":
    main()
