"""Files that survive a power failure, and a lock that does not survive its process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


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


def write_whole(path: Path, pieces: Iterable[memoryview]) -> None:
    """Write a file so that after any failure there is the whole of it or nothing."""
    half = path.with_name(path.name + ".tmp")
    try:
        with half.open("wb", buffering=1 << 20) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except OSError:
        half.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content is on the disk; one that is gone needs no waiting."""
    try:
        descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    # Windows can neither open nor sync a folder, and needs neither.
    if os.name == "posix":
        sync(path)


def modified(path: Path) -> float:
    """When a file was last written, as far back as can be if it is gone."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def bytes_of(path: Path) -> int:
    """A file's length, zero if it is gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
