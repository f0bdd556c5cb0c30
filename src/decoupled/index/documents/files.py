"""A file to read, the format it is in, and what is wrong with it: stop at the first problem, or skip it."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from decoupled.errors import InputError
from decoupled.index.documents.blocks import Block

OnError = Literal["stop", "skip"]
Fields = dict[str, Any]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that could not be read; `str()` gives `docs.jsonl:17: …`."""

    path: str
    line: int | None = None
    """None when it concerns the file as a whole."""
    message: str
    kind: Literal["lost", "left out", "other"] = "lost"
    """Could it not be read, is there nothing to read in it, or is it of a kind that is not read?"""

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
        self._tell(problem)

    def note(self, problem: Problem) -> None:
        """Nothing that was asked for is lost: report it, never stop."""
        kind = "left out" if problem.kind == "lost" else problem.kind
        self._tell(replace(problem, kind=kind))

    def _tell(self, problem: Problem) -> None:
        _log.info("%s", problem)
        if self._report is not None:
            self._report(problem)


@dataclass(frozen=True, kw_only=True)
class Format:
    """How files with these endings are read; `sources.FORMATS` lists them all."""

    name: str
    suffixes: tuple[str, ...] = ()
    read: Reader | None = None
    """Rows; None where the files are documents."""
    blocks: BlockReader | None = None
    """What a document says, to be cut into passages."""
    counts: Literal["line", "item"] = "line"
    """What the numbers of its rows count."""
    table: bool = False
    """Do all rows have the same columns?"""


@dataclass(frozen=True, kw_only=True)
class File:
    """One file to read."""

    path: Path | None
    """None is standard input."""
    shown: str
    """As errors name it: the path as the user wrote it."""
    name: str
    """As ids name it: the path below what all sources share, the same compressed or not."""
    format: Format

    def problem(self, number: int | None, message: str) -> Problem:
        """A problem at a line, or at an item of a JSON list."""
        if self.format.counts == "item" and number is not None:
            return Problem(path=self.shown, message=f"item {number}: {message}")
        return Problem(path=self.shown, line=number, message=message)


Reader = Callable[[File, io.BufferedReader, Problems], Iterator[tuple[int, Fields]]]
"""Number and fields of each row in the bytes of a file."""
BlockReader = Callable[[File, io.BufferedReader], Iterator[Block]]
"""The blocks of a document in their order; raises `UnreadableError`."""
