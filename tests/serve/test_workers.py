"""`serve --workers`: one address, several processes, which count, change the index and end together."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import psutil
import pytest
from fastapi.testclient import TestClient

from decoupled.errors import DecoupledError, InputError
from decoupled.runtime.cpu import THREADS, cores
from decoupled.serve.http import workers
from decoupled.serve.http.app import create_app
from decoupled.serve.http.limits import Limits
from decoupled.serve.http.metrics import SHARED
from decoupled.serve.http.server import Served, bind
from decoupled.serve.http.workers import ServerProcess, sockets, supervise
from live import free_port, serving
from served import TEXTS, tiny_engine, tiny_index, tiny_split


def call(url, body=None, method="POST"):
    """The JSON of a request on a connection of its own."""
    request = urllib.request.Request(url, method=method)
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read().decode()


def searches(url, count):
    with ThreadPoolExecutor(8) as threads:
        asked = [
            threads.submit(call, f"{url}/v1/search", {"query": "the sea"}) for _ in range(count)
        ]
        return [json.loads(one.result())["hits"][0]["id"] for one in asked]


def counted(url):
    """Searches that the server says it answered."""
    page = call(f"{url}/metrics", method="GET")
    name = 'decoupled_requests_total{route="/v1/search",status="200"}'
    return float(next(line for line in page.splitlines() if line.startswith(name)).split()[-1])


@contextmanager
def workers_of(path):
    """A server of two; its address, its first process and the workers."""
    port = free_port()
    with serving(path, "--workers", 2, port=port) as url:
        (parent,) = [p for p in psutil.Process().children() if str(port) in p.cmdline()]
        team = [p for p in parent.children() if "spawn_main" in " ".join(p.cmdline())]
        assert len(team) == 2
        yield url, parent, team


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    return tiny_index(tmp_path_factory.mktemp("workers") / "i", tiny_split(model))


@pytest.mark.slow
def test_workers_are_one_server(path):
    with workers_of(path) as (url, parent, _):
        assert searches(url, 12) == ["long"] * 12
        assert [counted(url) for _ in range(6)] == [12] * 6, "whichever worker is asked"

        def put(n):
            new = {"passages": [{"id": f"new{n}", "text": f"an owl in tower {n}"}]}
            return json.loads(call(f"{url}/v1/passages", new, "PUT"))["added"]

        with ThreadPoolExecutor(4) as threads:  # two processes write, in turns
            assert sum(threads.map(put, range(4))) == 4
        infos = [json.loads(call(f"{url}/v1/info", method="GET")) for _ in range(4)]
        assert {info["passages"] for info in infos} == {len(TEXTS) + 4}
        everybody = parent.children(recursive=True)
    _, alive = psutil.wait_procs(everybody, 10)
    assert not alive


@pytest.mark.faults
def test_who_waits_for_a_worker_that_died_is_served_by_the_next(path):
    with workers_of(path) as (url, _, team):
        assert searches(url, 8) == ["long"] * 8
        team[0].kill()
        assert searches(url, 16) == ["long"] * 16
        assert counted(url) == 24, "what the dead one counted still counts"


@pytest.mark.faults
def test_workers_do_not_outlive_the_first_process(path):
    with workers_of(path) as (_, parent, team):
        parent.kill()
        _, alive = psutil.wait_procs(team, 20)
        assert not alive


def test_a_change_waits_for_that_of_another_process(path, model):
    engine = tiny_engine(path, tiny_split(model))
    app = create_app(engine, limits=Limits(writer_seconds=10))
    other = engine.index.reopen(write=True)
    new = {"passages": [{"id": "late", "text": "who came late"}]}
    with (
        TestClient(app, base_url="http://127.0.0.1") as client,
        ThreadPoolExecutor(1) as thread,
    ):
        put = thread.submit(client.put, "/v1/passages", json=new)
        time.sleep(0.2)
        assert not put.done()
        other.close()
        assert put.result().json()["added"] == 1


@pytest.mark.slow
def test_what_a_worker_cannot_open_is_one_line(tmp_path):
    words = ("serve", str(tmp_path / "none"), "--workers", "2", "--port", "0")
    command = [sys.executable, "-m", "decoupled", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "none" in done.stderr


def test_the_address_is_taken_by_one_server():
    """Sockets that may share a port are no way into that of another server."""
    first = sockets(bind("127.0.0.1", 0), 3)
    port = first[0].getsockname()[1]
    assert {one.getsockname()[1] for one in first} == {port}
    for one in first:
        one.listen()
    with pytest.raises(InputError, match="cannot listen"):
        bind("127.0.0.1", port)
    for one in first:
        one.close()
    bind("127.0.0.1", port).close()


@dataclass(frozen=True, kw_only=True)
class Idle(Served):
    """Serves nothing: each process leaves a note of its share, says that it listens, and waits."""

    def run(self, taken, ready):
        if self.place == "none":
            raise InputError("there is nothing here")
        share = [os.environ[THREADS], self.memory, self.cache, self.limits.writer_seconds]
        Path(self.place, f"{os.getpid()}.json").write_text(json.dumps(share))
        ready()
        signal.pause()


def idle(place):
    """What two processes share: odd numbers, and the limits of a server that has a minute for a request."""
    own = {"limits": Limits(seconds=30), "access": None, "origins": (), "questions": ()}
    own |= {"runtime": "auto", "cascade": None, "memory": 7, "cache": 9, "layout": None}
    return Idle(place=str(place), cluster="", log_level="info", **own)


@pytest.fixture
def handlers(monkeypatch):
    """The handlers of signals and logs stay those of the tests."""
    kept = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(workers, "dictConfig", lambda config: None)
    yield
    for number, handler in kept:
        signal.signal(number, handler)


def test_workers_divide_what_they_have_and_one_that_died_is_started_again(tmp_path, handlers):
    known = []

    def disturb():
        """Kill a worker once all listen, and stop when another one has taken its place."""
        known.extend(sorted(tmp_path.iterdir()))
        os.kill(int(known[0].stem), signal.SIGKILL)
        end = time.monotonic() + 30
        while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < end:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    with bind("127.0.0.1", 0) as taken:
        supervise(idle(tmp_path), taken, 2, Thread(target=disturb).start)
    assert len(known) == 2 and len(list(tmp_path.iterdir())) == 3
    shares = {path.read_text() for path in tmp_path.iterdir()}
    assert shares == {json.dumps([str(max(1, cores() // 2)), 3, 4, 15.0])}
    assert not [path for path in tmp_path.iterdir() if psutil.pid_exists(int(path.stem))]


def test_a_worker_that_cannot_start_stops_all(handlers):
    with bind("127.0.0.1", 0) as taken, pytest.raises(DecoupledError, match="nothing here"):
        supervise(idle("none"), taken, 1, lambda: pytest.fail("it listens"))
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_early_again_and_again_waits_longer(monkeypatch):
    worker = ServerProcess(None, None, {SHARED: "."})
    worker._message, worker.process = lambda: "it ended", SimpleNamespace(pid=0)
    monkeypatch.setattr(workers, "mark_process_dead", lambda pid, folder: None)
    worker._begun = time.monotonic()
    assert [worker.died() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    worker._begun -= 31
    assert worker.died() == 1
