"""A store's files under a prefix of an object store: `s3://`, `gs://`, `az://`, or `memory://` for tests.

Objects are durable once written, so there is nothing to sync and nothing to heal. The writer's lock is a
lease: an object that its holder renews with every commit, and that others may take over once it lapsed.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.errors import IndexBusy, MissingDependency
from decoupled.store.place import LOCK, STATES, TABLE, gone

LAPSE = 600.0
"""Seconds without a commit after which another writer may take the lease."""

_REQUESTS = 16
_CLIENT = ("allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout")


class Prefix:
    """Implements `Place` on an object store."""

    exclusive = False

    def __init__(self, uri: str, options: Mapping[str, str] | None) -> None:
        self._api = _obstore()
        self.name = uri
        self.table = f"{uri}/{TABLE}"
        self.options: dict[str, str] | None = dict(options) if options else None
        self._store, self.session = _connect(uri, json.dumps(self.options or {}, sort_keys=True))
        self._pool = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="segments")

    def prepare(self) -> None:
        """Nothing to make: objects need no folder."""

    def lock(self) -> Lease:
        """Become the writer, if nobody is or the last one lapsed."""
        return Lease(self._api, self._store, self.name)

    def heal(self) -> bool:
        """Objects are whole or absent."""
        return False

    def put(self, chunks: Iterable[npt.NDArray[np.uint8]]) -> tuple[str, int]:
        """Upload a segment in parts; objects cannot grow, so each is a new one."""
        segment = uuid.uuid4().hex
        with self._api.open_writer(self._store, _path(segment)) as file:
            for chunk in chunks:
                file.write(np.ascontiguousarray(chunk).tobytes())
        return segment, 0

    def finish(self) -> None:
        """Every segment is finished."""

    def length(self, segment: str) -> int:
        """Bytes of a segment, zero if it is gone."""
        try:
            return int(self._api.head(self._store, _path(segment))["size"])
        except FileNotFoundError:
            return 0

    def read(
        self,
        segments: Sequence[str],
        which: Sequence[int],
        starts: Sequence[int],
        sizes: Sequence[int],
        out: memoryview,
    ) -> None:
        """Range requests, neighbours joined, the segments at the same time."""
        ends = np.cumsum(sizes)
        mine: list[list[int]] = [[] for _ in segments]
        for i, number in enumerate(which):
            if sizes[i]:
                mine[number].append(i)

        def fetch(number: int) -> None:
            wanted = mine[number]
            try:
                pieces = self._api.get_ranges(
                    self._store,
                    _path(segments[number]),
                    starts=[starts[i] for i in wanted],
                    lengths=[sizes[i] for i in wanted],
                )
            except FileNotFoundError:
                raise gone(segments[number], self.name) from None
            for i, piece in zip(wanted, pieces, strict=True):
                out[ends[i] - sizes[i] : ends[i]] = memoryview(piece).cast("B")

        list(self._pool.map(fetch, [n for n, wanted in enumerate(mine) if wanted]))

    def segments(self) -> dict[str, int]:
        """Every segment and its bytes."""
        names = {path.rpartition("/")[2]: size for path, size in self._objects(STATES)}
        return {n.removesuffix(".bin"): size for n, size in names.items() if n.endswith(".bin")}

    def remove(self, segment: str) -> None:
        """Delete a segment."""
        self._api.delete(self._store, _path(segment))

    def let_go(self) -> None:
        """Nothing is held open."""

    def load(self, note: str) -> bytes | None:
        """A small object beside the segments."""
        try:
            return bytes(self._api.get(self._store, f"{STATES}/{note}").bytes())
        except FileNotFoundError:
            return None

    def save(self, note: str, content: bytes) -> None:
        """Replace a small object beside the segments."""
        self._api.put(self._store, f"{STATES}/{note}", content)

    def sync(self, files: Iterable[str]) -> None:
        """Objects are durable once written."""

    def sync_since(self, moment: float) -> None:
        """Objects are durable once written."""

    def bytes_under(self, folder: str) -> None:
        """Objects are whole or absent."""

    def size(self) -> int:
        """Bytes of the segments, and of the table where it is reached the same way."""
        return sum(size for folder in (STATES, TABLE) for _, size in self._objects(folder))

    def _objects(self, folder: str) -> Iterable[tuple[str, int]]:
        for batch in self._api.list(self._store, prefix=folder):
            for entry in batch:
                yield entry["path"], entry["size"]


class Lease:
    """The right to write, as an object with the time of its last renewal."""

    def __init__(self, api: Any, store: Any, name: str) -> None:
        self._api, self._store, self._name = api, store, name
        self._guard = threading.Lock()
        try:
            made = api.put(store, LOCK, _claim(), mode="create")
        except api.exceptions.AlreadyExistsError:
            made = self._take_over()
        self._tag, self._renewed = made["e_tag"], time.monotonic()

    def _take_over(self) -> Any:
        try:
            found = self._api.get(self._store, LOCK)
            held = json.loads(bytes(found.bytes()))
            if time.time() - held["at"] < LAPSE:
                raise IndexBusy(
                    f"{self._name} is being written by {held['by']}; wait for it or stop it. If it "
                    f"crashed, its claim lapses {LAPSE / 60:.0f} minutes after its last commit"
                )
            return self._api.put(self._store, LOCK, _claim(), mode={"e_tag": found.meta["e_tag"]})
        except (FileNotFoundError, self._api.exceptions.PreconditionError):
            raise IndexBusy(f"{self._name} changed hands just now; try again") from None

    def confirm(self) -> None:
        """Renew it; a lease that someone took over is lost."""
        with self._guard:
            if time.monotonic() - self._renewed < LAPSE / 20:
                return
            try:
                made = self._api.put(self._store, LOCK, _claim(), mode={"e_tag": self._tag})
            except (FileNotFoundError, self._api.exceptions.PreconditionError):
                raise IndexBusy(
                    f"{self._name} was taken over by another writer after {LAPSE / 60:.0f} minutes "
                    "without a commit; open it again"
                ) from None
            self._tag, self._renewed = made["e_tag"], time.monotonic()

    def release(self) -> None:
        """Delete the object."""
        self._api.delete(self._store, LOCK)


def _path(segment: str) -> str:
    return f"{STATES}/{segment}.bin"


def _claim() -> bytes:
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    return json.dumps({"by": holder, "at": time.time()}).encode()


def _obstore() -> Any:
    try:
        import_module("obstore.store")
        return import_module("obstore")
    except ModuleNotFoundError:
        raise MissingDependency("obstore", "cluster") from None


@cache
def _connect(uri: str, options: str) -> tuple[Any, Any]:
    """The object store of an address, and a Lance session for it.

    One of each per address, since what is under `memory://` lives in them.
    """
    stores, session = import_module("obstore.store"), import_module("lance").Session()
    if uri.startswith("memory:"):
        return stores.MemoryStore(), session
    settings = json.loads(options)
    client = {name: settings.pop(name) for name in _CLIENT if name in settings}
    store = stores.from_url(uri, config=settings, client_options=client)
    return store, session
