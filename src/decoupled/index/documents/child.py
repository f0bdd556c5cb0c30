"""The process that reads documents: one file after the other, each within limits of time and memory.

A request is a line of JSON, followed by the bytes of the file where it has no path. The answer is frames of
JSON, each after its length; the last event of a file says how its reader ended.
"""

from __future__ import annotations

import json
import math
import signal
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from decoupled.index.documents.files import File, OtherError, Problem, Problems, UnreadableError
from decoupled.index.documents.sources import BY_NAME
from decoupled.index.formats.streams import in_memory, opened

LENGTH = struct.Struct("<I")
"""The length of a frame, before it."""
# Characters of a frame, about.
_FRAME = 1 << 16
# A process that grew by more than this is replaced by a new one.
_GROWTH = 1 << 30


class _Answer(Problems):
    """Sends what a reader gives, and the problems it meets, to the process that asked."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__("skip")
        self._stream = stream
        self._events: list[str] = []
        self._size = 0

    def add(self, kind: str, *values: Any) -> None:
        """Add an event to the frame, and send the frame when it is full."""
        # What JSON has no word for, such as dates, is no metadata either: an object is passed over there.
        event = json.dumps((kind, *values), ensure_ascii=False, default=lambda value: {})
        self._events.append(event)
        self._size += len(event)
        if self._size > _FRAME:
            self.send()

    def send(self) -> None:
        """Send the events that were added since the last frame."""
        data = f"[{','.join(self._events)}]".encode("utf-8", "surrogatepass")
        self._events, self._size = [], 0
        self._stream.write(LENGTH.pack(len(data)) + data)
        self._stream.flush()

    def fail(self, problem: Problem) -> None:
        """Have the other process report the problem, or raise it."""
        self.add("fail", problem.path, problem.line, problem.message)

    def note(self, problem: Problem) -> None:
        """Have the other process report the problem."""
        self.add("note", problem.path, problem.line, problem.message)


def main() -> None:
    """Answer requests until there are no more."""
    # Ctrl-C goes to every process of a terminal; it is the other one that ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answer = sys.stdin.buffer, _Answer(sys.stdout.buffer)
    sys.stdout = sys.stderr  # what a library prints must not get between the frames
    began = _address_space()
    answer.send()
    while line := requests.readline():
        request = json.loads(line)
        raw = requests.read(request["bytes"]) if request["bytes"] is not None else None
        _limit(request["seconds"], request["memory"])
        error = _read(request, raw, answer)
        kind = "whole" if error is None else "other" if isinstance(error, OtherError) else "lost"
        full = error is not None and isinstance(error.__cause__, MemoryError)
        retires = full or _address_space() - began > _GROWTH
        answer.add("end", kind, str(error or ""), error and error.line, retires)
        answer.send()


def _read(request: dict[str, Any], raw: bytes | None, answer: _Answer) -> UnreadableError | None:
    """Send what the file holds; the error that stopped its reader comes back."""
    path = request["path"]
    file = File(
        path=None if path is None else Path(path),
        shown=request["shown"],
        name=request["name"],
        format=BY_NAME[request["format"]],
        member=None if raw is None else lambda: in_memory(raw),
    )
    try:
        for item in _items(file, answer):
            answer.add("item", *item)
    except UnreadableError as error:
        return error
    return None


def _items(file: File, answer: _Answer) -> Iterator[tuple[Any, ...]]:
    with opened(file, lambda count: answer.add("bytes", count)) as stream:
        if file.format.blocks is not None:
            yield from file.format.blocks(file, stream)
        elif file.format.read is not None:
            yield from file.format.read(file, stream, answer)


def _limit(seconds: int, memory: int) -> None:
    """Let the next file take so much processor time and memory beyond what was used until now."""
    with suppress(ImportError, ValueError, OSError):  # Windows has no limits of this kind
        import resource

        limits = (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds),
            (resource.RLIMIT_AS, _address_space() + memory),
        )
        for kind, most in limits:
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def _address_space() -> int:
    """Bytes of memory that this process has reserved; 0 where the system does not say."""
    try:
        import resource

        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except (ImportError, OSError):
        return 0
    return int(pages) * resource.getpagesize()
