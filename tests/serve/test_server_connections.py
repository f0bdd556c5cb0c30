"""Connections: half-open, idle, endless and half-closed ones shut nobody out."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from unittest.mock import Mock

import pytest
from test_server_faults import Held, call, connect, metric, post, process, wait_for, whole

from decoupled.serve.http import connections
from decoupled.serve.http.app import create_app
from decoupled.serve.http.limits import Limits
from served import listening, tiny_engine, tiny_index, tiny_split


@pytest.fixture(scope="module")
def split(model):
    return tiny_split(model)


@pytest.fixture(scope="module")
def path(split, tmp_path_factory):
    return tiny_index(tmp_path_factory.mktemp("connections") / "i", split)


@pytest.fixture
def engine(path, split):
    return tiny_engine(path, split)


def half_open(url, count):
    opened = [connect(url) for _ in range(count)]
    for connection in opened:
        connection.sendall(b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\nx-slow: ")
    return opened


def test_headers_that_do_not_end_are_cut_off(engine, caplog):
    limits = Limits(header_seconds=0.5)
    with listening(create_app(engine, limits=limits), limits) as url, caplog.at_level("WARNING"):
        slow, silent, kept = half_open(url, 1)[0], connect(url), connect(url)
        kept.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert kept.recv(65536).startswith(b"HTTP/1.1 200")
        kept.sendall(b"\r\n")  # an empty line before a request is none
        for connection in (slow, silent, kept):
            reply = whole(connection)
            assert b"HTTP/1.1 408" in reply and b"header_seconds = 0.5" in reply
            connection.close()
    lines = [r.getMessage() for r in caplog.records if r.name == connections.__name__]
    assert any("closed without a request within 0.5 s" in line for line in lines)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"x-long: " + b"a" * 30_000, b"200"),
        (b"x-long: " + b"a" * 40_000, b"431"),
        (b"x-endless: " + b"a" * 3_000_000, b"431"),
        (b"\r\n".join(b"x-%d: a" % n for n in range(95)), b"200"),
        (b"\r\n".join(b"x-%d: a" % n for n in range(105)), b"431"),
    ],
)
def test_heads_are_bounded(engine, headers, status):
    with listening(create_app(engine)) as url, connect(url) as connection:
        request = b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + headers + b"\r\n\r\n"
        try:
            connection.sendall(request)
            reply = connection.recv(65536)
        except ConnectionError:  # closed while more is sent
            reply = b""
        assert reply[9:12] == status or (len(headers) > 1 << 20 and not reply)
        if b"431" in reply[:20]:
            assert b"header_bytes = 32,768, headers = 100" in reply
        assert call(url, "GET", "/health")[0] == 200


def test_connections_that_wait_give_way(engine, caplog):
    limits = Limits(connections=8)
    with listening(create_app(engine, limits=limits), limits) as url, caplog.at_level("WARNING"):
        opened = half_open(url, 30)
        for _ in range(10):
            assert call(url, "GET", "/health")[0] == 200
        closed = [c for c in opened if gone(c)]
        assert closed == opened[: len(closed)] and 22 <= len(closed) <= 30, "the oldest first"
        kept = [connect(url) for _ in range(8)]
        for connection in kept:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        begun = time.monotonic()
        assert call(url, "POST", "/v1/search", {"query": "river"})[0] == 200
        assert time.monotonic() - begun < 5
        for connection in (*opened, *kept):
            connection.close()
    lines = [r.getMessage() for r in caplog.records if r.name == connections.__name__]
    assert 1 <= len(lines) < 5 and "at most 8" in lines[0] and "to let others in" in lines[0]


def gone(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_requests_that_are_being_answered_do_not_give_way(engine):
    limits, held = Limits(connections=2), Held(engine)
    with listening(create_app(engine, limits=limits), limits) as url:
        busy = [connect(url) for _ in range(2)]
        for connection in busy:
            connection.sendall(post({"query": "x", "documents": ["a"]}))
        assert held.begun.wait(10)
        time.sleep(0.2)
        with connect(url) as refused:
            reply = whole(refused)
        assert reply.startswith(b"HTTP/1.1 503") and b"retry-after: 1" in reply
        assert json.loads(reply.partition(b"\r\n\r\n")[2])["error_type"] == "overloaded"
        held.go.set()
        for connection in busy:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            connection.close()


def test_too_many_requests_at_once_on_a_connection_are_refused(engine):
    get = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    last = get.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    with listening(create_app(engine)) as url:
        with connect(url) as connection:
            connection.sendall(get * connections.PIPELINED + last)
            assert whole(connection).count(b"HTTP/1.1 200") == connections.PIPELINED + 1
        with connect(url) as connection:
            connection.sendall(get * (connections.PIPELINED + 2))
            reply = whole(connection)
        assert b"HTTP/1.1 429" in reply and b"retry-after: 1" in reply and b"wait for" in reply


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_client_that_closed_its_side_is_answered(engine, version):
    held = Held(engine)
    with listening(create_app(engine)) as url, connect(url) as half:
        request = post({"query": "x", "documents": ["a"]})
        half.sendall(request.replace(b"HTTP/1.1", b"HTTP/" + version.encode()))
        half.shutdown(socket.SHUT_WR)
        assert held.begun.wait(10)
        time.sleep(0.5)
        held.go.set()
        reply = whole(half)
        assert b" 200 OK\r\n" in reply and b"relevance_score" in reply
        assert reply.startswith(b"HTTP/1.1 100" if version == "1.1" else b"HTTP/1.1 200")
        assert call(url, "GET", "/health")[0] == 200


def test_a_client_that_closed_its_side_in_its_request_is_forgotten(engine):
    app = create_app(engine)
    with listening(app) as url, connect(url) as half:
        half.sendall(post({"query": "x"}, promise=10))
        half.shutdown(socket.SHUT_WR)
        assert whole(half) == b""
        labels = {"route": "other", "status": "499"}
        wait_for(lambda: metric(app, "decoupled_requests_total", **labels) == 1)


def large():
    texts = ["the old house by the sea " * 5000] * 60
    body = {"query": "x", "texts": texts, "return_text": True, "truncate": True}
    return post(body, route="/rerank")


def deaf(url, request):
    """A client with hardly any room for an answer."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.connect(("127.0.0.1", int(url.rpartition(":")[2])))
    opened.settimeout(20)
    opened.sendall(request)
    return opened


@pytest.mark.parametrize("crawls", [False, True])
def test_an_answer_that_is_not_read_is_dropped(engine, monkeypatch, caplog, crawls):
    monkeypatch.setattr(connections, "_STALLED", 0.3)
    with listening(create_app(engine)) as url, caplog.at_level("WARNING"):
        with deaf(url, large()) as client:

            def dropped():
                if crawls:
                    client.recv(256)
                return "did not read its answer" in caplog.text

            with suppress(ConnectionError):
                wait_for(dropped, 30)
        assert "did not read its answer" in caplog.text


def test_a_client_that_reads_one_answer_has_time_for_the_next(monkeypatch):
    plain = connections.HttpToolsProtocol
    monkeypatch.setattr(plain, "on_response_complete", lambda self: None)
    one = connections.Connection.__new__(connections.Connection)
    one._gate, one._reading, one.cycle = connections.Gate(Limits()), None, None
    one.transport, one.loop = Mock(), Mock()
    one.transport.get_write_buffer_size.return_value = 1 << 20
    one.loop.call_later.side_effect = lambda *_: Mock()
    one.on_response_complete()
    first = one._reading
    one.on_response_complete()
    assert first.cancel.called and not one._reading.cancel.called


def test_answers_that_are_not_read_hold_so_many_bytes(engine, caplog):
    limits = Limits(bytes_in_flight=8 << 20)
    with listening(create_app(engine, limits=limits), limits) as url, caplog.at_level("WARNING"):
        clients = []
        for _ in range(3):
            clients.append(deaf(url, large()))
            assert clients[-1].recv(1)  # its body is no longer in flight
        wait_for(lambda: "answers that were not read held bytes_in_flight" in caplog.text)
        for client in clients:
            client.close()
        assert call(url, "GET", "/health")[0] == 200


def test_descriptors_are_left_for_everything_else(path):
    few = ("bash", "-c", 'ulimit -n 400; exec "$0" "$@"')
    with process(path, "--log-level", "warning", wrap=few) as (running, url):
        opened = half_open(url, 500)
        worst = 0.0
        for _ in range(20):
            begun = time.monotonic()
            assert call(url, "POST", "/v1/search", {"query": "river"})[0] == 200
            worst = max(worst, time.monotonic() - begun)
        assert worst < 5, "it waited for the descriptors of others"
        put = {"passages": [{"id": "new", "text": "a xylophone"}]}
        assert call(url, "PUT", "/v1/passages", put)[0] == 200
        for connection in opened:
            connection.close()
        running.terminate()
        said = running.stderr.read()
    assert "connections, at most 144:" in said and "Traceback" not in said


def test_the_limit_on_files_is_raised_where_it_can_be(monkeypatch):
    import resource

    limits = {"now": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.update(now=wanted))
    assert connections.most_connections(1000) == 1000 and limits["now"] == (1256, 4096)
    limits["now"] = (1024, 1024)
    assert connections.most_connections(1000) == 768
    limits["now"] = (100, 100)
    assert connections.most_connections(1000) == 16
