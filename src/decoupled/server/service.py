"""What the routes call: the engine's work, off the event loop, and the index's upkeep."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, TypeVar

from decoupled.engine import Engine
from decoupled.errors import InputError, MissingDependency, MissingRecord
from decoupled.index import Index
from decoupled.server.limits import Limits
from decoupled.server.schemas import Ask, PassageBody, Search
from decoupled.text import Passage

T = TypeVar("T")


class Service:
    """One engine behind one reading thread and one writing thread."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.engine = engine
        self.limits = limits
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._joint: Engine | None = None

    async def search(self, body: Search) -> dict[str, Any]:
        """The JSON of `search`."""
        return await self._read(lambda: self._search(body))

    async def ask(self, body: Ask) -> dict[str, Any]:
        """The JSON of `ask`."""
        return await self._read(lambda: self._ask(body))

    async def add(self, passages: Sequence[PassageBody]) -> dict[str, Any]:
        """Store passages; they are searchable, and durable, when this returns."""
        return await self._write(lambda: self._add(passages))

    async def delete(self, ident: str) -> dict[str, Any]:
        """Remove one passage."""
        return await self._write(lambda: self._delete(ident))

    async def info(self) -> dict[str, Any]:
        """What `info --json` prints."""
        return await self._read(lambda: self._index().info())

    async def ready(self) -> None:
        """Raise unless the model is loaded and the index can be read."""
        await self._read(self._check)

    def close(self) -> None:
        """Wait for what runs."""
        self._reader.shutdown()
        self._writer.shutdown()

    async def _read(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, work)

    async def _write(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)

    # In the threads -------------------------------------------------------------------------------

    def _index(self) -> Index:
        if self.engine.index is None:
            raise InputError("this server has a model but no index; start it with an index")
        return self.engine.index

    def _check(self) -> None:
        _ = self.engine.runtime
        if self.engine.index is not None:
            self.engine.index.refresh()

    def _search(self, body: Search) -> dict[str, Any]:
        hits = self.engine.search(
            body.query,
            body.k,
            first_stage=body.first_stage,
            candidates=body.candidates,
            where=body.where,
            raw=body.raw,
        )
        found = hits.to_json()
        if body.joint:
            texts = self.engine.candidates(
                body.query, body.candidates, first_stage=body.first_stage
            )
            other = self._joint_engine().rerank(body.query, texts=texts, k=body.k, raw=body.raw)
            found["joint"] = {name: other.to_json()[name] for name in ("hits", "timing")}
        return found

    def _ask(self, body: Ask) -> dict[str, Any]:
        answers = self.engine.ask(
            body.question,
            body.k,
            ids=body.ids,
            texts=body.texts,
            first_stage=body.first_stage,
            candidates=body.candidates,
            where=body.where,
            threshold=body.threshold,
        )
        found = answers.to_json()
        if body.joint:
            texts = self.engine.candidates(
                body.question, body.candidates, first_stage=body.first_stage
            )
            other = self._joint_engine().ask(
                body.question, body.k, texts=texts, threshold=body.threshold
            )
            found["joint"] = {name: other.to_json()[name] for name in ("answers", "timing")}
        return found

    def _joint_engine(self) -> Engine:
        if self._joint is None:
            if find_spec("torch") is None:
                raise MissingDependency("torch", "torch")
            from decoupled.model import Model

            self._joint = Engine(Model.split(self._index().source, at=0))
        return self._joint

    def _add(self, bodies: Sequence[PassageBody]) -> dict[str, Any]:
        passages = [
            Passage(id=b.id or made_id(b), text=b.text, title=b.title, meta=b.meta) for b in bodies
        ]
        with self._index().writer() as writer:
            added = writer.add(passages)
            total = len(writer)
        counts = {name: getattr(added, name) for name in ("added", "unchanged", "replaced")}
        return {**counts, "ids": [p.id for p in passages], "passages": total}

    def _delete(self, ident: str) -> dict[str, Any]:
        with self._index().writer() as writer:
            if not writer.delete([ident]):
                raise MissingRecord(f"the index has no passage {ident!r:.200}")
            return {"deleted": 1, "passages": len(writer)}


def made_id(body: PassageBody) -> str:
    """An id that depends on title and text, so that the same passage added twice is there once."""
    content = f"{body.title}\0{body.text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=8).hexdigest()
