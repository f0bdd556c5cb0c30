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
from itertools import count
from pathlib import Path

from decoupled.errors import InputError
from decoupled.index.store.local import lock_file, size_and_time, write_whole
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
    folder = cache_folder() / "segments" / hashlib.sha256(uri.encode()).hexdigest()[:16]
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
            number, at, size = self._where.get(key, (0, 0, -1))
            here = size == len(out)
            if here and os.preadv(self._chunks[number].descriptor, [out], at) == size:
                self._read.add(key)
                self.hits += 1
                return True
            self.misses += 1
            return False

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
            live = [r for r in chunk.records if self._where.get(r[0]) == (number, *r[1:])]
            moving, room = [], self._chunk_size // 2
            for key, at, size in live:
                del self._where[key]
                if key in self._read and size <= room:
                    room -= size
                    moving.append((key, os.pread(chunk.descriptor, size, at)))
                self._read.discard(key)
            chunk.path.with_suffix(".json").unlink(missing_ok=True)
            chunk.path.unlink(missing_ok=True)
            if not self._chunks:
                return
            last, newest = next(reversed(self._chunks.items()))
            for key, content in moving:
                if newest.end + len(content) <= 2 * self._chunk_size:
                    at = newest.append(key, memoryview(content))
                    self._where[key] = last, at, len(content)
                    newest.sealed = False
            self._seal(last)

    def _seal(self, number: int) -> None:
        chunk = self._chunks[number]
        if not chunk.sealed:
            os.fsync(chunk.descriptor)
            lines = [[*key, at, size] for key, at, size in chunk.records]
            write_whole(chunk.path.with_suffix(".json"), json.dumps(lines).encode())
            chunk.sealed = True

    def _adopt(self, path: Path) -> None:
        """Take over a chunk that was sealed; any other may be torn, and goes."""
        listing = path.with_suffix(".json")
        try:
            lines = json.loads(listing.read_bytes())
        except (OSError, ValueError):
            lines = None
        end = max((at + size for *_, at, size in lines or ()), default=0)
        if lines is None or size_and_time(path)[0] < end:
            path.unlink(missing_ok=True)
            listing.unlink(missing_ok=True)
            return
        number = int(path.stem)
        chunk = self._chunks[number] = _Chunk(path)
        chunk.end, chunk.sealed = end, True
        for segment, start, at, size in lines:
            chunk.records.append(((segment, start), at, size))
            self._where[segment, start] = number, at, size


class _Chunk:
    """A file of records, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.records: list[tuple[Key, int, int]] = []
        self.end, self.sealed = 0, False

    def append(self, key: Key, content: memoryview) -> int:
        """Write a record at the end; where that is."""
        at = self.end
        if (written := os.pwrite(self.descriptor, content, at)) != len(content):
            why = f"{written} of {len(content)} bytes written"
            raise OSError(errno.ENOSPC, why, str(self.path))
        self.records.append((key, at, len(content)))
        self.end += len(content)
        return at

    def __del__(self) -> None:
        os.close(self.descriptor)


def _own(folder: Path) -> tuple[Path, int]:
    """A folder in `folder` that no other process uses, and the lock that says so."""
    numbers = count()
    while True:
        mine = folder / str(next(numbers))
        mine.mkdir(parents=True, exist_ok=True)
        lock = os.open(mine / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            lock_file(lock)
            return mine, lock
        except OSError:
            os.close(lock)
