"""How results look: one JSON document, or a table for people; progress and notes on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoupled.measure.table import cell, fact

if TYPE_CHECKING:
    from decoupled.index.ingest import Added
    from decoupled.measure.table import Table

NUMBERS = ("score", "agreement", "layer", "joint", "split", "joint ms", "split ms")
"""Columns that stand to the right."""
SAID = "{task.fields[said]}"


def note(*lines: str) -> None:
    """Lines for the person at the terminal; never part of the data."""
    sys.stderr.write("".join(f"{line}\n" for line in lines))


def document(value: Any) -> None:
    """One JSON document on stdout. Lone surrogates are escaped, so any text can be printed."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value)
    sys.stdout.buffer.write(text.encode("utf-8") + b"\n")
    sys.stdout.flush()


def result(value: Any, as_json: bool, show: Callable[[Any], Table | None] | None = None) -> None:
    """A result as one JSON document; for people as `show` prints it, or the table of either of them."""
    if as_json:
        document(value.to_json() if hasattr(value, "to_json") else value)
    elif show is not None:
        print_table(show(value))
    elif hasattr(value, "table"):
        print_table(value.table())


def write(value: dict[str, Any], path: Path | None) -> None:
    """A result as a JSON file, where one is asked for."""
    if path is not None:
        path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> None:
    """A table on stdout, numbers to the right; on a terminal, an iterator's as they come."""
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=title or None, title_justify="left", header_style="bold")
    for name in columns:
        grid.add_column(name, justify="right" if name in NUMBERS else "left")
    console = Console()
    grows = console.is_terminal and isinstance(rows, Iterator)
    with Live(grid, console=console) if grows else nullcontext():
        for row in rows:
            grid.add_row(*(Text(cell(value)) for value in row))
    if not grows:
        console.print(grid)


def print_table(made: Table | None) -> None:
    """A table on stdout with its notes on stderr; nothing where all is printed already."""
    if made is not None:
        table(made.columns, made.rows, title=made.title)
        note(*made.notes)


def facts(named: dict[str, Any]) -> None:
    """Names and values, one per line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for name, value in named.items():
        grid.add_row(Text(name, style="bold"), Text(cell(fact(value))))
    Console().print(grid)


# Progress -----------------------------------------------------------------------------------------


EVERY = 10.0
"""Seconds between lines of progress where there is no terminal to draw a bar on."""


class Bar:
    """A progress bar; over a corpus of passages also with their rate."""

    def __init__(self, progress: Any, task: Any) -> None:
        self._progress, self._task, self._read = progress, task, 0
        self._told = time.monotonic()

    def add(self, count: int) -> None:
        """So much more is done."""
        self._progress.advance(self._task, count)

    def reach(self, done: int, total: int | None) -> None:
        """So much is done by now."""
        self._progress.update(self._task, completed=done, total=total)
        if not self._progress.console.is_terminal and time.monotonic() - self._told > EVERY:
            self._told = time.monotonic()
            title = self._progress.tasks[self._task].description
            note(f"{title}: {done:,}" + (f" of {total:,}" if total else ""))

    def read(self, count: int) -> None:
        """So many more bytes were read; they count as done once what they hold is encoded."""
        self._read += count

    def added(self, done: Added) -> None:
        """So many passages are stored by now, so many tokens encoded."""
        self._progress.update(self._task, completed=self._read, said=str(done))


@contextmanager
def progress_bar(title: str, total: int | None = None, *, hidden: bool = False) -> Iterator[Bar]:
    """A bar on stderr; silent when stderr is not a terminal."""
    from rich.progress import TimeRemainingColumn

    columns = ["{task.percentage:>3.0f}%", SAID, TimeRemainingColumn()]
    with _progress(*columns, hidden=hidden) as progress:
        yield Bar(progress, progress.add_task(title, total=total, said=""))


@contextmanager
def corpus_bar(total: int | None) -> Iterator[Bar]:
    """A bar over the bytes of a corpus, with what was made of them and the time left."""
    from rich.progress import DownloadColumn, TimeRemainingColumn

    with _progress(DownloadColumn(), SAID, TimeRemainingColumn()) as progress:
        yield Bar(progress, progress.add_task("indexing", total=total, said=""))


class TrainingBar(Bar):
    """A progress bar over the steps of a run: loss, score, rate and time left."""

    def __init__(self, progress: Any, task: Any) -> None:
        from decoupled.train.place import Place

        super().__init__(progress, task)
        self._place = Place()

    @property
    def place(self) -> str:
        """Where the run is, in words."""
        return str(self._place)

    def told(self, line: dict[str, Any], before: str = "") -> None:
        """A line of the log; `before` says of which run, where several follow each other."""
        said = self._place.reach(line, before)
        shown = {"description": f"{before}{line['phase']}", "total": line["total"], "said": said}
        self._progress.update(self._task, completed=line["step"], **shown)


@contextmanager
def training_bar() -> Iterator[TrainingBar]:
    """A bar on stderr; silent when stderr is not a terminal."""
    with _progress(SAID) as progress:
        yield TrainingBar(progress, progress.add_task("preparing", total=None, said=""))


def _progress(*columns: Any, hidden: bool = False) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress

    console = Console(stderr=True)
    silent = hidden or not console.is_terminal
    first = ("{task.description}", BarColumn())
    return Progress(*first, *columns, console=console, disable=silent)
