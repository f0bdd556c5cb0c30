"""Where a store keeps its files: a folder, or a prefix of an object store.

PLACE/passages.lance/     the table
PLACE/head.json           its newest version, with checksums of its files
PLACE/states/<name>.bin   segments: the states of many records, never changed once written
PLACE/states/garbage.json when each segment was first seen without a record
PLACE/write.lock          held by the one writer

An index keeps its manifest, codec and model in the same location, through the same few calls.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import numpy.typing as npt

from decoupled.errors import DecoupledError

SEGMENT = 1 << 30
"""Segments grow to about this, where files can grow."""

TABLE, STATES, LOCK = "passages.lance", "states", "write.lock"
GARBAGE = f"{STATES}/garbage.json"

Range = tuple[str, int, int]
"""A segment, the first byte there, and how many."""


class Lock(Protocol):
    """The right to write, until it is released or its process dies."""

    def confirm(self) -> None:
        """Raise `IndexBusy` if the right was lost."""

    def release(self) -> None:
        """Give up the right to write."""


class Location(Protocol):
    """The files of one store. Segments are named without their folder and ending.

    What has a body here suits files that are durable and whole once written, as objects are.
    """

    name: str
    """The location's path or address as messages show it."""
    address: str
    """Absolute path or address, which processes with another working folder can use."""
    table: str
    """The table's address, for Lance."""
    session: Any
    """Caches that the datasets of this location share."""
    exclusive: bool
    """Whether the lock keeps every other writer out, come what may."""

    def prepare(self) -> None:
        """Make what a new store needs, before its table."""
        return

    def lock(self) -> Lock:
        """Become the writer, or raise `IndexBusy` with the one that is."""

    def heal(self, after: int) -> list[int]:
        """Set aside versions newer than `after` that a power failure tore, and return their numbers."""
        return []

    def put(self, chunks: Iterable[npt.NDArray[np.uint8]]) -> tuple[str, int]:
        """Write states, and return their segment and where they begin in it when they are durable."""

    def finish(self) -> None:
        """Begin a new segment with what is written next."""
        return

    def length(self, segment: str) -> int:
        """Bytes of a segment, zero if it is gone."""

    def read(self, ranges: Sequence[Range], out: memoryview) -> None:
        """Fill `out` with the ranges, one after the other."""

    def forget(self, records: Sequence[tuple[str, int]]) -> bool:
        """Drop local copies of records, named by segment and start; returns whether there were any."""
        return False

    def segments(self) -> dict[str, int]:
        """Every segment and its bytes."""

    def remove(self, segment: str) -> None:
        """Delete a segment."""

    def let_go(self) -> None:
        """Close the files of segments that were removed, so that their space is free."""
        return

    def names(self) -> list[str]:
        """Names of the files and folders at the top; none where the location does not exist."""

    def load(self, file: str) -> bytes | None:
        """A small file, named by its path in this location, if it is there."""

    def save(self, file: str, content: bytes) -> None:
        """Replace a small file in one step, durably."""

    def stamp(self, file: str) -> str | None:
        """A string that changes whenever a file is replaced; None where there is no such file."""

    def fetch(self, folder: str) -> Path:
        """A local folder with the files of a folder of this location."""

    def publish(self, folder: str, make: Callable[[Path], None]) -> None:
        """Put a folder here; `make` writes it whole at the local path that it is given."""

    def sync(self, files: Iterable[str]) -> None:
        """Make files of the table durable, named by their path in it."""
        return

    def synced(self) -> AbstractContextManager[None]:
        """Make every file of the table durable that appears within."""
        return nullcontext()

    def bytes_under(self, folder: str) -> int | None:
        """Bytes of the files in a folder of this location; None where sizes cannot go wrong."""
        return None

    def inside(self, folder: str) -> list[str]:
        """Names of the files in a folder of this location that `file_sum` can tell of."""
        return []

    def file_sum(self, file: str) -> tuple[int, int] | None:
        """Bytes and CRC-32 of a file; None where it is gone, or where reading compares them anyway."""
        return None

    def total(self) -> int:
        """Bytes of everything in this location."""


def location_of(uri: str | Path) -> Location:
    """The location that a path or an address names."""
    from decoupled.index.store.local import Folder

    # An address that went through `Path`, as options of a command do, lost a slash.
    text = re.sub(r"^([a-z][a-z0-9+]+):/(?=[^/])", r"\1://", os.fspath(uri))
    url = urlsplit(text)
    if url.scheme == "file":
        return Folder(Path(url2pathname(url.path)))
    if "://" not in text or not url.scheme:
        return Folder(Path(text))
    from decoupled.index.store.remote import Prefix

    return Prefix(text.rstrip("/"))


@contextmanager
def locked(location: Location) -> Iterator[None]:
    """The right to write for as long as the block runs."""
    lock = location.lock()
    try:
        yield
    finally:
        lock.release()


def gone(what: str, name: str) -> DecoupledError:
    """The error of a reader whose segment or version was removed."""
    return DecoupledError(
        f"{what} of {name} is gone: the index was compacted long after this reader last "
        "looked, or deleted; refresh or open it again"
    )


def unreadable(name: str, error: Exception) -> DecoupledError:
    """The error of a reader that finds what nobody wrote."""
    return DecoupledError(
        f"{name} cannot be read ({str(error).partition(chr(10))[0]:.300}); if it stays so it is damaged: "
        "restore it from a copy, or index again"
    )
