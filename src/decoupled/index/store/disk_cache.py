"""Records of remote segments on a local disk, within a budget of bytes.

Segments never change, so nothing goes stale. Records are appended to chunk files; when the budget is
spent the oldest chunk goes, and those of its records that were read since they came move on. A full
chunk is sealed with a list of its records, which is what the next process finds again.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from decoupled.errors import InputError
from decoupled.index.store.local import bytes_of, lock_file, write_whole
from decoupled.runtime.cpu import cache_folder

SIZE = "DECOUPLED_CACHE_SIZE"
"""Environment variable with the budget of each index that a process reads, such as 50GB; 0 for none."""
DEFAULT = "10GB"

_log = logging.getLogger(__name__)

_CHUNK = 64 << 20
_CHUNKS = 128  # each is an open file, of which a process may have few
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

Key = tuple[str, int]
"""A segment, and where in it a record begins."""


def open_cache(uri: str) -> DiskCache | None:
    """The cache for one address, as the environment sets it; None where it is switched off."""
    limit = parse_size(os.environ.get(SIZE, DEFAULT))
    if not limit:
        return None
    name = hashlib.sha256(uri.encode()).hexdigest()[:16]
    folder = cache_folder() / "segments" / name
    try:
        cache = DiskCache(folder, limit)
    except OSError as error:
        _log.warning("%s cannot be written, so nothing is cached: %s", folder, error)
        return None
    atexit.register(cache.close)
    return cache


def parse_size(text: str) -> int:
    """Bytes from `500MB`, `2TB` or a plain number."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)I?B?\s*", text.upper())
    if found is None:
        raise InputError(f"{SIZE} is {text!r}; write a size such as 50GB, or 0 for no cache")
    return int(float(found[1]) * _UNITS[found[2]])


class DiskCache:
    """One process's share of a cache folder: processes that read at the same time have one each."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.limit = limit
        self.hits = self.misses = 0
        self._chunk_size = max(1, min(max(_CHUNK, limit // _CHUNKS), limit // 8))
        self._guard = threading.Lock()
        self._where: dict[Key, tuple[int, int, int]] = {}
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()
        self._read: set[Key] = set()
        self._off = False
        self._folder, self._lock = _own(folder)
        for path in sorted(self._folder.glob("*.chunk"), key=lambda p: int(p.stem)):
            self._adopt(path)
        self._next = max(self._chunks, default=-1) + 1

    @property
    def bytes(self) -> int:
        """Bytes of the records that are kept."""
        return sum(chunk.end for chunk in self._chunks.values())

    def take(self, key: Key, out: memoryview) -> bool:
        """Fill `out` with a record; False if it is not here."""
        with self._guard:
            found = self._where.get(key)
            if found is None or found[2] != len(out):
                self.misses += 1
                return False
            number, at, _ = found
            if os.preadv(self._chunks[number].descriptor, [out], at) != len(out):
                self.misses += 1
                return False
            self._read.add(key)
            self.hits += 1
            return True

    def keep(self, key: Key, content: memoryview) -> None:
        """Remember a record, while the disk takes them; one that is larger than a chunk is passed over."""
        with self._guard:
            if self._off or key in self._where or len(content) > self._chunk_size:
                return
            try:
                self._append(key, content)
            except OSError as error:
                self._off = True
                _log.warning("%s: nothing more is cached: %s", self._folder, error)

    def drop(self, keys: Iterable[Key]) -> bool:
        """Forget records, such as those that a disk has changed; whether any of them was here."""
        with self._guard:
            return any([self._where.pop(key, None) is not None for key in keys])

    def close(self) -> None:
        """Seal the newest chunk, and leave the folder to the next process."""
        with self._guard:
            for number in self._chunks:
                with suppress(OSError):  # one without its list is left out by the next process
                    self._seal(number)
            self._chunks.clear()
            self._where.clear()
            os.close(self._lock)

    def _append(self, key: Key, content: memoryview) -> None:
        last = next(reversed(self._chunks), None)
        if last is None or self._chunks[last].end + len(content) > self._chunk_size:
            if last is not None:
                self._seal(last)
            self._make_room()
            last, self._next = self._next, self._next + 1
            self._chunks[last] = _Chunk(self._folder / f"{last}.chunk")
        chunk = self._chunks[last]
        self._where[key] = last, chunk.append(key, content), len(content)

    def _make_room(self) -> None:
        """Drop the oldest chunks until one more fits; what was read of them moves on, up to half."""
        while self._chunks and self.bytes + self._chunk_size > self.limit:
            number, chunk = self._chunks.popitem(last=False)
            moving: list[tuple[Key, bytes]] = []
            live = [r for r in chunk.records if self._where.get(r[0], (None,))[0] == number]
            for key, _, _ in live:
                self._where.pop(key, None)
            for key, at, size in live:
                room = self._chunk_size // 2 - sum(len(c) for _, c in moving)
                if key in self._read and size <= room and self._chunks:
                    moving.append((key, os.pread(chunk.descriptor, size, at)))
                self._read.discard(key)
            chunk.remove()
            last = next(reversed(self._chunks), None)
            for key, content in moving:
                assert last is not None
                newest = self._chunks[last]
                if newest.end + len(content) <= 2 * self._chunk_size:
                    at = newest.append(key, memoryview(content))
                    self._where[key] = last, at, len(content)
                    newest.sealed = False
            if last is not None:
                self._seal(last)

    def _seal(self, number: int) -> None:
        chunk = self._chunks[number]
        if not chunk.sealed:
            os.fsync(chunk.descriptor)
            lines = [[*key, at, size] for key, at, size in chunk.records]
            write_whole(chunk.path.with_suffix(".json"), [memoryview(json.dumps(lines).encode())])
            chunk.sealed = True

    def _adopt(self, path: Path) -> None:
        """Take over a chunk that was sealed; any other may be torn, and goes."""
        listing = path.with_suffix(".json")
        try:
            lines = json.loads(listing.read_bytes())
        except (OSError, ValueError):
            lines = None
        if lines is None or bytes_of(path) < max((at + size for *_, at, size in lines), default=0):
            path.unlink(missing_ok=True)
            listing.unlink(missing_ok=True)
            return
        chunk = _Chunk(path)
        number = int(path.stem)
        for segment, start, at, size in lines:
            chunk.records.append(((segment, start), at, size))
            chunk.end = max(chunk.end, at + size)
            self._where[segment, start] = number, at, size
        chunk.sealed = True
        self._chunks[number] = chunk


class _Chunk:
    """A file of records, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.records: list[tuple[Key, int, int]] = []
        self.end = 0
        self.sealed = False

    def append(self, key: Key, content: memoryview) -> int:
        """Write a record at the end; where that is."""
        at = self.end
        if (written := os.pwrite(self.descriptor, content, at)) != len(content):
            raise OSError(
                errno.ENOSPC, f"{written} of {len(content)} bytes written", str(self.path)
            )
        self.records.append((key, at, len(content)))
        self.end += len(content)
        return at

    def remove(self) -> None:
        """Delete the file."""
        self.path.with_suffix(".json").unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def __del__(self) -> None:
        os.close(self.descriptor)


def _own(folder: Path) -> tuple[Path, int]:
    """A folder in `folder` that no other process uses, and the lock that says so."""
    number = 0
    while True:
        mine = folder / str(number)
        mine.mkdir(parents=True, exist_ok=True)
        lock = os.open(mine / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            lock_file(lock)
        except OSError:
            os.close(lock)
            number += 1
        else:
            return mine, lock
