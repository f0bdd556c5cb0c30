"""A tiny index behind the real application, for tests of the server in this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from decoupled.index.index import Index
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine

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
def listening(app: FastAPI) -> Iterator[str]:
    """The application on a real socket, in a thread; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
