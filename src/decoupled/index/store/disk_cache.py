"""Records of remote segments on a local disk, within a budget of bytes.

Segments never change, so nothing goes stale. The processes of a machine share one database of SQLite for each
address. When the budget is spent the oldest records go, but for those that were read since they came.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from decoupled.errors import InputError
from decoupled.index.store.state_cache import bytes_in
from decoupled.runtime.cpu import cache_folder

SIZE = "DECOUPLED_CACHE_SIZE"
"""Environment variable with the budget of each index, such as 50GB; 0 for none."""
DEFAULT = "10GB"

_log = logging.getLogger(__name__)

_TABLE = """
CREATE TABLE IF NOT EXISTS records
(id INTEGER PRIMARY KEY, segment TEXT, start INTEGER, size INTEGER, content BLOB, UNIQUE (segment, start));
CREATE INDEX IF NOT EXISTS sizes ON records (size);
"""
# Seconds that a process waits for another one; records that are looked at together when room is made.
_PATIENCE, _BATCH = 5.0, 256

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
    except (OSError, sqlite3.Error) as error:
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
    """The cache of one address; threads and processes may share it."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.limit = limit
        self.hits = self.misses = 0
        self._guard, self._off, self._added = threading.Lock(), False, 0
        self._read: set[Key] = set()
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "records.sqlite"
        try:
            self._records = _opened(self._path)
        except sqlite3.DatabaseError:  # a machine that lost power may leave half of it
            self._path.unlink()
            self._records = _opened(self._path)
        self._make_room()
        # Pages of what went are used again; where the budget became much smaller, they leave the disk.
        for free, size in self._run("SELECT * FROM pragma_freelist_count, pragma_page_size"):
            if free * size > self.limit:
                with suppress(sqlite3.OperationalError):  # another process reads it just now
                    self._records.execute("VACUUM")

    @property
    def bytes(self) -> int:
        """Bytes of the records that are kept."""
        rows = self._run("SELECT total(size) FROM records")
        return int(rows[0][0]) if rows else 0

    def take(self, key: Key, out: memoryview) -> bool:
        """Fill `out` with a record; False if it is not here."""
        with self._guard:
            rows = self._run("SELECT content FROM records WHERE segment = ? AND start = ?", *key)
            if rows and len(rows[0][0]) == len(out):
                out[:] = rows[0][0]
                self._read.add(key)
                self.hits += 1
                return True
            self.misses += 1
            return False

    def keep(self, key: Key, content: memoryview) -> None:
        """Remember a record, while the disk takes them; one that is large for the budget is passed over."""
        with self._guard:
            size = len(content)
            if self._off or size > self.limit // 8:
                return
            if self._added + size > self.limit // 8:
                self._make_room()
            add = (
                "INSERT OR IGNORE INTO records (segment, start, size, content) VALUES (?, ?, ?, ?)"
            )
            self._run(add, *key, size, content)
            self._added += size

    def drop(self, keys: Iterable[Key]) -> bool:
        """Forget records, such as damaged ones; returns whether any of them was here."""
        with self._guard:
            gone = "DELETE FROM records WHERE segment = ? AND start = ? RETURNING id"
            # A list and not a generator: `any` would stop at the first, and the others would stay.
            return any([self._run(gone, *key) for key in keys])

    def close(self) -> None:
        """Leave the records to the next process."""
        with self._guard, suppress(sqlite3.Error):
            self._off = True
            self._records.close()

    def _make_room(self) -> None:
        """Drop the oldest records until an eighth of the budget is free; what was read of them moves on."""
        self._added, total = 0, self.bytes
        oldest = f"SELECT id, segment, start, size FROM records ORDER BY id LIMIT {_BATCH}"
        while total > self.limit - self.limit // 8 and (rows := self._run(oldest)):
            for row, segment, start, size in rows:
                if (segment, start) in self._read:
                    self._read.discard((segment, start))
                    newest = "(SELECT max(id) + 1 FROM records)"
                    self._run(f"UPDATE records SET id = {newest} WHERE id = ?", row)
                elif total > self.limit - self.limit // 8:
                    self._run("DELETE FROM records WHERE id = ?", row)
                    total -= size

    def _run(self, statement: str, *values: Any) -> list[Any]:
        """The rows that a statement gives; none, and no more caching, once the database fails."""
        try:
            return self._records.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            if not self._off:
                _log.warning("%s: nothing more is cached: %s", self._path, error)
            self._off = True
            return []


def _opened(path: Path) -> sqlite3.Connection:
    """A database that only its owner reads, and that does not wait for the disk."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    records = sqlite3.connect(path, _PATIENCE, isolation_level=None, check_same_thread=False)
    for setting in ("journal_mode = WAL", "synchronous = OFF"):
        records.execute(f"PRAGMA {setting}")
    records.executescript(_TABLE)
    return records
