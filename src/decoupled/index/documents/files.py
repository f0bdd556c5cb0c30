"""A file to read, the format it is in, and what is wrong with it: stop at the first problem, or skip it."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Literal, get_args

from decoupled.errors import InputError, MissingDependency
from decoupled.index.formats.blocks import TextBlock
from decoupled.model.jsonable import JsonObject

OnError = Literal["stop", "skip"]
ID_FIELDS = ("id", "_id", "docid", "doc_id", "pid", "passage_id")
Fields = JsonObject

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that could not be read; `str()` gives `docs.jsonl:17: …`."""

    path: str
    line: int | None = None
    """Line number from 1; None when the problem concerns the file as a whole."""
    message: str
    kind: Literal["lost", "left out", "other"] = "lost"
    """`lost` could not be read, `left out` has nothing to read, `other` is of a kind that is not read."""
    name: str | None = None
    """The document that it concerns, as ids name it; None where passages of any name may be lost."""

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}"
        return f"{self.path}{line}: {self.message}"


Report = Callable[[Problem], None]


class UnreadableError(Exception):
    """Nothing more can be read from this file; never leaves the package."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class OtherError(UnreadableError):
    """Raised for a file that is no corpus, such as a program's settings; never leaves the package."""


def needed(package: str, name: str = "") -> None:
    """A file that cannot be read without this package is one that cannot be read, not a reason to stop."""
    if find_spec(package) is None:
        raise UnreadableError(str(MissingDependency(name or package, "documents")))


class RowError(ValueError):
    """One row cannot be used, the next may; never leaves the package."""


class ColumnError(RowError):
    """A row lacks a field: in a table, so do all others."""


MOST = 1000
"""Lines of one file that may be broken before the rest of it is left out."""


class Problems:
    """Where readers send what they find: raised or reported, as the caller chose."""

    def __init__(self, on_error: OnError = "stop", report: Report | None = None) -> None:
        if on_error not in get_args(OnError):
            raise InputError(f"on_error={on_error!r}; choose 'stop' or 'skip'")
        self._stop = on_error == "stop"
        self._broken: Counter[str] = Counter()
        self._report = report

    def fail(self, problem: Problem) -> None:
        """Data is lost here: raise `InputError`, or report it and let the reader go on, but not forever."""
        if self._stop:
            raise InputError(
                f"{problem}; mend it, or leave out what cannot be read: on_error='skip', "
                "--on-error skip where a command has it"
            ) from None
        self._broken[problem.path] += 1
        if self._broken[problem.path] == MOST + 1:
            raise UnreadableError(f"more than {MOST} lines cannot be read; the rest is left out")
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
    """Reader of rows; None where the files are documents."""
    blocks: BlockReader | None = None
    """Reader of the blocks of a document, which are then cut into passages; None for rows."""
    counts: Literal["line", "item"] = "line"
    """Whether the numbers of rows count lines of the file or items of a list."""
    table: bool = False
    """Whether all rows have the same columns."""
    binary: bool = False
    """Whether the bytes are something else than text."""
    archive: bool = False
    """Whether the file is an archive of other files."""

    @property
    def boxed(self) -> bool:
        """Whether another process reads such files: their libraries may take any time and memory."""
        return self.binary or (self.blocks is not None and self.name != "text")


@dataclass(frozen=True, kw_only=True)
class File:
    """One file to read, with its names and its format."""

    path: Path | None
    """Path of the file; None for standard input."""
    shown: str
    """Name in messages: the path as the user wrote it."""
    name: str
    """Name in ids: the path below the folder that all sources share, without the suffix of a compression."""
    format: Format
    member: Callable[[], IO[bytes]] | None = None
    """Gives the bytes of a file in an archive."""
    named: bool = True
    """Whether the user named this file itself, not a folder or an archive that holds it."""
    rows: Callable[[File, Problems], Iterator[tuple[int, Fields]]] | None = None
    """Gives the rows of what has no bytes, such as a query to a database."""

    def problem(self, number: int | None, message: str) -> Problem:
        """A problem at a line, or at an item of a JSON list."""
        name = self.name if self.format.blocks else None
        if self.format.counts == "item" and number is not None:
            return Problem(path=self.shown, message=f"item {number}: {message}", name=name)
        return Problem(path=self.shown, line=number, message=message, name=name)


Reader = Callable[[File, io.BufferedReader, Problems], Iterator[tuple[int, Fields]]]
"""Number and fields of each row in the bytes of a file."""
BlockReader = Callable[[File, io.BufferedReader], Iterator[TextBlock]]
"""The blocks of a document in their order; raises `UnreadableError`."""


SHOWN = 40
"""Lines of a kind of problem at most."""
_ALIKE, _NAMED = 3, 3
# So many files with the same problem are one line, which names the first of them.


class Skipped:
    """A `Report` that keeps what was skipped, and says it, one line for all files with the same problem."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def __call__(self, problem: Problem) -> None:
        """Keep one more problem."""
        self._problems.append(problem)

    def lines(self) -> Iterator[str]:
        """What was lost, what was left out, and how many files are of other kinds."""
        for kind, verb in (("lost", "skipped"), ("left out", "left out")):
            lines = list(self._alike(kind))
            yield from (f"{verb} {line}" for line in lines[:SHOWN])
            if len(lines) > SHOWN:
                yield f"{verb} {len(lines) - SHOWN} more; --report FILE names all"
        others = Counter(ending_of(p.path) for p in self._problems if p.kind == "other")
        if others:
            kinds = ", ".join(f"{count:,} {ending}" for ending, count in others.most_common(8))
            rest = others.total() - sum(count for _, count in others.most_common(8))
            more = f", {rest:,} of {len(others) - 8} more endings" if rest else ""
            yield f"left out {others.total():,} files of other kinds, or without a text field: {kinds}{more}"
            yield "read some of them as text: --as-text '*.ENDING'"

    def _alike(self, kind: str) -> Iterator[str]:
        """The problems of a kind; those of one message as one line."""
        groups: dict[str, list[Problem]] = {}
        for problem in self._problems:
            if problem.kind == kind:
                groups.setdefault(problem.message, []).append(problem)
        for message, alike in groups.items():
            if len(alike) <= _ALIKE:
                yield from map(str, alike)
            else:
                names = ", ".join(Path(problem.path).name for problem in alike[:_NAMED])
                yield f"{len(alike):,} files: {message} ({names}, …)"


def ending_of(path: str) -> str:
    """The ending of a file, without that of its compression, as it is counted and shown."""
    return Path(path.removesuffix(".gz")).suffix.lower() or "without an ending"
