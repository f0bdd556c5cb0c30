"""Does a server's memory level off? Mixed requests whose texts never come again, and what it holds.

    python benchmarks/serve_memory.py --requests 40000 --json benchmarks/results/serve_memory.json

`decoupled serve` runs over the sample passages with a thin model, so that requests come fast, and a cache of
texts that fills early. Of 100 requests 96 rerank, score, search, ask and name passages, two are refused, one
has a large body and one asks for what is not there. Resident memory, open files and threads are noted
throughout; a server that levels off has the same in the last quarter as in the second. Before that every word
of the index is searched for, three times: where a word stands is read once and kept.
"""

import asyncio
import random
import re
import sys
import tempfile
from collections import Counter
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import decoupled as dc
from bench_report import thin_minilm
from decoupled.lab.script import options, write_report
from decoupled.search.starter import sample_passages
from serve_load import server, wire

TERM = re.compile(r"\w+")


def main() -> None:
    """Run and report."""
    args = options(__doc__, requests=40_000, clients=16, cache=32, seed=0)
    folder = args.work or Path(tempfile.mkdtemp())
    passages = list(sample_passages())
    thin_minilm(args.seed, threads=1).save(folder / "model")
    with dc.Index.create(folder / "index", folder / "model") as index:
        index.add(passages)
    statuses, series, words = (
        Counter(),
        [],
        sorted({w for p in passages for w in TERM.findall(p.text)}),
    )
    with server(folder / "index", "--cache", str(args.cache)) as (pid, port):
        searched = [searches(words, port, args.clients, psutil.Process(pid)) for _ in range(3)]
        calls = endless(passages, args.seed)
        whole = (args.requests, args.clients, psutil.Process(pid))
        asyncio.run(send(port, calls, *whole, statuses, series))
    names = ("requests", "rss_mib", "files", "threads")
    columns = {name: [row[n] for row in series] for n, name in enumerate(names)}
    quarter = len(series) // 4
    growth = {
        name: round(float(np.median(v[-quarter:]) - np.median(v[quarter : 2 * quarter])), 1)
        for name, v in columns.items()
        if name != "requests"
    }
    figures = {
        "statuses": {str(k): v for k, v in sorted(statuses.items())},
        "cache_mib": args.cache,
        "words": len(words),
        "rss_mib_after_each_search_for_all_words": searched,
    }
    write_report(args, {**figures, "growth_second_to_last_quarter": growth, "series": columns})
    if statuses.keys() & {500, 504} or growth["rss_mib"] > 0.02 * columns["rss_mib"][-1]:
        sys.exit(f"it grew by {growth}, statuses {dict(statuses)}")


def searches(words: list[str], port: int, clients: int, process: psutil.Process) -> float:
    """Search for every word; what the server holds then."""
    parts = [" ".join(words[n : n + 12]) for n in range(0, len(words), 12)]
    calls = [wire("/v1/search", {"query": part, "k": 3, "candidates": 4}) for part in parts]
    asyncio.run(send(port, cycle(calls), len(calls), clients, process, Counter(), []))
    return round(process.memory_info().rss / 2**20, 1)


def endless(passages: list[Any], seed: int) -> Any:
    """Requests of every kind; no text comes twice."""
    draw = random.Random(seed)
    words = [word for p in passages for word in p.text.split()]
    for number in count():
        query = " ".join(draw.choices(words, k=draw.randint(2, 12)))
        texts = [" ".join(draw.choices(words, k=draw.randint(3, 60))) for _ in range(3)]
        ids = [{"id": p.id} for p in draw.sample(passages, 3)]
        kind = number % 100
        if kind == 99:
            yield wire("/v2/rerank", {"query": query, "documents": [" ".join(texts) * 20] * 40})
        elif kind == 98:
            yield wire("/v2/rerank", {"query": query, "documents": [{"id": "nobody"}]})
        elif kind > 95:
            yield wire("/v1/rerank", {"query": query, "documents": [1] * 500})
        else:
            yield (
                wire("/rerank", {"query": query, "texts": texts}),
                wire("/score", {"text_1": query, "text_2": texts}),
                wire("/v1/rerank", {"query": query, "documents": texts}),
                wire("/v2/rerank", {"query": query, "documents": ids}),
                wire("/v1/search", {"query": query, "k": 3, "candidates": 4}),
                wire("/v1/ask", {"question": query, "texts": texts}),
            )[kind % 6]


async def send(
    port: int,
    calls: Any,
    requests: int,
    clients: int,
    process: psutil.Process,
    statuses: Counter[int],
    series: list[tuple[float, ...]],
) -> None:
    """All requests, over as many connections as there are clients; what the server holds, forty times."""
    step = max(1, requests // 40)

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        while (sent := statuses.total()) < requests:
            writer.write(next(calls))
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.split("content-length:")[1].split("\r\n")[0]))
            statuses[int(head.split()[1])] += 1
            if sent // step >= len(series):
                resident = round(process.memory_info().rss / 2**20, 1)
                series.append((sent, resident, process.num_fds(), process.num_threads()))
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))


if __name__ == "__main__":
    main()
