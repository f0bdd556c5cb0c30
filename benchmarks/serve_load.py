"""Load on a live server: is every answer its own and right, how much is refused, does memory stay flat?

    python benchmarks/serve_load.py --clients 200 --seconds 60 --json benchmarks/results/serve_load.json

`decoupled serve` runs over the sample passages with the starter model. Requests are of mixed sizes: one to
three sentences to score, ten to rerank, stored passages by id, searches and questions. Every answer is
compared with what the engine says to the same request alone. Clients are coroutines of one process over
keep-alive connections; they share the processor with the server. The cache of texts is off, so that no phase
profits from another. One client comes before and after all of them, so that a busy moment of the machine hits
both; its wait beyond the engine's own time is the overhead of HTTP and batching.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

import numpy as np

from bench_report import machine_now, options, percentiles, write_report
from decoupled.search import starter
from decoupled.search.engine import Engine

TOLERANCE = 2e-4
"""Batch mates change the last digits of a float."""
REFUSED = (429, 503)
SHAPES = {
    "list": ("index", "score"),
    "results": ("index", "relevance_score"),
    "data": ("index", "score"),
    "hits": ("id", "score"),
    "answers": ("text", "score"),
}
"""Where an answer holds its rows, and what names and scores them there."""


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
    waits: list[float] = field(default_factory=list)
    overheads: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        good = self.statuses[200]
        return {
            "requests": sum(self.statuses.values()),
            "statuses": {str(k): v for k, v in sorted(self.statuses.items())},
            "wrong": len(self.wrong),
            "per_second": round(good / self.seconds, 2),
            "latency": percentiles(self.waits),
        }


def main() -> None:
    """Run both phases and report."""
    args = options(__doc__, clients=200, seconds=60.0, single=20.0, calls=300, seed=0)
    path = starter.open().index.path
    calls = workload(path, args.calls, args.seed)
    warm, one, many, memory = Tally(), Tally(), Tally(), []
    with server(path) as (process, port):
        asyncio.run(phase(warm, port, calls[:32], clients=4, seconds=5))
        assert not warm.wrong, warm.wrong[:3]
        asyncio.run(phase(one, port, calls, clients=1, seconds=args.single / 2))
        watching = Thread(target=watch, args=(process, memory), daemon=True)
        watching.start()
        asyncio.run(phase(many, port, calls, clients=args.clients, seconds=args.seconds))
        resident, batches = list(memory), batch_sizes(port)
        asyncio.run(phase(one, port, calls, clients=1, seconds=args.single / 2))
    results = {
        "machine_now": machine_now(),
        "clients": args.clients,
        "one_client": one.to_json(),
        "many_clients": many.to_json(),
        "throughput_ratio": round(
            (many.statuses[200] / many.seconds) / (one.statuses[200] / one.seconds), 3
        ),
        "overhead_ms": {kind: percentiles(values) for kind, values in one.overheads.items()},
        "requests_per_batch": batches,
        "rss_mib": flatness(resident),
    }
    write_report(args, results)
    faults = sum(n for status, n in many.statuses.items() if status not in (200, *REFUSED))
    if many.wrong or one.wrong or faults:
        sys.exit(f"wrong answers: {[*one.wrong, *many.wrong][:3]}, faults: {dict(many.statuses)}")


# Requests -----------------------------------------------------------------------------------------


def workload(path: Path, count: int, seed: int) -> list[Call]:
    """Requests in random order, with the answers of an engine that gets them one at a time."""
    draw = random.Random(seed)
    engine = Engine(path)
    passages = list(starter.sample_passages())
    sentences = [s.strip() for p in passages for s in p.text.split(". ") if 40 < len(s) < 200]
    questions = [q.question for q in starter.sample_questions()]
    calls = []
    for number in range(count):
        query = f"{draw.choice(questions)} {draw.choice(('', 'please', 'exactly'))}".strip()
        turn = number % 10
        if turn < 6:
            texts = draw.sample(sentences, draw.randint(1, 3))
            calls.append(scoring(engine, turn % 3, query, texts))
        elif turn == 6:
            calls.append(scoring(engine, 0, query, draw.sample(sentences, 10)))
        elif turn == 7:
            ids = [p.id for p in draw.sample(passages, 3)]
            hits = {str(ids.index(h.id)): h.score for h in engine.rerank(query, ids=ids)}
            body = {"query": query, "documents": [{"id": i} for i in ids]}
            calls.append(Call("by id", wire("/v2/rerank", body), hits))
        elif turn == 8:
            hits = {h.id: h.score for h in engine.search(query, 3, candidates=4)}
            body = {"query": query, "k": 3, "candidates": 4}
            calls.append(Call("search", wire("/v1/search", body), hits))
        else:
            texts = draw.sample(sentences, 2)
            answers = {a.text: a.score for a in engine.ask(query, 2, texts=texts)}
            body = {"question": query, "k": 2, "texts": texts}
            calls.append(Call("ask", wire("/v1/ask", body), answers))
    draw.shuffle(calls)
    return calls


def scoring(engine: Engine, vendor: int, query: str, texts: Sequence[str]) -> Call:
    """Texts to score, in the words of one of three vendors."""
    scores = {h.id: h.score for h in engine.rerank(query, texts=texts)}
    route, body = (
        ("/v2/rerank", {"query": query, "documents": texts}),
        ("/rerank", {"query": query, "texts": texts}),
        ("/score", {"text_1": query, "text_2": texts}),
    )[vendor]
    return Call("score", wire(route, body), scores)


def wire(route: str, body: dict[str, Any]) -> bytes:
    """The bytes of a POST."""
    content = json.dumps(body).encode()
    head = f"POST {route} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def scores_of(document: Any) -> dict[str, float]:
    """The scores of an answer, whichever shape it has, by what they belong to."""
    if isinstance(document, list):
        document = {"list": document}
    for name, (key, score) in SHAPES.items():
        if name in document:
            return {str(row[key]): row[score] for row in document[name]}
    raise ValueError(f"no scores in {document}")


def differs(found: dict[str, float], call: Call) -> bool:
    """Is this somebody else's answer, or a wrong one?"""
    return found.keys() != call.scores.keys() or any(
        abs(found[name] - score) > TOLERANCE for name, score in call.scores.items()
    )


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
        if time.perf_counter() >= until:
            break
        begun = time.perf_counter()
        writer.write(call.wire)
        status, document = await answer(reader)
        wait = (time.perf_counter() - begun) * 1e3
        tally.statuses[status] += 1
        if status == 200:
            tally.waits.append(wait)
            if differs(scores_of(document), call):
                tally.wrong.append(f"{call.kind}: {scores_of(document)} instead of {call.scores}")
            if isinstance(document, dict) and "timing" in document:
                own = document["timing"]["total_ms"]
                tally.overheads.setdefault(call.kind, []).append(wait - own)
        else:
            await asyncio.sleep(0.25)
    writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Status and JSON of one response."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length:")[1].split("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


# The server ---------------------------------------------------------------------------------------


@contextmanager
def server(path: Path) -> Iterator[tuple[int, int]]:
    """`decoupled serve`, ready: its process and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "decoupled", "serve", str(path), "--port", str(port)]
    process = subprocess.Popen([*command, "--cache", "0", "--log-level", "warning"])
    try:
        while not is_ready(port):
            assert process.poll() is None, "the server stopped"
            time.sleep(0.1)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(60)


def is_ready(port: int) -> bool:
    """Does it answer?"""
    try:
        return urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).status == 200
    except OSError:
        return False


def batch_sizes(port: int) -> float:
    """Mean number of requests that were computed together, over the whole run."""
    text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    name = 'decoupled_batch_size_{}{{queue="read"}}'
    return round(float(values[name.format("sum")]) / float(values[name.format("count")]), 2)


def watch(pid: int, memory: list[int]) -> None:
    """The server's resident memory, every second, in KiB."""
    while (status := Path(f"/proc/{pid}/status")).exists():
        found = re.search(r"VmRSS:\s+(\d+)", status.read_text())
        memory.append(int(found[1]) if found else 0)
        time.sleep(1)


def flatness(memory: Sequence[int]) -> dict[str, Any]:
    """Memory over time, and the growth from the second quarter to the last."""
    values = np.array(memory) / 1024
    quarter = max(1, len(values) // 4)
    growth = np.median(values[-quarter:]) - np.median(values[quarter : 2 * quarter])
    return {
        "each_second": [round(float(v), 1) for v in values],
        "growth_second_to_last_quarter": round(float(growth), 1),
    }


if __name__ == "__main__":
    main()
