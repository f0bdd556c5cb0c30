"""A tiny index behind the real application, for tests of the server in this process."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from decoupled.index.index import Index
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine
from decoupled.serve.http.limits import Limits
from decoupled.serve.http.server import Server, bind

TEXTS = {
    "dracula": "Bram Stoker wrote Dracula, a novel of a count and a castle",
    "paris": "Paris is the capital of France, on the river",
    "moon": "the moon is a small world near the earth",
    "long": "the old house by the sea " * 60,
}


def tiny_split(model: Callable[..., Model]) -> Model:
    """A tiny model with rank and span heads, split at 2."""
    rank = model("bert", "rank").spec.head("rank")
    return Model.split(model("bert", "span").with_heads(rank, seed=1), at=2)


def tiny_index(path: Path, model: Model) -> Path:
    """An index of `TEXTS`."""
    with Index.create(path, model, codec="fp32") as index:
        index.add(
            Passage(id=name, text=text, meta={"n": n})
            for n, (name, text) in enumerate(TEXTS.items())
        )
    return path


def tiny_engine(path: Path, model: Model, **options: int) -> Engine:
    """An engine over it that shares the loaded model."""
    return Engine(Index.open(path, model=model), **options)


@contextmanager
def listening(app: FastAPI, limits: Limits = Limits()) -> Iterator[str]:
    """The application on a real socket, in a thread; its address."""
    taken = bind("127.0.0.1", 0)
    server = Server(app, limits=limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def call_held(
    app: FastAPI, route: str, content: bytes, method: str = "POST"
) -> tuple[int, Any, float]:
    """Status and JSON of one request, and the longest that it kept the event loop from anything else.

    Counted in the processor time of the loop's thread, so that a busy machine does not matter.
    """
    path = {"path": route, "raw_path": route.encode(), "query_string": b"", "root_path": ""}
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "http_version": "1.1", "method": method, **path, "headers": headers}
    pieces = [content[n : n + (256 << 10)] for n in range(0, len(content), 256 << 10)] or [b""]
    said: list[dict[str, Any]] = []
    worst = 0.0

    async def receive() -> dict[str, Any]:
        if not pieces:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        said.append(message)

    async def watch() -> None:
        nonlocal worst
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            worst = max(worst, time.thread_time() - before)

    async def call() -> None:
        watching = asyncio.ensure_future(watch())
        await app({**scope, "scheme": "http", "state": {}}, receive, send)
        watching.cancel()

    # What other tests left to be collected is not this request's.
    gc.collect()
    gc.disable()
    try:
        asyncio.run(call())
    finally:
        gc.enable()
    body = b"".join(m.get("body", b"") for m in said)
    return said[0]["status"], json.loads(body), worst
