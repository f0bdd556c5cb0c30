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
import threading
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path

from decoupled.errors import InputError
from decoupled.index.store.local import lock_file, size_of, write_whole
from decoupled.index.store.state_cache import bytes_in
from decoupled.runtime.cpu import cache_folder

SIZE = "DECOUPLED_CACHE_SIZE"
"""Environment variable with the budget of each index that a process reads, such as 50GB; 0 for none."""
DEFAULT = "10GB"

_log = logging.getLogger(__name__)

_CHUNK = 64 << 20
_CHUNKS = 128  # each is an open file, of which a process may have few

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
    if (size := bytes_in(text)) is None:
        raise InputError(f"{SIZE} is {text!r}; write a size such as 50GB, or 0 for no cache")
    return size


class DiskCache:
    """The cache of one process; processes that read at the same time each have a folder of their own."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.limit = limit
        self.hits = self.misses = 0
        # At most an eighth of the budget, so that dropping a chunk keeps most of the cache.
        self._chunk_size = max(1, min(max(_CHUNK, limit // _CHUNKS), limit // 8))
        self._guard = threading.Lock()
        self._where: dict[Key, tuple[_Chunk, int, int]] = {}
        self._chunks: list[_Chunk] = []
        self._read: set[Key] = set()
        self._off = False
        self._folder, self._lock = _own(folder)
        for path in sorted(self._folder.glob("*.chunk"), key=lambda p: int(p.stem)):
            self._adopt(path)
        self._next = int(self._chunks[-1].path.stem) + 1 if self._chunks else 0

    @property
    def bytes(self) -> int:
        """Bytes of the records that are kept."""
        return sum(chunk.end for chunk in self._chunks)

    def take(self, key: Key, out: memoryview) -> bool:
        """Fill `out` with a record; False if it is not here."""
        with self._guard:
            chunk, at, size = self._where.get(key, (None, 0, 0))
            if chunk and size == len(out) == os.preadv(chunk.descriptor, [out], at):
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
        """Forget records, such as damaged ones; returns whether any of them was here."""
        with self._guard:
            # A list and not a generator: `any` would stop at the first, and the others would stay.
            return any([self._where.pop(key, None) is not None for key in keys])

    def close(self) -> None:
        """Seal the newest chunk, and leave the folder to the next process."""
        with self._guard:
            for chunk in self._chunks:
                with suppress(OSError):  # one without its list is left out by the next process
                    chunk.seal()
            self._chunks.clear()
            self._where.clear()
            os.close(self._lock)

    def _append(self, key: Key, content: memoryview) -> None:
        if not self._chunks or self._chunks[-1].end + len(content) > self._chunk_size:
            for chunk in self._chunks[-1:]:
                chunk.seal()
            self._make_room()
            self._chunks.append(_Chunk(self._folder / f"{self._next}.chunk"))
            self._next += 1
        self._where[key] = self._chunks[-1].append(key, content)

    def _make_room(self) -> None:
        """Drop the oldest chunks until one more fits; what was read of them moves on, up to half."""
        while self._chunks and self.bytes + self._chunk_size > self.limit:
            oldest = self._chunks.pop(0)
            moving, room = [], self._chunk_size // 2
            for key, at, size in oldest.records:
                # It was dropped, or moved to a newer chunk meanwhile.
                if self._where.get(key) != (oldest, at, size):
                    continue
                del self._where[key]
                if key in self._read and size <= room:
                    room -= size
                    moving.append((key, os.pread(oldest.descriptor, size, at)))
                self._read.discard(key)
            oldest.remove()
            for newest in self._chunks[-1:]:
                for key, content in moving:
                    if newest.end + len(content) <= 2 * self._chunk_size:
                        self._where[key] = newest.append(key, memoryview(content))
                newest.seal()

    def _adopt(self, path: Path) -> None:
        """Take over a chunk that was sealed; any other may be torn, and goes."""
        chunk = _Chunk(path)
        try:
            lines = json.loads(chunk.listing.read_bytes())
        except (OSError, ValueError):
            lines = None
        chunk.end = max((at + size for *_, at, size in lines or ()), default=0)
        if lines is None or size_of(path) < chunk.end:
            chunk.remove()
            return
        chunk.records = [((segment, start), at, size) for segment, start, at, size in lines]
        chunk.sealed = True
        self._chunks.append(chunk)
        self._where |= {key: (chunk, at, size) for key, at, size in chunk.records}


class _Chunk:
    """A file of records, one after the other, and the list of them once it is sealed."""

    def __init__(self, path: Path) -> None:
        self.path, self.listing = path, path.with_suffix(".json")
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.records: list[tuple[Key, int, int]] = []
        self.end, self.sealed = 0, False

    def append(self, key: Key, content: memoryview) -> tuple[_Chunk, int, int]:
        """Write a record at the end, and return the chunk, the offset and the size."""
        at, size = self.end, len(content)
        if (written := os.pwrite(self.descriptor, content, at)) != size:
            raise OSError(errno.ENOSPC, f"{written} of {size} bytes written", str(self.path))
        self.records.append((key, at, size))
        self.end, self.sealed = at + size, False
        return self, at, size

    def seal(self) -> None:
        """Sync the chunk to disk, and write the list of its records."""
        if not self.sealed:
            os.fsync(self.descriptor)
            lines = [[*key, at, size] for key, at, size in self.records]
            write_whole(self.listing, json.dumps(lines).encode())
            self.sealed = True

    def remove(self) -> None:
        """Delete the chunk and its list of records."""
        self.listing.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

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
