"""Which lines of the sources run: the tracer of tests, and of the processes that they start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CALLS = 20


class Tracer:
    """Reports each new line. A function that showed nothing new in CALLS calls is left alone."""

    def __init__(self, new: Callable[[str, int], None]) -> None:
        self._new = new
        self._here = str(ROOT / "src") + "/"
        self._seen: dict[str, set[int]] = {}
        self._idle: dict[CodeType, int] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(self._here):
            return None
        idle = self._idle[code] = self._idle.get(code, 0) + 1
        if idle > CALLS:
            return None
        path = code.co_filename.removeprefix(str(ROOT) + "/")
        lines = self._seen.setdefault(path, set())

        def local(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_lineno not in lines:
                lines.add(frame.f_lineno)
                self._new(path, frame.f_lineno)
                self._idle[code] = 0
            return local

        return local
