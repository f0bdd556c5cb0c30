"""`index`, `add`, `delete` and `compact`: an index on disk, made and changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoupled.cli import printing
from decoupled.cli.runtimes import Runtime
from decoupled.errors import DecoupledError, InputError

if TYPE_CHECKING:
    from decoupled.index.documents import Problem
    from decoupled.index.index import Index
    from decoupled.index.ingest import Added, Workers


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (index, add, delete, compact):
        app.command()(command)


Corpus = Annotated[
    list[str],
    typer.Argument(
        help="jsonl, csv, tsv, txt, md, folders, BEIR folders, .gz .xz .zst; `-` is stdin."
    ),
]
OnError = Annotated[str, typer.Option(help="A broken line: `stop`, or `skip` it and say so.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Cluster = Annotated[
    str | None,
    typer.Option(help="Encode on the Ray cluster at this address; `local` starts one here."),
]
Count = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Processes that encode, here or on the cluster."),
]
Existing = Annotated[
    Path, typer.Argument(metavar="INDEX", help="An index: a folder, or an address such as s3://…")
]


def index(
    corpus: Corpus,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Index to write: a folder, or s3://bucket/name.")
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Model folder, checkpoint or hub name; the bundled one if not given."),
    ] = None,
    codec: Annotated[
        str | None,
        typer.Option(
            help="How states are stored: fp16, int8 (default), project:96+int8, residual:2…"
        ),
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Add another corpus to an index that exists.")
    ] = False,
    cluster: Cluster = None,
    workers: Count = None,
    on_error: OnError = "stop",
    runtime: Runtime = "auto",
    as_json: Json = False,
) -> None:
    """Encode passages once and store them. Run it again after an interruption: it goes on."""
    from decoupled.index.index import Index
    from decoupled.index.manifest import is_index
    from decoupled.runtime.open import check_name

    check_name(runtime)
    if is_index(output):
        check_same(output, corpus, codec, append)
        reading = Reading(corpus, on_error)
        found = Index.open(output, model=model, write=True, runtime=runtime)
    else:
        reading = Reading(corpus, on_error)
        if reading.empty:
            raise InputError(
                f"no passages in {' '.join(corpus)}, so there is nothing to index; check the path"
            )
        found = Index.create(output, model, codec=codec or "int8", runtime=runtime, sources=corpus)
    with found, helpers(found, cluster, workers, runtime) as hands:
        fill(found, reading, as_json, hands)


def check_same(output: Path, corpus: list[str], codec: str | None, append: bool) -> None:
    """Refuse to go on with a build that was started from something else."""
    from decoupled.index.manifest import codec_name, model_folder, read_manifest
    from decoupled.model.folder import read_spec

    manifest = read_manifest(output)
    sources = manifest.get("sources") or corpus
    if sources != corpus and not append:
        raise InputError(
            f"{output} was built from {' '.join(sources)}, not from {' '.join(corpus)}; "
            "add to it with --append, or choose another path"
        )
    if codec and codec_name(codec, read_spec(model_folder(output))) != manifest["codec"]:
        raise InputError(
            f"{output} stores states as {manifest['codec']}, not {codec}; leave out --codec, or choose "
            "another path"
        )


def add(
    index: Existing,
    corpus: Corpus,
    cluster: Cluster = None,
    workers: Count = None,
    on_error: OnError = "stop",
    runtime: Runtime = "auto",
    as_json: Json = False,
) -> None:
    """Add passages to an index; an id that is there with other content is replaced."""
    from decoupled.index.index import Index
    from decoupled.runtime.open import check_name

    check_name(runtime)
    reading = Reading(corpus, on_error)
    found = Index.open(index, write=True, runtime=runtime)
    with found, helpers(found, cluster, workers, runtime) as hands:
        fill(found, reading, as_json, hands)


def delete(
    index: Existing,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of passages to remove.")],
    as_json: Json = False,
) -> None:
    """Remove passages from an index."""
    from decoupled.index.index import Index

    with Index.open(index, write=True) as found:
        count = found.delete(ids)
    if as_json:
        printing.document({"deleted": count})
    printing.note(f"deleted {count} of {len(ids)} passages")


def compact(index: Existing, as_json: Json = False) -> None:
    """Reclaim the space of deleted and replaced passages."""
    from decoupled.index.index import Index

    with Index.open(index, write=True) as found:
        before = found.info()["bytes"]
        found.compact()
        after = found.info()["bytes"]
    if as_json:
        printing.document({"bytes_before": before, "bytes": after})
    printing.note(f"{index}: {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB now")


@contextmanager
def helpers(
    found: Index, cluster: str | None, count: int | None, runtime: str
) -> Iterator[Workers | None]:
    """The workers that the options ask for; none for a build in this process."""
    if cluster is None and count is None:
        yield None
        return
    from decoupled.serve.cluster.workers import open_workers

    with open_workers(found.location.name, cluster=cluster, count=count, runtime=runtime) as hands:
        yield hands


class Reading:
    """A corpus that is being read: its passages, what was skipped in it, and how far it is.

    The first passage is read at once, so that a corpus of the wrong form fails before a model is loaded
    and before anything is written.
    """

    def __init__(self, corpus: list[str], on_error: str) -> None:
        from decoupled.index.documents import read_passages, total_bytes

        if on_error not in ("stop", "skip"):
            raise InputError(f"--on-error is {on_error!r}; choose stop or skip")
        self.bytes = total_bytes(corpus)
        self.problems: list[Problem] = []
        self._bar: Bar | None = None
        self._unseen = 0
        stream = read_passages(
            *corpus,
            on_error="skip" if on_error == "skip" else "stop",
            report=self._report,
            on_bytes=self._advance,
        )
        first = list(itertools.islice(stream, 1))
        self.empty = not first
        self.passages = itertools.chain(first, stream)

    def watch(self, bar: Bar) -> None:
        """Tell a bar what is read from now on, and what was read before."""
        self._bar = bar
        bar.read(self._unseen)

    def _advance(self, count: int) -> None:
        if self._bar is None:
            self._unseen += count
        else:
            self._bar.read(count)

    def _report(self, problem: Problem) -> None:
        self.problems.append(problem)
        if len(self.problems) <= 20:
            printing.note(f"skipped {problem}")


def fill(found: Index, reading: Reading, as_json: bool, workers: Workers | None = None) -> None:
    """Read the corpus into the index, with a progress bar on stderr."""
    try:
        with progress_bar("indexing", reading.bytes) as bar:
            reading.watch(bar)
            done = found.add(reading.passages, progress=bar.added, workers=workers)
    except KeyboardInterrupt:
        raise DecoupledError(
            f"stopped with {len(found)} passages in {found.location.name}; run the same command to go on"
        ) from None
    skipped = len(reading.problems)
    if as_json:
        plain: dict[str, Any] = {
            "added": done.added,
            "unchanged": done.unchanged,
            "replaced": done.replaced,
        }
        plain |= {"skipped": skipped, "seconds": round(done.seconds, 3)}
        printing.document(plain | {"passages": len(found), "duplicates": list(done.duplicates)})
    if done.duplicates:
        printing.note(
            f"warning: ids that came twice, the last one stays: {', '.join(done.duplicates)}"
        )
    rate = done.added / done.seconds if done.seconds else 0
    printing.note(
        f"{found.location.name}: {len(found)} passages; {done.added} added ({rate:.0f}/s), "
        f"{done.unchanged} unchanged, {done.replaced} replaced, {skipped} skipped"
    )


class Bar:
    """A progress bar over the bytes of a corpus, with the rate of passages."""

    def __init__(self, progress: Any, task: Any) -> None:
        self._progress, self._task = progress, task

    def read(self, count: int) -> None:
        """So many more bytes were read."""
        self._progress.advance(self._task, count)

    def reached(self, done: int, total: int) -> None:
        """So many of so many are done."""
        self._progress.update(self._task, completed=done, total=total)

    def added(self, done: Added) -> None:
        """So many passages are stored by now."""
        rate = done.added / done.seconds if done.seconds else 0.0
        text = f"{done.added + done.unchanged} passages, {rate:.0f}/s"
        self._progress.update(self._task, passages=text)


@contextmanager
def progress_bar(title: str, total: int | None, *, hidden: bool = False) -> Iterator[Bar]:
    """A bar on stderr; silent when stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[passages]}"),
        TimeRemainingColumn(),
    )
    silent = hidden or not console.is_terminal
    with Progress(*columns, console=console, disable=silent) as progress:
        yield Bar(progress, progress.add_task(title, total=total, passages=""))
