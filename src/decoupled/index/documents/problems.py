"""What is wrong in a file, where, and what happens then: stop at the first problem, or skip it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from decoupled.errors import InputError

OnError = Literal["stop", "skip"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that could not be read; `str()` gives `docs.jsonl:17: …`."""

    path: str
    line: int | None
    """None when it concerns the file as a whole."""
    message: str

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}"
        return f"{self.path}{line}: {self.message}"


Report = Callable[[Problem], None]


class UnreadableError(Exception):
    """Nothing more can be read from this file; never leaves the package."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class RowError(ValueError):
    """One row cannot be used, the next may; never leaves the package."""


class ColumnError(RowError):
    """A row lacks a field: in a table, so do all others."""


class Problems:
    """Where readers send what they find: raised or reported, as the caller chose."""

    def __init__(self, on_error: OnError = "stop", report: Report | None = None) -> None:
        if on_error not in get_args(OnError):
            raise InputError(f"on_error={on_error!r}; choose 'stop' or 'skip'")
        self._stop = on_error == "stop"
        self._report = report

    def fail(self, problem: Problem) -> None:
        """Data is lost here: raise `InputError`, or report it and let the reader go on."""
        if self._stop:
            raise InputError(
                f"{problem}; mend it, or leave out what cannot be read: on_error='skip', "
                "--on-error skip where a command has it"
            ) from None
        self.note(problem)

    def note(self, problem: Problem) -> None:
        """Nothing that was asked for is lost: report it, never stop."""
        _log.info("%s", problem)
        if self._report is not None:
            self._report(problem)
