"""A store's files in a local folder: durable writes, random reads, the writer's lock.

Reads first take what the page cache holds, then ask the kernel for all that is missing at once, and only
then wait: one slow disk access for a batch instead of one for each record.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.errors import DecoupledError, IndexBusy
from decoupled.index.store.location import LOCK, SEGMENT, STATES, TABLE, Location, Range, gone
from decoupled.model.folder import sync

_log = logging.getLogger(__name__)

# Segments that are kept open; a process may often have no more than 1024 files.
_OPEN_FILES = 256
# The last bytes of every whole manifest of Lance.
_MAGIC = b"LANC"
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class Folder(Location):
    """A `Location` in a folder of a local disk."""

    exclusive = True

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        self.address, self.table = os.path.realpath(path), str(path / TABLE)
        self.session: Any = None
        self._files: dict[str, _File] = {}
        self._growing: tuple[str, int] | None = None
        self._guard, self._writing = threading.Lock(), threading.Lock()

    def prepare(self) -> None:
        (self.path / STATES).mkdir(parents=True, exist_ok=True)
        sync(self.path)

    def lock(self) -> FolderLock:
        """Become the writer, and clear what a killed one left half written."""
        lock = FolderLock(self.path)
        for half in (self.path / STATES).glob("*.tmp"):
            half.unlink(missing_ok=True)
        return lock

    def heal(self, after: int) -> list[int]:
        """Set aside newest manifests that are empty or cut off, as a power failure leaves them."""
        healed = []
        with ExitStack() as at_end:
            at_end.callback(FolderLock(self.path).release)
            # Manifests are named so that the newest sorts first.
            for manifest in sorted((self.path / TABLE / "_versions").glob("*.manifest")):
                version = (1 << 64) - 1 - int(manifest.stem)
                if version <= after or manifest.read_bytes().endswith(_MAGIC):
                    break
                manifest.rename(manifest.with_suffix(".torn"))
                _log.warning("%s: set aside the torn manifest %s", self.name, manifest.name)
                healed.append(version)
        return healed

    def put(self, chunks: Iterable[npt.NDArray[np.uint8]]) -> tuple[str, int]:
        """Go on with the segment that this writer began, or begin one; sync it.

        What no version refers to yet, nobody reads; after an error the segment is not used again.
        """
        with self._writing:
            (segment, start), self._growing = self._growing or (uuid.uuid4().hex, 0), None
            path, end = self._path(segment), start
            try:
                with path.open("ab", buffering=1 << 20) as file:
                    for chunk in chunks:
                        if chunk.size:
                            end += file.write(np.ascontiguousarray(chunk).data.cast("B"))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                # Half of it would only fill a disk that may be full already.
                with suppress(OSError):
                    os.truncate(path, start)
                raise
            # A new file survives a power failure only once its folder is synced as well.
            if not start:
                sync(path.parent)
            if end < SEGMENT:
                self._growing = segment, end
            return segment, start

    def finish(self) -> None:
        with self._writing:
            self._growing = None

    def length(self, segment: str) -> int:
        return size_of(self._path(segment))

    def read(self, ranges: Sequence[Range], out: memoryview) -> None:
        """Fill `out`: from the page cache where possible, then with one request for the rest."""
        files = {segment: self._open(segment) for segment in {r[0] for r in ranges}}
        late: list[tuple[str, int, memoryview]] = []
        at = 0
        for segment, start, size in ranges:
            view = out[at : at + size]
            at += size
            got = _peek(files[segment].descriptor, view, start)
            if got < size:
                late.append((segment, start + got, view[got:]))
        if hasattr(os, "posix_fadvise"):
            for segment, start, view in late:
                descriptor = files[segment].descriptor
                os.posix_fadvise(descriptor, start, len(view), os.POSIX_FADV_WILLNEED)
        for segment, start, view in late:
            if not files[segment].fill(view, start):
                raise DecoupledError(
                    f"segment {segment} of {self.name} is shorter than its records; it is damaged: "
                    "restore the folder from a copy, or index again"
                )

    def segments(self) -> dict[str, int]:
        return {path.stem: path.stat().st_size for path in (self.path / STATES).glob("*.bin")}

    def remove(self, segment: str) -> None:
        """Delete a segment; where an open file cannot be deleted, the next compaction does it."""
        with self._guard:
            self._files.pop(segment, None)
        with self._writing:
            if self._growing and self._growing[0] == segment:
                self._growing = None
        try:
            self._path(segment).unlink(missing_ok=True)
        except PermissionError:
            _log.warning("%s: segment %s is in use and stays for now", self.name, segment)

    def let_go(self) -> None:
        """Close the files of segments that were removed, by this process or another."""
        with self._guard:
            for segment in [s for s in self._files if not self._path(s).exists()]:
                del self._files[segment]

    def names(self) -> list[str]:
        """What is in the folder; its own name where it is a file."""
        if self.path.is_dir():
            return [path.name for path in self.path.iterdir()]
        return [self.path.name] if self.path.exists() else []

    def load(self, file: str) -> bytes | None:
        path = self.path / file
        return path.read_bytes() if path.is_file() else None

    def save(self, file: str, content: bytes) -> None:
        path = self.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)

    def stamp(self, file: str) -> str | None:
        try:
            status = (self.path / file).stat()
        except OSError:
            return None
        return f"{status.st_ino} {status.st_mtime_ns}"

    def fetch(self, folder: str) -> Path:
        return self.path / folder

    def publish(self, folder: str, make: Callable[[Path], None]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        make(self.path / folder)

    def sync(self, files: Iterable[str]) -> None:
        """Make files of the table durable, then the folders that name them."""
        table = self.path / TABLE
        paths = [table / file for file in files]
        for path in (*paths, *sorted({path.parent for path in paths}), table, self.path):
            sync(path)

    @contextmanager
    def synced(self) -> Iterator[None]:
        """Files of the table are never written twice: what appears is told by its name, not by a clock."""
        before = _listed(self.path / TABLE)
        yield
        after = _listed(self.path / TABLE)
        # Manifests last: what they refer to must be durable before them.
        for folder in sorted(after, key=lambda folder: "_versions" in folder):
            fresh = after[folder] - before.get(folder, set())
            for path in [*sorted(fresh), folder] if fresh else ():
                sync(Path(path))

    def bytes_under(self, folder: str) -> int:
        walk = os.walk(self.path / folder)
        return sum(size_of(Path(top, name)) for top, _, names in walk for name in names)

    def inside(self, folder: str) -> list[str]:
        path = self.path / folder
        return sorted(p.name for p in path.iterdir() if p.is_file()) if path.is_dir() else []

    def file_sum(self, file: str) -> tuple[int, int] | None:
        size = total = 0
        try:
            with (self.path / file).open("rb") as opened:
                while block := opened.read(1 << 20):
                    size, total = size + len(block), zlib.crc32(block, total)
        except FileNotFoundError:
            return None
        return size, total

    def total(self) -> int:
        return self.bytes_under("")

    def _path(self, segment: str) -> Path:
        return self.path / STATES / f"{segment}.bin"

    def _open(self, segment: str) -> _File:
        with self._guard:
            try:
                file = self._files.pop(segment, None) or _File(self._path(segment))
            except FileNotFoundError:
                raise gone(f"segment {segment}", self.name) from None
            self._files[segment] = file  # as the last, so that the first is the one to go
            if len(self._files) > _OPEN_FILES:
                del self._files[next(iter(self._files))]
            return file


class FolderLock:
    """A lock of the operating system on a file, which ends with the process."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # For appending: opening must not erase the number of the process that holds the lock.
            self._file = (folder / LOCK).open("a+")
        except OSError as error:
            raise DecoupledError(
                f"{folder} cannot be written ({error.strerror}); check the path and its permissions"
            ) from None
        try:
            lock_file(self._file.fileno())
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise IndexBusy(
                f"{folder} is being written by process {holder}; wait for it or stop it "
                "(searching needs no lock)"
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def confirm(self) -> None:
        """Raise `IndexBusy` once the lock was released; until then the operating system keeps it."""
        if self._file.closed:
            raise IndexBusy("this store was closed; open it again to write")

    def release(self) -> None:
        self._file.close()


class _File:
    """An open segment; closed when the last reader lets go of it, never under one."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._guard = threading.Lock()
        if hasattr(os, "posix_fadvise"):
            # Records are read at random: reading ahead would fill memory with their neighbours.
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def fill(self, view: memoryview, start: int) -> bool:
        """Read until `view` is full; False if the file ends first."""
        while view:
            if hasattr(os, "preadv"):
                got = os.preadv(self.descriptor, [view], start)
            else:
                with self._guard:
                    # Threads share the position, so none may seek before this one has read.
                    os.lseek(self.descriptor, start, os.SEEK_SET)
                    piece = os.read(self.descriptor, len(view))
                got = len(piece)
                view[:got] = piece
            if not got:
                return False
            view, start = view[got:], start + got
        return True

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


def _peek(descriptor: int, view: memoryview, start: int) -> int:
    """Fill a view from the page cache, and return how many bytes came without waiting for a disk."""
    try:
        return os.preadv(descriptor, [view], start, _NOWAIT) if _NOWAIT else 0
    except OSError:
        return 0


# Files that survive a power failure, and a lock that does not survive its process ----------------


def lock_file(descriptor: int) -> None:
    """Lock an open file for this process, or raise `OSError` at once."""
    try:
        import fcntl
    except ImportError:
        import msvcrt

        # Far behind the content, so that others can still read who holds it.
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that after any failure there is the whole of it or nothing."""
    half = path.with_name(path.name + ".tmp")
    try:
        with half.open("wb") as file:
            file.write(content)
            file.flush()
            # Before the rename: a power failure could else leave the name with nothing in it.
            os.fsync(file.fileno())
        half.replace(path)
    except OSError:
        half.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _listed(top: Path) -> dict[str, set[str]]:
    """The paths of files and folders in each folder below `top`, and in itself."""
    walk = os.walk(top)
    return {at: {os.path.join(at, n) for n in (*inside, *files)} for at, inside, files in walk}  # noqa: PTH118


def size_of(path: Path) -> int:
    """A file's length; zero if it is gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
