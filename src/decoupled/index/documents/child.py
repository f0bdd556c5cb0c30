"""The process that reads documents: one file after the other, each within limits of time and memory.

A request is a line of JSON, followed by the bytes of the file where it has no path. The answer is frames of
JSON, each after its length; the last event of a file says how its reader ended.
"""

import json
import math
import signal
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple
from functools import partial
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


class _Answer:
    """Sends events to the process that asked, many in a frame."""

    def __init__(self, stream: IO[bytes]) -> None:
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

    def problem(self, problem: Problem) -> None:
        """Have the other process report the problem, or raise it."""
        self.add("problem", *astuple(problem))


def main() -> None:
    """Answer requests until there are no more."""
    # Ctrl-C goes to every process of a terminal; it is the other one that ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answer = sys.stdin.buffer, _Answer(sys.stdout.buffer)
    sys.stdout = sys.stderr  # what a library prints must not get between the frames
    began = _address_space()
    answer.send()
    while line := requests.readline():
        path, shown, name, format, size, seconds, memory = json.loads(line)
        raw = b"" if size is None else requests.read(size)
        file = File(
            path=None if path is None else Path(path),
            shown=shown,
            name=name,
            format=BY_NAME[format],
            member=None if size is None else partial(in_memory, raw),
        )
        _limit(seconds, memory)
        kind, message, number, full = "whole", "", None, False
        try:
            for item in _items(file, answer):
                answer.add("item", *item)
        except UnreadableError as error:
            kind = "other" if isinstance(error, OtherError) else "lost"
            message, number = str(error), error.line
            full = isinstance(error.__cause__, MemoryError)
        answer.add("end", kind, message, number, full or _address_space() - began > _GROWTH)
        answer.send()


def _items(file: File, answer: _Answer) -> Iterator[tuple[Any, ...]]:
    with opened(file, lambda count: answer.add("bytes", count)) as stream:
        if file.format.blocks is not None:
            yield from file.format.blocks(file, stream)
        elif file.format.read is not None:
            yield from file.format.read(file, stream, Problems("skip", answer.problem))


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
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmSize:"):
                return int(line.split()[1]) << 10
    return 0
