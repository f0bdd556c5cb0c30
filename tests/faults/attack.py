"""The other side: `attack.py PORT SECONDS WHAT` is a hostile client, or one who only asks for /health.

It prints one line of JSON: how often each attack got which answer, or the milliseconds of each /health.
"""

from __future__ import annotations

import http.client
import json
import resource
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from itertools import cycle, islice
from typing import Any

MANY = 300_000
MB = b"word " * 200_000


def body(route: str, start: bytes, item: bytes, end: bytes, count: int = MANY) -> tuple[str, bytes]:
    return route, start + item * count + end


BOMBS = {
    "A1 filter of 40,000 fields": (
        "/v1/search",
        json.dumps({"query": "river", "where": {f"k{n}": 1 for n in range(40_000)}}).encode(),
    ),
    "A2 id of 400,000 #": body("/rerank", b'{"query":"x","texts":[{"id":"', b"#", b'"}]}', 400_000),
    "A3 pairs": (
        "/score",
        json.dumps({"text_1": [f"q{n}" for n in range(20_000)], "text_2": ["d"] * 20_000}).encode(),
    ),
    "A4 numbers": body("/v1/rerank", b'{"query":"x","documents":[', b"1,", b"1]}"),
    "A4 empty strings": body("/v2/rerank", b'{"query":"x","documents":[', b'"",', b'""]}'),
    "A4 unknown fields": body("/v1/search", b'{"query":"x"', b',"k":1', b"}"),
    "A4 nulls": body("/score", b'{"text_1":"x","text_2":[', b"null,", b"null]}"),
    "A4 depth": body("/v1/ask", b'{"question":"x","where":', b'{"a":', b""),
    "A6 one document of 15 MB": body("/v2/rerank", b'{"query":"x","documents":["', MB, b'"]}', 15),
}


def post(port: int, route: str, content: bytes) -> str:
    """The status, or how the connection ended."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", route, content, {"content-type": "application/json"})
        return str(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


def opened(port: int, content: bytes) -> socket.socket | None:
    """A connection that has sent this and stops."""
    try:
        connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        connection.sendall(content)
        return connection
    except OSError:
        return None


def stand_still(port: int, until: float, told: Counter[str]) -> None:
    """1,100 half-open connections and 80 unfinished bodies of 15 MiB, again when they were closed."""
    head = b"POST /v2/rerank HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    large = head + b"content-length: %d\r\n\r\n" % (15 << 20)
    while time.monotonic() < until:
        kept = [opened(port, head + b"x-slow: ") for _ in range(1100)]
        told["A5 half-open"] += sum(c is not None for c in kept)
        kept += [opened(port, large + b" " * (1 << 20)) for _ in range(80)]
        told["A7 unfinished bodies"] += sum(c is not None for c in kept[1100:])
        time.sleep(5)
        for connection in kept:
            if connection is not None:
                connection.close()


def heads(port: int, until: float, told: Counter[str]) -> None:
    """A header of 64 MiB, and 200,000 of them."""
    first = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
    while time.monotonic() < until:
        for name, rest in (("size", b"x: " + b"a" * (64 << 20)), ("count", b"x: a\r\n" * 200_000)):
            connection, said = opened(port, first + rest), b""
            if connection is not None:  # the system had room for all of it
                with suppress(OSError), connection:
                    said = connection.recv(65536)
            told[f"A7 headers by {name}: {said[9:12].decode() or 'cut off'}"] += 1
        time.sleep(0.5)


def bombs(port: int, until: float, told: Counter[str], first: int) -> None:
    for name in islice(cycle(BOMBS), first, None):
        if time.monotonic() >= until:
            break
        told[f"{name}: {post(port, *BOMBS[name])}"] += 1


def attack(port: int, seconds: float) -> dict[str, int]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096) if hard > 0 else 4096, hard))
    told: Counter[str] = Counter()
    until = time.monotonic() + seconds
    work: list[tuple[Any, tuple[Any, ...]]] = [
        (bombs, (port, until, told, n * 4)) for n in range(2)
    ]
    work += [(stand_still, (port, until, told)), (heads, (port, until, told))]
    threads = [threading.Thread(target=what, args=args) for what, args in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(sorted(told.items()))


def health(port: int, seconds: float) -> list[float]:
    """Milliseconds of each answer, every one over a connection of its own."""
    times, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        begun = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
        times.append((time.perf_counter() - begun) * 1e3)
        time.sleep(0.02)
    return times


if __name__ == "__main__":
    what = {"attack": attack, "health": health}[sys.argv[3]]
    print(json.dumps(what(int(sys.argv[1]), float(sys.argv[2]))))  # noqa: T201 (its answer)
