"""What a server lives through: clients that leave, bodies that crawl, kill -9, a full disk, a stop."""

from __future__ import annotations

import http.client
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from commands import Commands
from decoupled.index.index import Index
from decoupled.search import starter
from decoupled.serve.http.app import create_app
from decoupled.serve.http.limits import Limits
from decoupled.serve.http.server import JsonLines
from faults.figures import record
from live import free_port
from served import TEXTS, listening, tiny_engine, tiny_index, tiny_split

KILLS = 40


@pytest.fixture(scope="module")
def split(model):
    return tiny_split(model)


@pytest.fixture
def path(split, tmp_path):
    return tiny_index(tmp_path / "i", split)


def call(url, method, route, body=None):
    """Status and JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + route, data, {"content-type": "application/json"})
    request.method = method
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


class Held:
    """An engine whose runs wait until they are let go; counts the requests that were computed."""

    def __init__(self, engine):
        self.engine, self.real = engine, engine.run
        self.go, self.begun = threading.Event(), threading.Event()
        self.queries = []
        engine.run = self.run

    def run(self, requests, **options):
        self.begun.set()
        assert self.go.wait(20)
        self.queries += [r.query for r in requests]
        return self.real(requests, **options)


def connect(url):
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def post(body, *, route="/v2/rerank", promise=0):
    content = json.dumps(body).encode()
    head = f"POST {route} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content) + promise}\r\n\r\n".encode() + content


def metric(app, name, **labels):
    return app.state.service.metrics.registry.get_sample_value(name, labels) or 0


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_a_client_that_leaves_is_not_computed(path, split):
    held = Held(tiny_engine(path, split))
    app = create_app(held.engine)
    left = {"route": "/v2/rerank", "status": "499"}
    with listening(app) as url:
        busy = connect(url)
        busy.sendall(post({"query": "busy", "documents": ["a"]}))
        assert held.begun.wait(10)
        for n in range(3):
            with connect(url) as leaving:
                leaving.sendall(post({"query": f"gone {n}", "documents": ["a"]}))
                wait_for(lambda: metric(app, "decoupled_queue_depth", queue="read") == 1)
            wait_for(lambda n=n: metric(app, "decoupled_requests_total", **left) == n + 1)
            assert metric(app, "decoupled_queue_depth", queue="read") == 0
        held.go.set()
        assert busy.recv(65536).startswith(b"HTTP/1.1 200")
        busy.close()
        status, found = call(url, "POST", "/v2/rerank", {"query": "next", "documents": ["a", "b"]})
        assert status == 200 and len(found["results"]) == 2
        assert held.queries == ["busy", "next"]
        assert metric(app, "decoupled_queue_depth", queue="read") == 0


def test_a_client_that_leaves_under_way_costs_one_batch_more(path, split, monkeypatch):
    app = create_app(tiny_engine(path, split))
    runtime, begun, read = type(app.state.service.engine.runtime), threading.Event(), []
    real = runtime.encode

    def slow(self, side, ids, **options):
        if side == "passage":
            begun.set()
            time.sleep(0.2)
            read.append(len(ids))
        return real(self, side, ids, **options)

    monkeypatch.setattr(runtime, "encode", slow)
    monkeypatch.setattr(runtime, "token_budget", 64)
    with listening(app) as url:
        with connect(url) as leaving:
            texts = [f"the old house {n} by the sea" for n in range(200)]
            leaving.sendall(post({"query": "gone", "documents": texts}))
            assert begun.wait(10)
        assert call(url, "POST", "/v1/search", {"query": "river"})[0] == 200
        assert sum(read) < 100


def test_a_full_queue_refuses_in_each_vendors_words(path, split):
    held = Held(tiny_engine(path, split))
    with listening(create_app(held.engine, limits=Limits(queue=1))) as url:
        waiting = []
        for _ in range(2):
            waiting.append(connect(url))
            waiting[-1].sendall(post({"query": "x", "documents": ["a"]}))
            assert held.begun.wait(10)
            time.sleep(0.2)
        refused = {
            "/v1/search": ({"query": "x"}, 503, "error"),
            "/v2/rerank": ({"query": "x", "documents": ["a"]}, 503, "message"),
            "/rerank": ({"query": "x", "texts": ["a"]}, 429, "error"),
            "/score": ({"text_1": "x", "text_2": "a"}, 503, "error"),
        }
        for route, (body, status, field) in refused.items():
            connection = http.client.HTTPConnection(url.removeprefix("http://"))
            connection.request(
                "POST", route, json.dumps(body), {"content-type": "application/json"}
            )
            reply = connection.getresponse()
            assert reply.status == status and int(reply.headers["retry-after"]) >= 1
            assert "try again" in str(json.load(reply)[field])
            connection.close()
        # A load balancer sends nothing more to a server that is not ready.
        assert call(url, "GET", "/health")[0] == 200 and call(url, "GET", "/ready")[0] == 503
        held.go.set()
        for connection in waiting:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            connection.close()


def test_a_long_request_gives_way_to_short_ones(path, split):
    engine, order, begun = tiny_engine(path, split), [], threading.Event()
    real = engine.run

    def run(requests, *, budget=None, cancelled=None):
        if budget is None:
            order.append("short")
            return real(requests)
        for _ in range(4):
            begun.set()
            time.sleep(0.15)
            assert not cancelled()
            order.append("slice")
        return real(requests, budget=budget)

    engine.run = run
    app = create_app(engine, limits=Limits(batch_tokens=15_000))
    with listening(app) as url:
        long = {"query": "x", "documents": ["a river and a town " * 40] * 90}
        client = threading.Thread(
            target=lambda: order.append(call(url, "POST", "/v2/rerank", long)[0])
        )
        client.start()
        assert begun.wait(10)
        statuses = [call(url, "POST", "/v1/search", {"query": "x"})[0] for _ in range(3)]
        client.join()
    assert statuses == [200] * 3 and order[-1] == 200
    assert order.index("short") < 4 and order.count("slice") == 4
    assert metric(app, "decoupled_slices_total") == 4


def test_a_request_that_cannot_end_in_time_is_refused_at_once(path, split):
    held = Held(tiny_engine(path, split))
    app = create_app(held.engine)
    app.state.service._long._pace = 0.01
    with listening(app) as url:
        texts = ["a river and a town " * 40] * 100
        began = time.monotonic()
        status, reply = call(url, "POST", "/v1/ask", {"question": "x", "texts": texts})
        assert status == 422 and "seconds of work here" in reply["error"]
        assert time.monotonic() - began < 5 and not held.queries
        held.go.set()
        assert call(url, "POST", "/v1/search", {"query": "x"})[0] == 200


def test_a_request_beyond_its_time_is_told_so(path, split):
    held = Held(tiny_engine(path, split))
    with listening(create_app(held.engine, limits=Limits(seconds=0.3))) as url:
        status, found = call(url, "POST", "/v1/search", {"query": "x"})
        assert status == 504 and "limit seconds = 0.3" in found["error"]
        held.go.set()
        time.sleep(0.1)
        assert call(url, "POST", "/v1/search", {"query": "x"})[0] == 200


def whole(connection: socket.socket) -> bytes:
    """All that the server says before it hangs up."""
    said = b""
    while piece := connection.recv(65536):
        said += piece
    return said


def test_a_body_that_crawls_is_cut_off_and_hurts_nobody(path, split):
    with listening(create_app(tiny_engine(path, split), limits=Limits(body_seconds=0.5))) as url:
        slow = [connect(url) for _ in range(20)]
        for connection in slow:
            connection.sendall(post({"query": "x"}, promise=1000))
        assert call(url, "POST", "/v1/search", {"query": "river"})[0] == 200
        for connection in slow:
            reply = whole(connection)
            assert reply.startswith(b"HTTP/1.1 408") and b"body_seconds = 0.5" in reply
            connection.close()


def test_a_client_that_leaves_in_its_body_is_forgotten(path, split):
    app = create_app(tiny_engine(path, split))
    with listening(app) as url:
        with connect(url) as leaving:
            leaving.sendall(post({"query": "x"}, promise=10))
        labels = {"route": "other", "status": "499"}
        wait_for(lambda: metric(app, "decoupled_requests_total", **labels) == 1)
        assert call(url, "GET", "/health")[0] == 200


@contextmanager
def process(path, *words, port=None, wrap=()):
    """`decoupled serve` as its own process, once it is ready: the process and its address."""
    port = port or free_port()
    command = [*wrap, sys.executable, "-m", "decoupled", "serve", path, *words, "--port", str(port)]
    running = subprocess.Popen(
        [str(word) for word in command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                assert call(url, "GET", "/ready")[0] == 200
                break
            except (urllib.error.URLError, ConnectionError):
                assert running.poll() is None, running.communicate()[1]
                assert time.monotonic() < deadline, "the server did not become ready"
                time.sleep(0.05)
        yield running, url
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate()


def put_until_killed(url, names, acknowledged):
    """Add a passage for each name until the server is gone; note what it acknowledged."""
    for name in names:
        try:
            body = {"passages": [{"id": name, "text": f"the river {name} of the town"}]}
            status, _ = call(url, "PUT", "/v1/passages", body)
        except (OSError, http.client.HTTPException, ValueError):
            return
        if status == 200:
            acknowledged.append(name)


def kill_while_writing(path, rounds, seed):
    draw = random.Random(seed)
    acknowledged: list[str] = []
    for turn in range(rounds):
        with process(path) as (running, url):
            found = call(
                url, "POST", "/v1/search", {"query": "river", "k": 900, "candidates": 900}
            )[1]
            assert set(acknowledged) <= {h["id"] for h in found["hits"]}
            names = [f"t{turn}-{n}" for n in range(500)]
            writing = threading.Thread(target=put_until_killed, args=(url, names, acknowledged))
            before = len(acknowledged)
            writing.start()
            wait_for(lambda before=before: len(acknowledged) > before, 30)
            time.sleep(draw.uniform(0.0, 0.6))
            os.kill(running.pid, signal.SIGKILL)
            writing.join()
    stored = Index.open(path)
    snapshot = stored.refresh()
    kept = snapshot.texts(snapshot.locate(acknowledged))
    assert [e.text for e in kept] == [f"the river {name} of the town" for name in acknowledged]
    assert len(TEXTS) + len(acknowledged) <= len(stored) <= len(TEXTS) + len(acknowledged) + rounds
    return len(acknowledged)


def test_kill_9_while_writing_loses_nothing_acknowledged(path):
    assert kill_while_writing(path, 1, seed=0) >= 1


@pytest.mark.faults
def test_kill_9_many_times(path):
    held = kill_while_writing(path, KILLS, seed=1)
    record("kills_serve", kills=KILLS, acknowledged=held, lost=0, doubled=0, changed=0)
    assert held >= KILLS


def test_a_stop_answers_what_was_accepted(path):
    with process(path) as (running, url):
        texts = ["the old house by the sea " * 200] * 60
        replies = []

        def ask():
            replies.append(call(url, "POST", "/rerank", {"query": "the house", "texts": texts}))

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for thread in asking:
            thread.start()
        time.sleep(0.3)
        running.send_signal(signal.SIGTERM)
        for thread in asking:
            thread.join()
        assert [status for status, _ in replies] == [200] * 4
        assert all(len(found) == 60 for _, found in replies)
        assert running.wait(20) == 0
        log = running.stderr.read()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert {line["route"] for line in lines} == {"/ready", "/rerank"}
    assert "house" not in log


def test_a_full_disk_is_a_clear_error_and_passes(path, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("needs the right to mount a tmpfs")
    try:
        subprocess.run(["cp", "-r", str(path), str(small / "i")], check=True)
        with process(small / "i") as (_, url):
            assert (
                call(url, "PUT", "/v1/passages", {"passages": [{"id": "a", "text": "a"}]})[0] == 200
            )
            ballast = small / "ballast"
            with pytest.raises(OSError, match="No space"), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
            status, found = call(
                url, "PUT", "/v1/passages", {"passages": [{"id": "b", "text": "b"}]}
            )
            assert status in (503, 507) and "full" in found["error"], found
            hits = call(url, "POST", "/v1/ask", {"question": "river", "ids": ["a"]})
            assert hits[0] == 200
            assert call(url, "POST", "/v1/ask", {"question": "river", "ids": ["b"]})[0] == 404
            ballast.unlink()
            assert (
                call(url, "PUT", "/v1/passages", {"passages": [{"id": "b", "text": "b"}]})[0] == 200
            )
            assert call(url, "POST", "/v1/ask", {"question": "river", "ids": ["b"]})[0] == 200
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_log_lines_are_json_in_utc():
    record = logging.makeLogRecord({"name": "x", "msg": "a line", "levelname": "INFO"})
    record.created = 0.007
    line = json.loads(JsonLines().format(record))
    assert line["time"] == "1970-01-01T00:00:00.007+00:00" and line["message"] == "a line"


def test_what_cannot_be_served_is_one_line(path, tmp_path, monkeypatch, capsys):
    run = Commands(monkeypatch, capsys)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} (Address already in use)" in run("serve", path, "--port", port).failure
        monkeypatch.setattr(starter, "sample_index", lambda **_: pytest.fail("built in vain"))
        assert "choose another host or port" in run("serve", "--port", port).failure
    assert "not an index" in run("serve", tmp_path / "none", "--port", 0).failure
    missing = run("serve", path, "--api-key-file", tmp_path / "none").failure
    assert "key file" in missing
    assert (
        "--protect-reads needs a file of keys (api_key_file)"
        in run("serve", path, "--protect-reads").failure
    )
    assert "no address" in run("serve", path, "--host", "host.invalid").failure
