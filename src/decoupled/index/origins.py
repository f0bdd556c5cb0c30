"""The files that documents were read from: where a hit opens, and what a later build need not read again.

A file is passed over if its size and both of its times are as they were, and if the index still holds exactly
the passages that it gave: their number, and the sum of their digests. Without this list a build reads all.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from decoupled.index.documents.files import File
from decoupled.index.record import digest
from decoupled.index.stale import document_of
from decoupled.index.store.base import Snapshot
from decoupled.index.store.location import Location
from decoupled.model.tokens import Passage

FILES = "files.json"
# Nanoseconds: a file that was written so shortly before it was read may be written again at the same time.
_RACY = 2 * 10**9
_BATCH = 4096
_SUM = 1 << 64


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A file as it was when its document was read."""

    path: str
    size: int
    modified: int
    """Nanoseconds of the last change of its content."""
    changed: int
    """Nanoseconds of the last change of the file at all; 0 where the system has no such time."""
    read: int
    """Nanoseconds when it was read."""
    settings: str
    """How it was read: the version of the reader, the format, the size of passages."""
    passages: int = 0
    total: int = 0
    """Sum of the digests of its passages, modulo 2^64."""

    @classmethod
    def of(cls, file: File, settings: str) -> Origin | None:
        """The file as it is now; None for what is no file of its own, or is gone."""
        if file.path is None or file.member is not None:
            return None
        try:
            now = file.path.stat()
        except OSError:
            return None
        return cls(
            path=os.path.abspath(file.path),  # noqa: PTH100 (a link is shown as it was named)
            **_stamp(now),
            read=time.time_ns(),
            settings=f"{_version()} {file.format.name} {settings}",
        )

    @property
    def format(self) -> str:
        """The name of the format that it was read as."""
        return self.settings.split(" ")[1]

    def is_file(self, now: os.stat_result) -> bool:
        """Whether an open file is this one, with the content that was read."""
        own = {"size": self.size, "modified": self.modified, "changed": self.changed}
        return stat.S_ISREG(now.st_mode) and _stamp(now) == own

    def same_file(self, now: Origin) -> bool:
        """Whether the file was not touched since, as far as its times can tell."""
        settled = self.read - max(self.modified, self.changed) > _RACY
        return (
            settled
            and replace(now, read=self.read, passages=self.passages, total=self.total) == self
        )


class Origins:
    """The files of an index, by the names of their documents."""

    def __init__(self, files: Mapping[str, Origin] | None = None) -> None:
        self._files = dict(files or {})
        self._now: dict[str, Origin] = {}
        self._counts: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()

    @classmethod
    def load(cls, location: Location) -> Origins:
        """The list of an index; empty where there is none, or none that can be read."""
        try:
            plain = json.loads(location.load(FILES) or b"{}")
            return cls({name: Origin(**fields) for name, fields in plain.items()})
        except (ValueError, TypeError, AttributeError):
            return cls()

    def save(self, location: Location, lost: Iterable[str] = ()) -> None:
        """Write the list with the files that were read now, less what could not be read to its end."""
        read = {
            name: replace(one, passages=self._counts[name], total=self._totals[name] % _SUM)
            for name, one in self._now.items()
        }
        files = {**self._files, **read}
        for name in lost:
            files.pop(name, None)
        if files != self._files:
            plain = {name: asdict(one) for name, one in files.items()}
            location.save(FILES, json.dumps(plain, ensure_ascii=False).encode())

    def split(
        self, files: Iterable[File], settings: str, snapshot: Snapshot | None
    ) -> tuple[list[File], dict[str, int]]:
        """The files to read, and the documents that are unchanged with the number of their passages."""
        stored = _stored(snapshot) if snapshot is not None and self._files else {}
        to_read, unchanged = list[File](), dict[str, int]()
        for file in files:
            now, old = Origin.of(file, settings), self._files.get(file.name)
            same = now is not None and old is not None and old.same_file(now)
            if (
                file.format.blocks
                and old
                and same
                and stored.get(file.name) == (old.passages, old.total)
            ):
                unchanged[file.name] = old.passages
                continue
            to_read.append(file)
            if now is not None and (file.format.blocks or file.format.archive):
                self._now[file.name] = now
        return to_read, unchanged

    def watch(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        """Yield the passages unchanged, and sum up what each document gave."""
        for passage in passages:
            name = document_of(passage.id, passage.meta)
            if name in self._now:
                self._counts[name] += 1
                self._totals[name] += digest(passage)
            yield passage

    def file_of(self, document: str) -> Origin | None:
        """The file of a document; None where it is not listed."""
        name = document
        while name and name not in self._files:
            name = name.rpartition("/")[0]  # of a member of an archive, the archive
        return self._files.get(name)

    def link(self, document: str, ident: str, page: Any = None, *, route: str = "") -> str:
        """The address that opens a document, at a page; empty where its file is not listed.

        With `route`, it is the address of a server that opens the file of a passage.
        """
        file = self.file_of(document)
        if file is None:
            return ""
        address = f"{route}{quote(ident, safe='')}" if route else Path(file.path).as_uri()
        return address + (f"#page={page}" if page else "")


@cache
def _version() -> str:
    return version("decoupled-transformer")  # a millisecond, which each file would take


def _stamp(now: os.stat_result) -> dict[str, int]:
    """The size and the times of a file."""
    changed = 0 if sys.platform == "win32" else now.st_ctime_ns
    return {"size": now.st_size, "modified": now.st_mtime_ns, "changed": changed}


def _stored(snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    """The number of passages that an index holds of each document, and the sum of their digests."""
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    rows = (excerpt for excerpt in snapshot.scan() if excerpt.window == 0)
    while batch := list(islice(rows, _BATCH)):
        for excerpt, value in zip(batch, snapshot.digests([e.id for e in batch]), strict=True):
            name = document_of(excerpt.id, excerpt.meta)
            counts[name] += 1
            totals[name] += value or 0
    return {name: (counts[name], totals[name] % _SUM) for name in counts}
