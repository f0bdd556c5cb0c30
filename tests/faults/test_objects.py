"""An object store that is slow and fails: what was acknowledged is there, and nothing else."""

from __future__ import annotations

import http.client
import http.server
import logging
import os
import random
import threading
import time
from collections import Counter
from typing import ClassVar

import pytest

from decoupled.errors import DecoupledError
from decoupled.index.index import Index
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from faults.figures import record

pytest.importorskip("obstore", reason="addresses need the extra `cluster`")
pytestmark = pytest.mark.faults

PASSAGES = [Passage(id=f"p{n}", text=f"the river of number {n}") for n in range(24)]
QUERY = "which river has the number 12"


class Unreliable(http.server.BaseHTTPRequestHandler):
    """Passes requests on; some wait, some are refused, some are carried out and then answered 500."""

    protocol_version = "HTTP/1.1"
    behind = ("127.0.0.1", 0)
    draw = random.Random(3)
    did: ClassVar[Counter[str]] = Counter()
    rate = 0.0

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        fate = self.draw.random()
        if fate < self.rate:
            self.did["slow"] += 1
            time.sleep(0.3)
        if self.rate < fate < 2 * self.rate:
            self.did["refused"] += 1
            self.answer(503, {}, b"")
            return
        connection = http.client.HTTPConnection(*self.behind)
        connection.request(self.command, self.path, body, dict(self.headers))
        reply = connection.getresponse()
        status, headers, content = reply.status, dict(reply.getheaders()), reply.read()
        connection.close()
        if 2 * self.rate < fate < 3 * self.rate:
            self.did["done, answered 500"] += 1
            status, headers, content = 500, {}, b""
        self.answer(status, headers, content)

    def answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
        self.send_header("content-length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    server = pytest.importorskip("moto.server", reason="the S3 server of the tests is moto")
    boto3 = pytest.importorskip("boto3")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    Unreliable.behind = moto.get_host_and_port()
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Unreliable)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{proxy.server_address[1]}"
    settings = {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "NO_PROXY": "127.0.0.1",
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    boto3.client("s3", endpoint_url=url).create_bucket(Bucket="faults")
    yield "s3://faults"
    proxy.shutdown()
    moto.stop()
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


def persistently(work, errors: Counter[str]):
    """Until it is done: an error is in words, and the same work again is safe."""
    for _ in range(60):
        try:
            return work()
        except DecoupledError as error:
            errors[type(error).__name__] += 1
        except (OSError, RuntimeError) as error:
            errors[f"{type(error).__name__}"] += 1
    raise AssertionError(f"never done: {errors}")


def test_a_store_that_fails_loses_nothing(bucket, model, tmp_path):
    split = Model.split(model("bert", "rank"), at=2)
    with Index.create(tmp_path / "local", split) as local:
        local.add(PASSAGES)
        local.delete(["p3"])
        expected = local.store.snapshot
    address = f"{bucket}/docs.idx"
    Index.create(address, split).close()
    errors: Counter[str] = Counter()
    acknowledged: list[str] = []
    Unreliable.rate = 0.06

    def add(part: list[Passage]) -> None:
        with Index.open(address, model=split, write=True) as index:
            index.add(part)

    def delete() -> None:
        with Index.open(address, model=split, write=True) as index:
            index.delete(["p3"])

    for start in range(0, len(PASSAGES), 4):
        part = PASSAGES[start : start + 4]
        persistently(lambda part=part: add(part), errors)
        acknowledged += [p.id for p in part]
        found = persistently(lambda: Index.open(address, model=split).store.snapshot, errors)
        persistently(lambda view=found, ids=tuple(acknowledged): view.locate(ids), errors)
    persistently(delete, errors)
    Unreliable.rate = 0.0
    view = Index.open(address, model=split).store.snapshot
    assert view.passages == expected.passages == 23 and len(view) == len(expected)
    ids = [p.id for p in PASSAGES if p.id != "p3"]
    assert (
        view.states(view.locate(ids)).values == expected.states(expected.locate(ids)).values
    ).all()
    did = dict(Unreliable.did)
    record("objects", requests=did, errors=dict(errors), lost=0)
    assert all(did.get(kind) for kind in ("slow", "refused", "done, answered 500"))
