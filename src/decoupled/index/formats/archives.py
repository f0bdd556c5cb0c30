"""Archives: the files in them are read in turn, and nothing is ever unpacked to a disk."""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import IO, cast

from decoupled.index.documents.files import File, Format, Problem, Problems, UnreadableError
from decoupled.index.documents.walk import Chosen
from decoupled.index.formats.streams import Inflated, OnBytes, opened

DAMAGED: tuple[type[Exception], ...] = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, OSError, EOFError),
    # Raised for a compression, or a password, that zipfile does not know.
    *(NotImplementedError, RuntimeError),
)

FormatOf = Callable[[PurePosixPath, Chosen], Format | None]


def members(
    file: File, format_of: FormatOf, problems: Problems, chosen: Chosen, on_bytes: OnBytes | None
) -> Iterator[File]:
    """Yield the files of an archive that are read; each must be read before the next is asked for."""
    members_of = _zipped(file, on_bytes) if file.format.name == "zip" else _tarred(file, on_bytes)
    try:
        for name, stream in members_of:
            path = PurePosixPath(name)
            member = replace(file, shown=f"{file.shown}/{name}", name=f"{file.name}/{name}")
            format = format_of(path, chosen)
            if path.is_absolute() or ".." in path.parts:
                problem = Problem(path=member.shown, message="points out of its archive")
                problems.fail(problem)
            elif any(part.startswith((".", "__MACOSX")) for part in path.parts) or not chosen(name):
                continue
            elif format is None:
                other = Problem(path=member.shown, message="is of no known kind", kind="other")
                problems.note(other)
            elif format.archive:
                problems.fail(member.problem(None, "is an archive in an archive; unpack it first"))
            else:
                yield replace(member, format=format, member=stream, named=False)
    except UnreadableError as error:
        problems.fail(file.problem(None, str(error)))


def _zipped(file: File, on_bytes: OnBytes | None) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    assert file.path is not None
    size = left = file.path.stat().st_size
    try:
        with zipfile.ZipFile(file.path) as archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                yield info.filename, lambda info=info: unzipped(archive, info)  # type: ignore[misc]
                if on_bytes is not None:
                    on_bytes(min(info.compress_size, left))
                    left -= min(info.compress_size, left)
    except DAMAGED as error:
        raise UnreadableError(f"the zip archive is damaged ({error})") from None
    finally:
        if on_bytes is not None:
            # Headers and members that were passed over count, too: the sum is the file's size.
            on_bytes(left if size else 0)


def unzipped(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    """The bytes of a member, decompressed within bounds; raises `UnreadableError`."""
    try:
        source = archive.open(info)
    except DAMAGED as error:
        raise UnreadableError(f"cannot be taken from its archive ({error})") from None
    return io.BufferedReader(_inflated(source, "zip", info.compress_size))


def _inflated(source: IO[bytes], kind: str, packed: int) -> Inflated:
    return Inflated(cast(io.BufferedReader, source), kind, DAMAGED, lambda: packed)


def _tarred(file: File, on_bytes: OnBytes | None) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    last: Inflated | None = None
    with opened(file, on_bytes) as stream:
        try:
            # As a stream, without seeking: the archive may be compressed, or come through a pipe.
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for info in archive:
                    if info.isreg() and (member := archive.extractfile(info)) is not None:
                        last = _inflated(member, "tar", info.size)
                        yield info.name, lambda raw=last: io.BufferedReader(raw)  # type: ignore[misc]
        except (tarfile.TarError, EOFError) as error:
            if last is not None and last.broken:
                return  # which was said of the file where it broke off
            raise UnreadableError(f"the tar archive is damaged ({error})") from None
