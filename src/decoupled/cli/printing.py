"""How results look: one JSON document, or tables, hits and answers for people; progress on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table as Grid
from rich.text import Text

import decoupled as dc
from decoupled.errors import DecoupledError
from decoupled.measure.table import ResultTable, cell, clean, fact
from decoupled.search.results import percent
from decoupled.train.place import LogPosition, TimeLeft

if TYPE_CHECKING:
    from decoupled.index.ingest import Added

# Columns of numbers, which stand to the right.
NUMBERS = ("score", "agreement", "layer", "joint", "split", "joint ms", "split ms")
B = TypeVar("B", bound="Bar")
STATUS = "{task.fields[status]}"
AROUND = 120  # characters of a passage on either side of its answer
SHOWN = 300  # characters of a hit
OTHERS = 3  # further places of an answer that are named


def note(*lines: str) -> None:
    """Lines for the person at the terminal; never part of the data."""
    sys.stderr.write("".join(f"{_line(line)}\n" for line in lines))


def warn(*lines: str) -> None:
    """Lines of which the person at the terminal should beware."""
    note(*(f"warning: {line}" for line in lines))


def lines(*texts: str) -> None:
    """Print the lines of a result on stdout."""
    sys.stdout.write("".join(f"{line}\n" for line in texts))


def document(value: Any) -> None:
    """One JSON document on stdout. Lone surrogates are escaped, so any text can be printed."""
    text = json.dumps(value, ensure_ascii=False)
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
    sys.stdout.flush()


def result(
    value: Any, as_json: bool, show: Callable[[Any], ResultTable | None] | None = None
) -> None:
    """A result as one JSON document; for people as `show` prints it, or its table; then its lines."""
    if as_json:
        document(value.to_json() if hasattr(value, "to_json") else value)
    elif show is not None:
        print_table(show(value))
    elif hasattr(value, "table"):
        print_table(value.table())
    if hasattr(value, "lines"):
        note(*value.lines())


def write(value: dict[str, Any], path: Path | None) -> None:
    """A result as a JSON file, where one is asked for."""
    if path is not None:
        path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> None:
    """A table on stdout, numbers to the right; on a terminal, an iterator's as they come."""
    grid = Grid(title=title or None, title_justify="left", header_style="bold")
    for name in columns:
        grid.add_column(name, justify="right" if name in NUMBERS else "left")
    console = Console()
    grows = console.is_terminal and isinstance(rows, Iterator)
    with Live(grid, console=console) if grows else nullcontext():
        for row in rows:
            grid.add_row(*(Text(cell(value)) for value in row))
    if not grows:
        console.print(grid)


def print_table(shown: ResultTable | None) -> None:
    """A table on stdout with its notes on stderr; nothing where all is printed already."""
    if shown is not None:
        table(shown.columns, shown.rows, title=shown.title)
        note(*shown.notes)


def facts(named: dict[str, Any]) -> None:
    """Names and values, one per line."""
    grid = Grid.grid(padding=(0, 2))
    for name, value in named.items():
        grid.add_row(Text(name, style="bold"), Text(cell(fact(value))))
    Console().print(grid)


def results(shown: dc.Hits | dc.Answers, raw: bool = False) -> None:
    """Each hit or answer, numbered, with its text and where that stands."""
    console = Console()
    each = (_hit(one, raw) if isinstance(one, dc.Hit) else _answer(one) for one in shown)
    for number, (head, *lines) in enumerate(each, 1):
        console.print(Text.assemble(f"{number}. ", head))
        for line in lines:
            console.print(Padding(line, (0, 0, 0, 3)))


def _answer(answer: dc.Answer) -> list[Text]:
    """The lines of an answer: its score, the answer marked in its passage, and other places that say it."""
    first, last = max(0, answer.start - AROUND), answer.end + AROUND
    before, after = answer.passage[first : answer.start], answer.passage[answer.end : last]
    words = Text.assemble(
        "…" * (first > 0) + _line(before),
        (_line(answer.text), "bold reverse"),
        _line(after) + "…" * (last < len(answer.passage)),
    )
    places = answer.evidence or (answer,)
    rest = [_where(spot) for spot in places[1 : 1 + OTHERS]]
    if len(places) > 1 + OTHERS:
        rest.append(Text(f"{len(places) - 1 - OTHERS} more", style="dim"))
    head = Text.assemble((_line(answer.text), "bold"), f"  {percent(answer.score)}")
    return [head, words, _where(answer), *(Text.assemble("also ", spot) for spot in rest)]


def score(value: float, raw: bool) -> str:
    """A score as people read it: a probability in per cent, or a logit."""
    return f"{value:.4f}" if raw else percent(value)


def _hit(hit: dc.Hit, raw: bool) -> list[Text]:
    """The lines of a hit: its score and document, its text, and its ranks in the first stage if known."""
    text = Text(_line(hit.shown_text[:SHOWN]) + "…" * (len(hit.shown_text) > SHOWN))
    lines = [Text.assemble(f"{score(hit.score, raw)}  ", _where(hit)), text]
    if hit.first_stage is not None:
        stages = hit.first_stage.items()
        ranks = ", ".join(f"{name} {at['rank']:.0f} ({at['score']:.4g})" for name, at in stages)
        lines.append(Text(f"first stage: {ranks}", style="dim"))
    return lines


def _where(one: dc.Hit | dc.Evidence) -> Text:
    """Document, heading path and characters; the id of a passage that is a document of its own."""
    ident = one.id if isinstance(one, dc.Hit) else one.passage_id
    # A `document` of the user's own does not tell passages apart.
    parts = [Text(_line(one.document if one.place else ident), style="cyan")]
    if one.title:
        parts.append(Text(_line(one.title)))
    page = one.meta.get("page") if one.place else None
    if one.place is not None:
        span = f"page {page}" if page else "characters {:,}–{:,}".format(*one.place)
        parts.append(Text(span, style="dim"))
    if one.link:
        parts.append(Text(one.link, style=f"dim link {one.link}"))
    return Text(" · ").join(parts)


def _line(text: str) -> str:
    """The text on one line, without characters that act on a terminal; blanks at its ends stay."""
    return clean(text.replace("\r", " ").replace("\n", " "))


@contextmanager
def stoppable(stopped: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C into an error whose message, made by `stopped`, says what is done and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise DecoupledError(stopped()) from None


# Progress -----------------------------------------------------------------------------------------


EVERY = 10.0  # seconds between lines of progress where there is no terminal to draw a bar on


class Bar:
    """A progress bar; over a corpus of passages also with their rate."""

    def __init__(self, progress: Any, task: Any) -> None:
        self._progress, self._task, self._read = progress, task, 0
        self._noted = time.monotonic()
        self._left = TimeLeft()

    def reach(self, done: int, total: int | None) -> None:
        """Show that `done` of `total` steps are finished."""
        self._progress.update(self._task, completed=done, total=total)
        title = self._progress.tasks[self._task].description
        self._note(f"{title}: {done:,}" + (f" of {total:,}" if total else ""))

    def expect(self, total: int | None) -> None:
        """Set the number of bytes that will be read; None where nobody knows."""
        self._progress.update(self._task, total=total)

    def read(self, count: int) -> None:
        """Count bytes that were read; they show as done once the passages in them are encoded."""
        self._read += count

    def added(self, done: Added) -> None:
        """Show the counts, the bytes that are encoded, and the time left by the rate of the last reports."""
        encoded = round(self._read * done.share)
        left = self._left(encoded, self._progress.tasks[self._task].total)
        self._progress.update(self._task, completed=encoded, status=f"{done}{left}")
        self._note(f"indexing: {done}{left}")

    def _note(self, line: str) -> None:
        if not self._progress.console.is_terminal and time.monotonic() - self._noted > EVERY:
            self._noted = time.monotonic()
            note(line)


def progress_bar(title: str, *, hidden: bool = False) -> AbstractContextManager[Bar]:
    """A bar on stderr; silent when stderr is not a terminal."""
    columns = ("{task.percentage:>3.0f}%", STATUS, TimeRemainingColumn())
    return _shown(Bar, title, *columns, hidden=hidden)


def corpus_bar(total: int | None) -> AbstractContextManager[Bar]:
    """A bar over the bytes of a corpus, with what was made of them and the time left."""
    return _shown(Bar, "indexing", DownloadColumn(), STATUS, total=total)


class TrainingBar(Bar):
    """A progress bar over the steps of a run: loss, score, rate and time left."""

    def __init__(self, progress: Any, task: Any) -> None:
        super().__init__(progress, task)
        self.place = LogPosition()

    def log(self, line: dict[str, Any], before: str = "") -> None:
        """A line of the log; `before` says of which run, where several follow each other."""
        status = self.place.reach(line, before)
        named = {"description": f"{before}{line['phase']}", "status": status}
        self._progress.update(self._task, completed=line["step"], total=line["total"], **named)


def training_bar() -> AbstractContextManager[TrainingBar]:
    """A bar over the steps of a run."""
    return _shown(TrainingBar, "preparing", STATUS)


@contextmanager
def _shown(
    kind: type[B], title: str, *columns: Any, total: int | None = None, hidden: bool = False
) -> Iterator[B]:
    console = Console(stderr=True)
    silent, first = hidden or not console.is_terminal, ("{task.description}", BarColumn())
    with Progress(*first, *columns, console=console, disable=silent) as progress:
        yield kind(progress, progress.add_task(title, total=total, status=""))
