"""Records of remote segments on a local disk, within a budget of bytes, in a database of SQLite.

Segments never change, so nothing goes stale, and the processes of a machine share what one of them read.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path

from decoupled.errors import InputError
from decoupled.index.store.state_cache import bytes_in
from decoupled.runtime.cpu import cache_folder

SIZE = "DECOUPLED_CACHE_SIZE"
"""Environment variable with the budget of each index that is read, such as 50GB; 0 for none."""
DEFAULT = "10GB"

_log = logging.getLogger(__name__)

# An eighth of the records goes at a time, so that most of the cache stays and this happens rarely.
_SHARE = 8

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
        self._guard, self._off = threading.Lock(), False
        self._read: set[int] = set()
        """Records that were read since the last ones were dropped."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "records.db"
        try:
            self._open()
        except sqlite3.OperationalError:  # it cannot be used here
            raise
        except sqlite3.DatabaseError:  # damaged: nothing is lost with it
            self._path.unlink()
            self._open()

    def _open(self) -> None:
        self._records = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        # Nothing waits for the disk: a record that a power failure tears has another checksum.
        for setting in ("synchronous = OFF", "journal_mode = WAL", "secure_delete = OFF"):
            self._records.execute(f"PRAGMA {setting}")
        self._records.execute(
            "CREATE TABLE IF NOT EXISTS records "
            "(segment TEXT, start INTEGER, content BLOB, UNIQUE (segment, start))"
        )

    @property
    def bytes(self) -> int:
        """Bytes that the records take on the disk."""
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (self._records.execute(f"PRAGMA {n}").fetchone()[0] for n in names)
        return int((pages - free) * size)

    def take(self, key: Key, out: memoryview) -> bool:
        """Fill `out` with a record; False if it is not here."""
        with self._guard:
            row = None
            if not self._off:
                try:
                    find = "SELECT rowid, content FROM records WHERE segment = ? AND start = ?"
                    row = self._records.execute(find, key).fetchone()
                except sqlite3.Error as error:
                    self._end(error)
            if row is None or len(row[1]) != len(out):
                self.misses += 1
                return False
            self._read.add(row[0])
            self.hits += 1
            out[:] = row[1]
            return True

    def keep(self, key: Key, content: memoryview) -> None:
        """Remember a record, while the disk takes them; a large one is passed over."""
        with self._guard:
            if self._off or len(content) > self.limit // _SHARE:
                return
            try:
                if self.bytes + 2 * len(content) > self.limit:
                    self._make_room()
                add = "INSERT OR IGNORE INTO records VALUES (?, ?, ?)"
                self._records.execute(add, (*key, content))
            except sqlite3.Error as error:
                self._end(error)

    def drop(self, keys: Iterable[Key]) -> bool:
        """Forget records, such as damaged ones; returns whether any of them was here."""
        with self._guard:
            forget = "DELETE FROM records WHERE segment = ? AND start = ?"
            return self._records.executemany(forget, keys).rowcount > 0

    def close(self) -> None:
        """Close the database; others may go on."""
        with self._guard:
            self._off = True
            self._records.close()

    def _make_room(self) -> None:
        """Drop the oldest records that were not read since this was done last, or the oldest if all were."""
        rows = [row for (row,) in self._records.execute("SELECT rowid FROM records ORDER BY rowid")]
        unread = [row for row in rows if row not in self._read] or rows
        oldest = unread[: len(rows) // _SHARE + 1]
        self._records.executemany("DELETE FROM records WHERE rowid = ?", [(r,) for r in oldest])
        self._read.clear()

    def _end(self, error: sqlite3.Error) -> None:
        """Cache nothing more; a database that is damaged is left out by the next process."""
        self._off = True
        _log.warning("%s: nothing more is cached: %s", self._path, error)
        if not isinstance(error, sqlite3.OperationalError):
            self._path.unlink(missing_ok=True)
