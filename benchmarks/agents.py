"""The same folder and questions, as an agent's search tool: ours through MCP, BM25 + CrossEncoder in process.

python benchmarks/agents.py -o benchmarks/results/agents.json [--data DATA] [--passages 5000]
    [--questions 200] [--cross-encoder FOLDER] [--qmd COMMAND]

The folder has one Markdown file an article: the bundled sample passages, and with --data further ones of
SQuAD's training set. Questions are of SQuAD's development set where --data has it, else the sample's. Cold is
the first start on the folder, with its indexing; warm is the next one. Right passage first: an answer of the
question is in the text of the first passage. The peer ranks BM25's first 40 by the cross-encoder; ours ranks
100 candidates. Times are of the client, start of the process included; `cpu_ms` is processor time of the
server for each question, which other programs do not change much. `--qmd` names the command of
`@tobilu/qmd` (npm; it needs bun): its keyword search over the same folder, of which the snippet is read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import lzma
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import psutil
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from decoupled.lab.bench.report import commit
from decoupled.search.starter import sample_passages, sample_questions

CANDIDATES = 40


def read_squad(path: Path) -> list:
    """The articles of a file of SQuAD."""
    with lzma.open(path, "rt") as file:
        return json.load(file)["data"]


def articles(data: Path | None, count: int) -> dict[str, list[str]]:
    """Paragraphs by article, so many in all."""
    texts: dict[str, list[str]] = defaultdict(list)
    for passage in sample_passages():
        texts[passage.title or passage.id.partition(":")[0]].append(passage.text)
    if data is not None:
        for article in read_squad(data / "squad1" / "train-v1.1.json.xz"):
            if sum(map(len, texts.values())) >= count:
                break
            texts[article["title"]] += [p["context"] for p in article["paragraphs"]]
    return texts


def questions(data: Path | None, count: int) -> list[tuple[str, list[str]]]:
    """Questions with the answers that count as right."""
    chosen = [(q.question, list(q.answers)) for q in sample_questions()]
    if data is not None:
        sample = {passage.text for passage in sample_passages()}
        chosen = [
            (q["question"], [a["text"] for a in q["answers"]])
            for article in read_squad(data / "squad1" / "dev-v1.1.json.xz")
            for p in article["paragraphs"]
            if p["context"] in sample
            for q in p["qas"]
        ]
    random.Random(0).shuffle(chosen)
    return chosen[:count]


def write_folder(texts: dict[str, list[str]], folder: Path) -> None:
    """One Markdown file an article, one section a paragraph."""
    for number, (title, paragraphs) in enumerate(texts.items()):
        parts = [f"## Part {n}\n\n{text}" for n, text in enumerate(paragraphs, 1)]
        content = f"# {title.replace('_', ' ')}\n\n" + "\n\n".join(parts)
        (folder / f"{number:03}.md").write_text(content, encoding="utf-8")


def right(text: str, answers: list[str]) -> bool:
    """Whether an answer is in a text."""
    return any(answer.lower() in text.lower() for answer in answers)


def summary(times: list[float], hits: int) -> dict:
    """Median and 95th percentile in milliseconds, and how often the first passage was right."""
    p50, p95 = np.percentile(times, (50, 95)) * 1e3
    share = round(hits / len(times), 3)
    return {"p50_ms": round(p50, 1), "p95_ms": round(p95, 1), "right_first": share}


# Ours ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def stdio(folder: Path):
    """A client of a server over stdin and stdout."""
    words = ["-m", "decoupled", "mcp", str(folder)]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        yield client


@asynccontextmanager
async def http(folder: Path):
    """A client of a server over streamable HTTP."""
    words = [sys.executable, "-m", "decoupled", "mcp", str(folder), "--http", "--port", "8765"]
    server = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE)
    assert server.stderr is not None
    while b"agents connect" not in await server.stderr.readline():
        pass
    drain = asyncio.ensure_future(server.stderr.read())
    try:
        while True:  # the address is told before it is listened on
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", 8765)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.02)
        async with Client(streamable_http_client("http://127.0.0.1:8765/mcp")) as client:
            yield client
    finally:
        server.terminate()
        await server.wait()
        drain.cancel()


async def first_answer(open_client, folder: Path, query: str) -> dict:
    """Seconds from the start of the process to the handshake, the first answer, and all files compared."""
    began, messages = time.perf_counter(), []

    async def progress(done, total, message) -> None:
        messages.append(message)

    async with open_client(folder) as client:
        ready = time.perf_counter() - began
        first = 0.0
        while True:
            answer = await client.call_tool("search", {"query": query}, progress_callback=progress)
            first = first or (0.0 if answer.is_error else time.perf_counter() - began)
            if not answer.is_error and "notes" not in (answer.structured_content or {}):
                break
        whole = time.perf_counter() - began
    return {
        "ready_s": round(ready, 2),
        "first_answer_s": round(first, 2),
        "in_step_s": round(whole, 2),
        "progress_notes": len(messages),
    }


def processor_seconds() -> float:
    """Seconds of processor time that the children of this process have used."""
    children = psutil.Process().children(recursive=True)
    return sum(sum(child.cpu_times()[:2]) for child in children)


async def race(open_client, folder: Path, rows: list) -> dict:
    """All questions one after the other, after five that warm up."""
    async with open_client(folder) as client:
        times, hits, shown, asks, used = [], 0, [], [], 0.0
        for number, (query, answers) in enumerate([*rows[:5], *rows]):
            before, began = processor_seconds(), time.perf_counter()
            answer = await client.call_tool("search", {"query": query, "k": 5})
            took = time.perf_counter() - began
            if number >= 5:
                times.append(took)
                used += processor_seconds() - before
                first = answer.structured_content["passages"][0]
                whole = await client.call_tool("read", {"id": first["id"], "around": 0})
                hits += right(whole.structured_content["text"], answers)
                shown.append(len(answer.content[0].text))
                began = time.perf_counter()
                await client.call_tool("ask", {"question": query})
                asks.append(time.perf_counter() - began)
        servers = [p for p in psutil.Process().children(recursive=True) if "mcp" in p.cmdline()]
        memory = max((p.memory_info().rss for p in servers), default=0)
    ask = summary(asks, 0)
    return {
        **summary(times, hits),
        "cpu_ms": round(used / len(times) * 1e3, 1),
        "ask_p50_ms": ask["p50_ms"],
        "ask_p95_ms": ask["p95_ms"],
        "characters_of_an_answer": round(float(np.mean(shown))),
        "memory_mb": round(memory / 1e6),
    }


# The peer -----------------------------------------------------------------------------------------


class Bm25:
    """BM25 over an inverted list, k1 1.2 and b 0.75."""

    def __init__(self, texts: list[str]) -> None:
        self.lists: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.lengths = []
        for number, text in enumerate(texts):
            counts = Counter(re.findall(r"\w+", text.lower()))
            self.lengths.append(sum(counts.values()))
            for word, count in counts.items():
                self.lists[word].append((number, count))
        self.mean = sum(self.lengths) / len(self.lengths)

    def best(self, query: str, k: int) -> list[int]:
        """The numbers of the best texts."""
        scores: dict[int, float] = defaultdict(float)
        for word in set(re.findall(r"\w+", query.lower())):
            listed = self.lists.get(word, [])
            idf = math.log(1 + (len(self.lengths) - len(listed) + 0.5) / (len(listed) + 0.5))
            for number, count in listed:
                norm = 1.2 * (0.25 + 0.75 * self.lengths[number] / self.mean)
                scores[number] += idf * count * 2.2 / (count + norm)
        return sorted(scores, key=lambda n: -scores[n])[:k]


def peer(texts: list[str], rows: list, checkpoint: str) -> dict:
    """BM25's first candidates, ranked by a cross-encoder of sentence-transformers."""
    began = time.perf_counter()
    from sentence_transformers import CrossEncoder

    model, words = CrossEncoder(checkpoint), Bm25(texts)
    times, hits, first, used = [], 0, 0.0, 0.0
    for number, (query, answers) in enumerate([*rows[:2], *rows]):
        before = time.process_time()
        start = time.perf_counter()
        candidates = words.best(query, CANDIDATES)
        scores = model.predict([(query, texts[n]) for n in candidates])
        best = texts[candidates[int(np.argmax(scores))]]
        if number == 0:
            first = time.perf_counter() - began
        if number >= 2:
            times.append(time.perf_counter() - start)
            used += time.process_time() - before
            hits += right(best, answers)
    cpu = round(used / len(times) * 1e3, 1)
    memory = round(psutil.Process().memory_info().rss / 1e6)
    return {
        "first_answer_s": round(first, 2),
        **summary(times, hits),
        "cpu_ms": cpu,
        "memory_mb": memory,
    }


async def race_qmd(command: str, folder: Path, rows: list) -> dict:
    """The keyword search of qmd through its own server; no model is loaded."""
    environment = {**os.environ, "HOME": str(folder.parent)}
    began = time.perf_counter()
    add = [command, "collection", "add", str(folder), "--name", "docs"]
    subprocess.run(add, env=environment, check=True, capture_output=True)
    indexed = time.perf_counter() - began
    server = StdioServerParameters(command=command, args=["mcp"], env=environment)
    times, hits, none, used = [], 0, 0, 0.0
    async with Client(stdio_client(server)) as client:
        for query, answers in rows:
            before, start = processor_seconds(), time.perf_counter()
            answer = await client.call_tool("search", {"query": query, "limit": 5})
            times.append(time.perf_counter() - start)
            used += processor_seconds() - before
            results = (answer.structured_content or {}).get("results", [])
            none += not results
            hits += bool(results) and right(results[0]["snippet"], answers)
    cpu = round(used / len(rows) * 1e3, 1)
    return {"cold_s": round(indexed, 2), **summary(times, hits), "cpu_ms": cpu, "no_result": none}


def main() -> None:
    """Race all, and write the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--passages", type=int, default=5000)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--cross-encoder", help="A checkpoint folder or hub name.")
    parser.add_argument("--qmd", help="The command of @tobilu/qmd.")
    options = parser.parse_args()
    texts, rows = (
        articles(options.data, options.passages),
        questions(options.data, options.questions),
    )
    report: dict = {"articles": len(texts), "passages": sum(map(len, texts.values()))}
    report |= {"commit": commit(), "questions": len(rows), "load_average": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "docs"
        folder.mkdir()
        write_folder(texts, folder)
        os.environ["XDG_CACHE_HOME"] = str(Path(place) / "cache")
        for name, client in (("stdio", stdio), ("http", http)):
            starts = {}
            if name == "stdio":
                starts["cold"] = asyncio.run(first_answer(client, folder, rows[0][0]))
            starts["warm"] = asyncio.run(first_answer(client, folder, rows[0][0]))
            report[name] = {**starts, **asyncio.run(race(client, folder, rows))}
            print(name, json.dumps(report[name]), flush=True)
            options.output.write_text(json.dumps(report, indent=1) + "\n")
        if options.qmd:
            report["qmd_search"] = asyncio.run(race_qmd(options.qmd, folder, rows))
            print("qmd", json.dumps(report["qmd_search"]), flush=True)
    if options.cross_encoder:
        flat = [text for paragraphs in texts.values() for text in paragraphs]
        report["bm25_cross_encoder"] = peer(flat, rows, options.cross_encoder)
        print(json.dumps(report["bm25_cross_encoder"]))
    options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
