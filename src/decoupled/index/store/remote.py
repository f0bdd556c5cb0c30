"""A store's files under a prefix of an object store: `s3://`, `gs://`, `az://`, or `memory://` for tests.

Objects are durable once written, so there is nothing to sync and nothing to heal. The writer's lock is a
lease: an object that its holder renews with every commit, and that others may take over once it lapsed.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from decoupled.errors import DecoupledError, IndexBusy, MissingDependency
from decoupled.index.store.disk_cache import DiskCache, open_cache
from decoupled.index.store.location import LOCK, STATES, TABLE, Location, Range, gone
from decoupled.model.jsonable import JsonObject
from decoupled.runtime.cpu import cache_folder

LAPSE = 600.0
"""Seconds without a commit after which another writer may take the lease."""

# Requests under way at the same time.
_REQUESTS = 16
_T = TypeVar("_T")


class Prefix(Location):
    """A `Location` on an object store."""

    exclusive = False

    def __init__(self, uri: str) -> None:
        self._api = _obstore()
        self.name = self.address = uri
        self.table = f"{uri}/{TABLE}"
        self._store, self.session, self._cache = _connect(uri)
        self._pool = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="segments")

    def lock(self) -> Lease:
        """Become the writer, if nobody is or the last one lapsed."""
        return Lease(self._api, self._store, self.name)

    def put(self, chunks: Iterable[npt.NDArray[np.uint8]]) -> tuple[str, int]:
        """Upload a segment in parts; objects cannot grow, so each is a new one."""
        segment = uuid.uuid4().hex
        with _reaching(self.name), self._api.open_writer(self._store, _path(segment)) as file:
            for chunk in chunks:
                file.write(np.ascontiguousarray(chunk).tobytes())
        return segment, 0

    def length(self, segment: str) -> int:
        head = self._if_there(lambda: self._api.head(self._store, _path(segment)))
        return int(head["size"]) if head else 0

    def read(self, ranges: Sequence[Range], out: memoryview) -> None:
        """Fill `out` from the disk cache, then by range requests to all segments at the same time."""
        missing: dict[str, list[tuple[int, memoryview]]] = {}
        cache, at = self._cache, 0
        for segment, start, size in ranges:
            view = out[at : at + size]
            at += size
            if view and not (cache and cache.take((segment, start), view)):
                missing.setdefault(segment, []).append((start, view))

        def fetch(segment: str) -> None:
            path, extents = _path(segment), missing[segment]
            starts, lengths = [start for start, _ in extents], [len(view) for _, view in extents]
            pieces = self._if_there(
                lambda: self._api.get_ranges(self._store, path, starts=starts, lengths=lengths)
            )
            if pieces is None:
                raise gone(f"segment {segment}", self.name)
            for (start, view), piece in zip(extents, pieces, strict=True):
                view[:] = memoryview(piece).cast("B")
                if cache:
                    cache.keep((segment, start), view)

        list(self._pool.map(fetch, missing))

    def forget(self, records: Sequence[tuple[str, int]]) -> bool:
        return self._cache is not None and self._cache.drop(records)

    def segments(self) -> dict[str, int]:
        names = {e["path"].rpartition("/")[2]: e["size"] for e in self._entries(STATES)}
        return {n.removesuffix(".bin"): size for n, size in names.items() if n.endswith(".bin")}

    def remove(self, segment: str) -> None:
        with _reaching(self.name):
            self._api.delete(self._store, _path(segment))

    def names(self) -> list[str]:
        with _reaching(self.name):
            listing = self._api.list_with_delimiter(self._store)
        return [o["path"] for o in listing["objects"]] + list(listing["common_prefixes"])

    def load(self, file: str) -> bytes | None:
        return self._if_there(lambda: bytes(self._api.get(self._store, file).bytes()))

    def save(self, file: str, content: bytes) -> None:
        with _reaching(self.name):
            self._api.put(self._store, file, content)

    def stamp(self, file: str) -> str | None:
        head = self._if_there(lambda: self._api.head(self._store, file))
        return f"{head['e_tag']} {head['last_modified']}" if head else None

    def fetch(self, folder: str) -> Path:
        """A copy on this machine, made once for each content."""
        mark = hashlib.sha256(self.name.encode())
        entries = sorted(self._entries(folder), key=lambda e: str(e["path"]))
        for entry in entries:
            # The copy is named by tags of its objects, so a changed folder is fetched anew.
            mark.update(f"{entry['path']} {entry['size']} {entry['e_tag']}\n".encode())
        copy = cache_folder() / "fetched" / mark.hexdigest()[:24]
        if entries and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=copy.parent) as scratch:
                for entry in entries:
                    target = Path(scratch) / entry["path"]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("wb") as out, _reaching(self.name):
                        out.writelines(self._api.get(self._store, entry["path"]).stream())
                try:
                    (Path(scratch) / folder).rename(copy)
                except OSError:  # another process was faster
                    if not copy.exists():
                        raise
        return copy

    def publish(self, folder: str, make: Callable[[Path], None]) -> None:
        """Upload what is made in a temporary folder."""
        with tempfile.TemporaryDirectory() as scratch:
            make(Path(scratch) / folder)
            for path in filter(Path.is_file, sorted(Path(scratch).rglob("*"))):
                with _reaching(self.name):
                    self._api.put(self._store, path.relative_to(scratch).as_posix(), path)

    def total(self) -> int:
        return sum(e["size"] for e in self._entries(None))

    def _entries(self, folder: str | None) -> Iterable[Any]:
        with _reaching(self.name):
            for batch in self._api.list(self._store, prefix=folder):
                yield from batch

    def _if_there(self, ask: Callable[[], _T]) -> _T | None:
        """What the object store answers; None where it has no such object."""
        try:
            with _reaching(self.name):
                return ask()
        except FileNotFoundError:
            return None


class Lease:
    """The right to write, as an object with the time of its last renewal.

    A request that was carried out may still be answered with an error, and its repetition then meets the
    claim that it left; so a claim says whose it is.
    """

    def __init__(self, api: Any, store: Any, name: str) -> None:
        self._api, self._store, self._name = api, store, name
        self._guard, self._mine = threading.Lock(), uuid.uuid4().hex
        self._tag, self._renewed = "", 0.0
        with _reaching(name):
            if not self._claim("create"):
                self._take_over()

    def _claim(self, mode: Any) -> bool:
        """Write our claim if the condition `mode` holds; returns whether the lease is ours now."""
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        claim = {"by": holder, "at": time.time(), "claim": self._mine}
        refused = (*self._lost, self._api.exceptions.AlreadyExistsError)
        try:
            tag = self._api.put(self._store, LOCK, json.dumps(claim).encode(), mode=mode)["e_tag"]
        except refused:
            held, tag = self._held()
            if held != claim:
                return False
        self._tag, self._renewed = tag, time.monotonic()
        return True

    def _held(self) -> tuple[JsonObject, str]:
        """The claim that is there, and its tag; an empty one where there is none."""
        try:
            lock = self._api.get(self._store, LOCK)
            return json.loads(bytes(lock.bytes())), lock.meta["e_tag"]
        except FileNotFoundError:
            return {}, ""

    @property
    def _lost(self) -> tuple[type[Exception], ...]:
        return FileNotFoundError, self._api.exceptions.PreconditionError

    def _take_over(self) -> None:
        held, tag = self._held()
        # A claim from the future is of a clock that went wrong; who holds it is told by `confirm`.
        if held and abs(time.time() - held["at"]) < LAPSE:
            raise IndexBusy(
                f"{self._name} is being written by {held['by']}; wait for it or stop it. If it "
                f"crashed, its claim lapses {LAPSE / 60:.0f} minutes after its last commit"
            )
        if not held or not self._claim({"e_tag": tag}):
            raise IndexBusy(f"{self._name} changed hands just now; try again")

    def confirm(self) -> None:
        """Renew it; a lease that someone took over is lost."""
        with self._guard, _reaching(self._name):
            # A renewal of the last half minute is far from lapsing, and each costs a request.
            if time.monotonic() - self._renewed < LAPSE / 20:
                return
            if not self._claim({"e_tag": self._tag}):
                raise IndexBusy(
                    f"{self._name} was taken over by another writer after {LAPSE / 60:.0f} minutes "
                    "without a commit; open it again"
                )

    def release(self) -> None:
        """Delete the object, unless it is another writer's by now."""
        with self._guard, _reaching(self._name):
            held, tag = self._held()
            if tag == self._tag or held.get("claim") == self._mine:
                self._api.delete(self._store, LOCK)


@contextmanager
def _reaching(name: str) -> Iterator[None]:
    """Turn errors of the object store into `DecoupledError`; `FileNotFoundError` passes through."""
    try:
        yield
    except _obstore().exceptions.BaseError as error:
        why = str(error).partition("\n")[0]
        raise DecoupledError(
            f"{name} cannot be reached ({why}); check the address and the settings of the "
            "object store in the environment, such as AWS_REGION or AWS_ENDPOINT_URL"
        ) from None


def _path(segment: str) -> str:
    return f"{STATES}/{segment}.bin"


def _obstore() -> Any:
    try:
        import_module("obstore.store")
        return import_module("obstore")
    except ModuleNotFoundError:
        raise MissingDependency("obstore", "cluster") from None


@cache
def _connect(uri: str) -> tuple[Any, Any, DiskCache | None]:
    """An object store, a Lance session and a cache for each address: `memory://` lives in them."""
    stores, session = import_module("obstore.store"), import_module("lance").Session()
    if uri.startswith("memory:"):
        return stores.MemoryStore(), session, None
    # Lance reads this one from the environment; obstore reads all but this one.
    client = {"allow_http": True} if os.environ.get("AWS_ALLOW_HTTP") == "true" else {}
    return stores.from_url(uri, client_options=client), session, open_cache(uri)
