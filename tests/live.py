"""A real server process over a real index, for tests that talk HTTP as users do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import decoupled as dc
from decoupled.search import starter


def sample_subset(path: Path, title: str, numbers: range) -> Path:
    """An index of these sample passages of one article, made by the starter model."""
    wanted = {f"{title}:{number}" for number in numbers}
    with dc.Index.create(path) as index:
        index.add(p for p in starter.sample_passages() if p.id in wanted)
    return path


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serving(*words: object, port: int | None = None, wrap: Sequence[str] = ()) -> Iterator[str]:
    """`decoupled serve WORDS…` while the block runs, run by `wrap`; the address that it answers at."""
    port = port or free_port()
    command = [
        *wrap,
        sys.executable,
        "-m",
        "decoupled",
        "serve",
        *map(str, words),
        "--port",
        str(port),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, url, log)
            yield url
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait(process: subprocess.Popen, url: str, log: TextIO) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if process.poll() is not None:
            log.seek(0)
            raise RuntimeError(f"the server stopped: {log.read()[-2000:]}")
        try:
            urllib.request.urlopen(f"{url}/ready", timeout=5).close()
            return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.1)
    raise RuntimeError("the server did not become ready within 90 s")
