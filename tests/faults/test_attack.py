"""A server under attack: 200 clients get their own answers, and /health stays quick."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest

from faults.figures import record
from live import serving
from served import tiny_engine, tiny_index, tiny_split

pytestmark = pytest.mark.faults

CLIENTS, SECONDS = 200, float(os.environ.get("FAULTS_SECONDS", "30"))
HEALTH_MS = 250.0
WORDS = ("river", "town", "moon", "sea", "novel", "count", "castle", "house", "old", "star", "ship")
FEW = ("bash", "-c", 'ulimit -n 1024; exec "$0" "$@"')


def workload(engine, count):
    """Requests of two vendors as they are sent, and the scores that the engine gives to each alone."""
    draw, calls = random.Random(0), []
    for number in range(count):
        query = " ".join(draw.sample(WORDS, 3))
        texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 40))) for _ in range(3)]
        scores = {int(h.id): h.score for h in engine.rerank(query, texts=texts)}
        route, name = (("/rerank", "texts"), ("/v2/rerank", "documents"))[number % 2]
        content = json.dumps({"query": query, name: texts}).encode()
        head = f"POST {route} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        calls.append((f"{head}content-length: {len(content)}\r\n\r\n".encode() + content, scores))
    return calls


def scores_of(reply):
    rows = reply if isinstance(reply, list) else reply["results"]
    return {row["index"]: row.get("score", row.get("relevance_score")) for row in rows}


async def client(port, calls, until, statuses, wrong):
    """One who asks about once a second, and connects anew when its idle connection was closed."""
    reader = writer = None
    while time.monotonic() < until:
        wire, scores = random.choice(calls)
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(wire)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.split("content-length:")[1].split("\r\n")[0])
            reply = json.loads(await reader.readexactly(length))
        except (OSError, asyncio.IncompleteReadError):
            statuses["reconnected"] += 1
            writer = None
            continue
        status = int(head.split()[1])
        statuses[status] += 1
        if status == 200 and scores_of(reply) != pytest.approx(scores, abs=1e-3):
            wrong.append((reply, scores))
        if status != 200:
            writer = None
        await asyncio.sleep(random.uniform(0.5, 1.5))
    if writer is not None:
        writer.close()


async def storm(port, calls, seconds, statuses, wrong):
    until = time.monotonic() + seconds
    await asyncio.gather(*(client(port, calls, until, statuses, wrong) for _ in range(CLIENTS)))


def beside(port, seconds, what):
    script = Path(__file__).with_name("attack.py")
    # They stand for other machines: what they compute is not to be taken from the server.
    aside = ("nice", "-n", "10") if what == "attack" else ()
    command = [*aside, sys.executable, script, str(port), str(seconds), what]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def phase(port, calls, *, attacked):
    """What the clients and one who asks for /health saw, with and without an attack beside them."""
    statuses, wrong = Counter(), []
    attack = beside(port, SECONDS, "attack") if attacked else None
    asking = beside(port, SECONDS, "health")
    asyncio.run(storm(port, calls, SECONDS, statuses, wrong))
    times = json.loads(asking.communicate()[0])
    p50, p99 = np.percentile(times, (50, 99))
    figures = {"health_p50_ms": round(p50, 1), "health_p99_ms": round(p99, 1), "health": len(times)}
    figures |= {"health_worst_ms": round(max(times), 1), "wrong": len(wrong)}
    figures |= {"statuses": {str(k): v for k, v in sorted(statuses.items(), key=str)}}
    if attack is not None:
        figures["attacks"] = json.loads(attack.communicate()[0])
    return figures | {"load": round(os.getloadavg()[0], 1)}


def test_an_attacked_server_serves(model, tmp_path):
    split = tiny_split(model)
    path = tiny_index(tmp_path / "i", split)
    calls = workload(tiny_engine(path, split), 200)
    with serving(path, wrap=FEW) as url:
        port = int(url.rpartition(":")[2])
        process = next(
            c for c in psutil.Process().children(recursive=True) if str(port) in c.cmdline()
        )
        calm = phase(port, calls, attacked=False)
        before = process.memory_info().rss
        attacked = phase(port, calls, attacked=True)
        time.sleep(12)  # what is left of the half-open connections ends
        grown = (process.memory_info().rss - before) >> 20
        files, threads = process.num_fds(), process.num_threads()
    record("attack", calm=calm, attacked=attacked, grown_mib=grown, files=files, threads=threads)
    for figures in (calm, attacked):
        assert set(figures["statuses"]) <= {"200", "429", "503", "reconnected"}, figures
        assert not figures["wrong"] and figures["statuses"]["200"] > CLIENTS, figures
    for answer in attacked["attacks"]:
        assert not answer.endswith(("500", "RemoteDisconnected")), attacked["attacks"]
    # Where other programs take the processor, what it takes without an attack is the measure.
    assert attacked["health_p99_ms"] < max(HEALTH_MS, 3 * calm["health_p99_ms"]), attacked
    assert grown < 400 and files < 200, (grown, files)
