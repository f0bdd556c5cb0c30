"""Readers of documents in processes of their own: no file can stop, fill or crash the one that builds.

A reader gets processor time, memory and output in proportion to the size of its file. One that takes more,
or dies, is replaced, and its file is one that cannot be read. Files are sent ahead of their turn, so that
they are read on another core while passages are encoded; what comes back is in their order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, fields
from typing import Any, cast

from decoupled.errors import DecoupledError
from decoupled.index.documents.child import LENGTH
from decoupled.index.documents.files import File, OtherError, Problem, Problems, UnreadableError
from decoupled.index.formats.streams import OnBytes, opened, read_bytes

COUNT = 2
"""Processes that read ahead; one more reads what comes out of archives and pipes."""
AHEAD = 8
"""Files that each of them may have waiting."""
_MB = 1 << 20
_FIELDS = tuple(field.name for field in fields(Problem))
_START = "import sys; sys.path[:] = sys.argv[1:]; from decoupled.index.documents.child import main; main()"
# One thread and one arena: the address space grows with what is read, not with the number of cores.
_SETTINGS = {
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_IO_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


@dataclass(frozen=True, kw_only=True)
class ReaderLimits:
    """What the reader of a file may use: a base, and a share for each of its bytes."""

    seconds: int
    """Seconds of processor time."""
    memory: int
    """Bytes of memory."""
    output: int
    """Bytes of its answer."""

    @classmethod
    def of(cls, size: int) -> ReaderLimits:
        """The limits for a file of so many bytes."""
        return cls(
            seconds=10 + 5 * size // _MB,
            # XML takes a hundred times the space of its archive; what is larger is pictures, or a table.
            memory=512 * _MB + 128 * min(size, 32 * _MB) + 4 * size,
            output=4 * _MB + 100 * size,
        )


class Readers(AbstractContextManager["Readers"]):
    """A few processes that read documents; none is started before the first file that needs it."""

    def __init__(self, count: int | None = None) -> None:
        self._ahead = [_Process() for _ in range(count or COUNT)]
        self._direct = _Process()

    def __exit__(self, *_: object) -> None:
        for process in (*self._ahead, self._direct):
            # Nothing is read any more: whoever still holds an iterator must not start it again.
            process.waiting.clear()
            process.end()

    def ahead(self, files: Iterable[File]) -> Iterator[File]:
        """The files in their order, each sent to a process before its turn."""
        waiting: deque[File] = deque()
        for file in files:
            waiting.append(file)
            # Pipes and what is in archives can only be opened here.
            if file.format.boxed and file.path is not None and file.path.is_file():
                process = min(self._ahead, key=lambda process: len(process.waiting))
                with suppress(OSError):  # gone since, which is said when its turn comes
                    process.send(_Request(file, None, file.path.stat().st_size))
            if len(waiting) > AHEAD * len(self._ahead):
                yield waiting.popleft()
        yield from waiting

    def items(
        self, file: File, problems: Problems, on_bytes: OnBytes | None
    ) -> Iterator[tuple[Any, ...]]:
        """The fields of each block, or number and fields of each row; raises `UnreadableError`."""
        for process in self._ahead:
            if process.waiting and process.waiting[0].file is file:
                return process.items(problems, on_bytes)
        with opened(file, on_bytes) as stream:
            raw = read_bytes(stream)
        self._direct.send(_Request(file, raw, len(raw)))
        return self._direct.items(problems, None)


@dataclass(eq=False)
class _Request:
    """A file that a process is to read, by its path or from its bytes."""

    file: File
    raw: bytes | None
    size: int

    @property
    def limits(self) -> ReaderLimits:
        return ReaderLimits.of(self.size)

    def __bytes__(self) -> bytes:
        file, limits, raw = self.file, self.limits, self.raw
        path, size = (str(file.path), None) if raw is None else (None, len(raw))
        head = (path, file.shown, file.name, file.format.name, size, limits.seconds, limits.memory)
        return json.dumps(head).encode() + b"\n" + (raw or b"")


class _Process:
    """One process, and the files that it was sent and has not answered, the oldest first."""

    def __init__(self) -> None:
        self.waiting: deque[_Request] = deque()
        self._child: subprocess.Popen[bytes] | None = None
        self._answers = False

    def send(self, request: _Request) -> None:
        """Have one more file read."""
        self.waiting.append(request)
        self._write(request)

    def items(self, problems: Problems, on_bytes: OnBytes | None) -> Iterator[tuple[Any, ...]]:
        """What the oldest file holds; a process whose answer is not read to its end is replaced."""
        request, ending, read = self.waiting[0], list[Any](), 0
        left = request.limits.output
        try:
            while not ending:
                data = self._frame(request, left)
                left -= len(data)
                for kind, *event in json.loads(data.decode("utf-8", "surrogatepass")):
                    if kind == "item":
                        yield tuple(event)
                    elif kind == "bytes":
                        read += event[0]
                        if on_bytes is not None:
                            on_bytes(event[0])
                    elif kind == "end":
                        ending = event
                    else:
                        problem = Problem(**dict(zip(_FIELDS, event, strict=True)))
                        (problems.fail if problem.kind == "lost" else problems.note)(problem)
        finally:
            if self.waiting:
                self.waiting.popleft()
            if not ending or ending[-1]:
                self._restart()
            if on_bytes is not None and request.size > read:
                on_bytes(request.size - read)
        end, message, line, _ = ending
        if end != "whole":
            raise (OtherError if end == "other" else UnreadableError)(message, line)

    def end(self) -> None:
        """End the process, whatever it does."""
        child, self._child = self._child, None
        if child is not None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL) if hasattr(os, "killpg") else child.kill()
            for stream in (child.stdin, child.stdout):
                with suppress(OSError):
                    cast(Any, stream).close()
            child.wait()

    def _write(self, request: _Request) -> None:
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-c", _START, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | _SETTINGS,
                pipesize=_MB,  # so much of what it read waits for its turn
                start_new_session=True,  # so that pandoc ends with it
            )
            self._answers = False
        # One that died is noticed where its answer is read.
        with suppress(BrokenPipeError):
            stream = cast(Any, self._child.stdin)
            stream.write(bytes(request))
            stream.flush()

    def _restart(self) -> None:
        self.end()
        for request in self.waiting:
            self._write(request)

    def _frame(self, request: _Request, left: int) -> bytes:
        """The next frame of the answer; `UnreadableError` where there is none or too much."""
        assert self._child is not None
        stream = cast(Any, self._child.stdout)
        head = stream.read(LENGTH.size)
        if len(head) == LENGTH.size:
            (size,) = LENGTH.unpack(head)
            if size > left:
                most = request.limits.output >> 20
                raise UnreadableError(f"holds more than {most} MB of text, too much for its size")
            data: bytes = stream.read(size)
            if len(data) == size:
                self._answers = True
                return data
        code = self._child.wait()
        if not self._answers:
            raise DecoupledError(
                f"the process that reads documents cannot be started (exit code {code}); see why with: "
                f"{sys.executable} -c 'import decoupled.index.documents.child'"
            )
        if code == -getattr(signal, "SIGXCPU", 0):
            seconds = request.limits.seconds
            raise UnreadableError(
                f"takes more than {seconds} seconds to read, too long for its size"
            )
        memory = request.limits.memory >> 20
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise UnreadableError(f"ended its reader ({name}), which had {memory} MB of memory")
