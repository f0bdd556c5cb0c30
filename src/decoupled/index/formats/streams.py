"""The bytes of a file: decompressed within bounds, counted, and cut into lines of a bounded length."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import count
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Protocol, TypeVar, cast

from decoupled.errors import DecoupledError
from decoupled.index.documents.files import File, UnreadableError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

OnBytes = Callable[[int], None]
"""Receives how many bytes were read since its last call."""
BLOCK = 1 << 16
LINE = 64 << 20
"""Bytes of the longest line that is read."""
LARGEST = 512 << 20
"""Bytes of the largest file that is read as a whole."""
_FREE, _RATIO = 64 << 20, 250
# Text shrinks to a tenth, logs perhaps to a hundredth: what shrinks more was made to fill a disk.

# The first bytes decide, not the name: a download may be unpacked under its old name, or not.
_MAGIC = (
    ("gzip", re.compile(rb"\x1f\x8b")),
    ("xz", re.compile(rb"\xfd7zXZ\x00")),
    ("bzip2", re.compile(rb"BZh[1-9](?:1AY&SY|\x17\x72\x45\x38\x50\x90)")),
    ("zstd", re.compile(rb"\x28\xb5\x2f\xfd")),
)
PACKED = frozenset({".gz", ".xz", ".bz2", ".zst"})
_DAMAGE: tuple[type[Exception], ...] = (OSError, zlib.error, lzma.LZMAError)


P = TypeVar("P", bound=PurePath)


class _Source(Protocol):
    """Anything that gives the bytes at hand without waiting for a full buffer."""

    def read1(self, size: int, /) -> bytes: ...


def unpacked(path: P) -> P:
    """The path without the suffix of a compression, such as `.gz`."""
    return path.with_suffix("") if path.suffix.lower() in PACKED else path


def seekable(file: File, stream: io.BufferedReader) -> str | io.BytesIO:
    """A source for readers that need to seek: the file's path, or all of its bytes in memory."""
    plain = file.member is None and file.path is not None and unpacked(file.path) == file.path
    return str(file.path) if plain else io.BytesIO(read_bytes(stream))


def read_bytes(stream: IO[bytes], most: int = LARGEST) -> bytes:
    """All bytes of a stream; more than `most` are an `UnreadableError`."""
    held = io.BytesIO()
    # Bit by bit: one call for all of it would reserve that much memory for every file.
    while chunk := stream.read(BLOCK):
        if held.tell() + len(chunk) > most:
            raise UnreadableError(f"is larger than {most >> 20} MB; cut it up")
        held.write(chunk)
    return held.getvalue()


def in_memory(raw: bytes) -> io.BufferedReader:
    """A stream over bytes that are in memory."""
    return io.BufferedReader(cast(io.RawIOBase, io.BytesIO(raw)))


@contextmanager
def opened(file: File, on_bytes: OnBytes | None = None) -> Iterator[io.BufferedReader]:
    """The bytes of a file, decompressed, or of standard input without a path; raises `UnreadableError`.

    So does any exception of the reader of these bytes: whatever a file does to a library, it is one file
    that cannot be read. `on_bytes` receives the number of bytes taken from the file since its last call.
    The calls add up to the size of the file, also when only its beginning can be read.
    """
    try:
        source, size = _source(file)
        # What is in an archive counts where the archive is read.
        report = None if file.member is not None else on_bytes
        counted = _Counted(source, report or (lambda count: None))
        try:
            yield _decompressed(io.BufferedReader(counted, BLOCK), counted)
        finally:
            if file.path is not None:
                source.close()
            counted.on_bytes(max(0, size - counted.total))
    except (UnreadableError, DecoupledError):
        raise
    except MemoryError as error:
        raise UnreadableError("needs more memory to be read than there is for it") from error
    except Exception as error:
        why = f"{type(error).__name__}: {error}".partition("\n")[0][:120]
        raise UnreadableError(f"cannot be read ({why})") from error


def _source(file: File) -> tuple[io.BufferedReader, int]:
    """The bytes of a file as they lie on the disk, and how many those are."""
    path = file.path
    if file.member is not None:
        return cast(io.BufferedReader, file.member()), 0
    try:
        # `readinto1` is what is used, and standard input has it too.
        source = cast(io.BufferedReader, sys.stdin.buffer) if path is None else path.open("rb")
        return source, path.stat().st_size if path is not None and path.is_file() else 0
    except OSError as error:
        raise UnreadableError(f"cannot be opened ({error.strerror or error})") from None


class _Counted(io.RawIOBase):
    """A file that says how much was read from it."""

    def __init__(self, source: io.BufferedReader, on_bytes: OnBytes) -> None:
        self.total = 0
        self.on_bytes = on_bytes
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        try:
            count: int = self._source.readinto1(buffer)
        except OSError as error:
            raise UnreadableError(f"cannot be read ({error.strerror or error})") from None
        self.total += count
        self.on_bytes(count)
        return count


class Inflated(io.RawIOBase):
    """A decompressor as a raw stream, its errors in plain words and its output within bounds.

    What precedes the damage is still delivered: `read1` never throws away bytes it has decoded.
    """

    def __init__(
        self,
        source: _Source,
        kind: str,
        damage: tuple[type[Exception], ...],
        packed: Callable[[], int],
    ) -> None:
        """`packed` says how many bytes went in so far."""
        self._source, self._kind, self._damage, self._packed = source, kind, damage, packed
        self._given = 0
        self.broken = False
        """Whether the last read met damage."""

    def readable(self) -> bool:
        """Return True, as raw streams must."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer with what can be decompressed now; raises `UnreadableError` for damage."""
        self.broken = True
        try:
            data = self._source.read1(memoryview(buffer).nbytes)
            self.broken = False
        except EOFError:
            raise UnreadableError(
                f"the {self._kind} data ends too early; fetch or write the whole file again"
            ) from None
        except self._damage as error:
            raise UnreadableError(f"the {self._kind} data is damaged ({error})") from None
        memoryview(buffer)[: len(data)] = data
        self._given += len(data)
        # Small files may grow at will; beyond `_FREE` bytes it is taken for a decompression bomb.
        if self._given > max(_FREE, _RATIO * self._packed()):
            raise UnreadableError(
                f"the {self._kind} data unpacks to more than {_RATIO} times its size; "
                "unpack it yourself if it is meant to"
            )
        return len(data)


def _decompressed(stream: io.BufferedReader, counted: _Counted) -> io.BufferedReader:
    head = stream.peek(16)
    kind = next((name for name, magic in _MAGIC if magic.match(head)), None)
    damage = _DAMAGE
    source: _Source
    match kind:
        case "gzip":
            source = gzip.GzipFile(fileobj=stream)
        case "xz":
            source = lzma.LZMAFile(stream)  # noqa: SIM115 (the stream is closed by `opened`)
        case "bzip2":
            source = bz2.BZ2File(stream)
        case "zstd":
            source, error = _zstd(stream)
            damage = (*_DAMAGE, error)
        case _:
            return stream
    return io.BufferedReader(Inflated(source, kind, damage, lambda: counted.total), BLOCK)


def _zstd(stream: io.BufferedReader) -> tuple[_Source, type[Exception]]:
    # Python has it from 3.14 on.
    for name in ("compression.zstd", "backports.zstd"):
        with suppress(ImportError):
            zstd = import_module(name)
            return zstd.ZstdFile(stream), zstd.ZstdError
    raise UnreadableError(
        "is compressed with zstd, which needs a package that is not installed; "
        "run: pip install backports.zstd, or unpack the file with: unzstd"
    )


def without_mark(stream: io.BufferedReader) -> io.BufferedReader:
    """The stream after its UTF-8 byte order mark. Raises for UTF-16 and binary files, before any line."""
    head = stream.peek(512)[:512]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UnreadableError("is UTF-16; convert it with: iconv -f UTF-16 -t UTF-8", line=1)
    if b"\0" in head:
        raise UnreadableError("holds NUL bytes, so it is another format, not UTF-8 text", line=1)
    if head.startswith(b"\xef\xbb\xbf"):
        stream.read(3)
    return stream


def lines_of(stream: io.BufferedReader) -> Iterator[bytes]:
    """The lines of a file, none longer than `LINE` bytes."""
    for number in count(1):
        line = stream.readline(LINE)
        if len(line) == LINE:
            raise UnreadableError(f"the line is longer than {LINE >> 20} MB", line=number)
        if not line:
            return
        yield line


def decoded(raw: bytes) -> str:
    """The bytes of one line as text; `ValueError` names the first byte that is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"byte 0x{raw[error.start]:02x} at column {error.start + 1} is not UTF-8 text"
        ) from None
