"""`build_index`: a corpus becomes an index, in this process, in several, or on a cluster."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal

from decoupled.errors import InputError
from decoupled.index.documents import Chosen, Problem
from decoupled.index.documents.chunks import Chunker, Size
from decoupled.index.documents.databases import source_name
from decoupled.index.documents.files import Problems
from decoupled.index.documents.passages import read_files
from decoupled.index.documents.sources import check_sources, list_files, total_bytes
from decoupled.index.index import Index
from decoupled.index.ingest import Added, Progress
from decoupled.index.manifest import (
    codec_name,
    exchange_model,
    is_index,
    model_folder,
    read_manifest,
    source_of,
    spec_of,
    tokenizer_of,
)
from decoupled.index.origins import Origins
from decoupled.index.outcomes import FileOutcome, outcomes, table_lines
from decoupled.index.stale import Seen
from decoupled.index.store.location import location_of
from decoupled.index.stored import stored_passages
from decoupled.index.workers import open_workers
from decoupled.model.folder import read_spec, starter_model
from decoupled.model.jsonable import JsonObject
from decoupled.runtime.open import check_name

SETTLED = timedelta(minutes=1)
"""How long superseded versions of a first build stay readable: longer than any query takes."""
PROBLEMS_SHOWN = 100
"""Most problems that the JSON of a build lists."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """The result of a build: what it added and removed, and how many passages the index holds now."""

    index: str
    added: Added
    problems: tuple[Problem, ...]
    """Every file or line that could not be read or was left out on purpose."""
    removed: int
    """Passages that their documents no longer have, or whose documents left the corpus."""
    passages: int
    files: tuple[FileOutcome, ...] = ()
    """What became of each file of the corpus."""
    unsynced: bool = False
    """Whether `sync` kept passages that may be of rows that could not be read."""

    @property
    def skipped(self) -> int:
        """Number of files, and lines of files, that could not be read."""
        return sum(problem.kind == "lost" for problem in self.problems)

    def to_json(self) -> JsonObject:
        """The counts as a JSON object, with the first problems in words."""
        return {
            "added": self.added.added,
            "unchanged": self.added.unchanged,
            "replaced": self.added.replaced,
            "removed": self.removed,
            "skipped": self.skipped,
            "tokens": self.added.tokens,
            "seconds": round(self.added.seconds, 3),
            "passages": self.passages,
            "duplicates": list(self.added.duplicates),
            "files": Counter(file.status for file in self.files),
            "problems": [str(p) for p in self.problems if p.kind == "lost"][:PROBLEMS_SHOWN],
        }

    def write_report(self, path: Path | None) -> None:
        """Write what became of each file as JSON lines, where a path is named."""
        if path is not None:
            lines = (json.dumps(one._asdict(), ensure_ascii=False) for one in self.files)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def lines(self) -> Iterator[str]:
        """Lines for a terminal that say what the build did."""
        yield from table_lines(self.files)
        done = self.added
        if self.unsynced:
            yield "some rows could not be read, so --sync removed no passages that may be theirs"
        if twice := ", ".join(done.duplicates):
            yield f"warning: ids that came twice, the last one stays: {twice}"
        rate = done.added / done.seconds if done.seconds else 0
        yield (
            f"{self.index}: {self.passages} passages; {done.added} added ({rate:.1f}/s; {done.replaced} in "
            f"place of others), {done.unchanged} unchanged, {self.removed} removed, {self.skipped} skipped"
        )


def build_index(  # noqa: PLR0913 (the options of a build)
    corpus: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    model: str | Path | None = None,
    codec: str | None = None,
    keep_tokens: float | None = None,
    chunk: Size = "auto",
    title_path: bool = True,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    format: str | None = None,
    as_text: Sequence[str] = (),
    text_field: str | None = None,
    code: bool = False,
    query: str | None = None,
    append: bool = False,
    sync: bool = False,
    cluster: str | None = None,
    workers: int | None = None,
    on_error: Literal["stop", "skip"] = "skip",
    runtime: str = "auto",
    report: Callable[[Problem], None] | None = None,
    on_total: Callable[[int | None], None] | None = None,
    on_bytes: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> Built:
    """Encode the passages of files and folders once and store them; an interrupted build goes on.

    How documents are cut (`chunk`, `title_path`) and files chosen and read (`include`, `exclude`, `format`,
    `as_text`, `text_field`, `code`, `query`) is as in `read_passages`, by the tokenizer of the model; one
    that looks back at earlier windows reads documents whole by default. The codec of a new index is the
    model's own, and it keeps all tokens unless `keep_tokens` is a share of them (`Index.create`).
    One that was built from another corpus is only added to with `append`. A document that is there is
    replaced as a whole; with `sync` documents that left the corpus are removed, and those that cannot be read
    stay; where rows cannot be read, whose ids nobody knows, nothing else is removed.

    `workers` processes encode, or with `cluster` so many actors of the Ray cluster at that address.
    `report` is told of each file or line that is skipped, `on_total` how many bytes the corpus has (None
    where a source is a stream), `on_bytes` how many more of them were read, `progress` what `Index.add`
    tells.
    """
    check_name(runtime)
    problems: list[Problem] = []

    def skip(problem: Problem) -> None:
        problems.append(problem)
        if report is not None:
            report(problem)

    listed = [corpus] if isinstance(corpus, str | Path) else corpus
    exists, sources = is_index(output), [source_name(source, query) for source in listed]
    if exists:
        _check_same(output, sources, codec, keep_tokens, append or sync)
    check_sources(listed)
    source = source_of(model_folder(output) if exists else model or starter_model())
    if chunk == "auto" and spec_of(source).memory_windows:
        chunk = None  # what it remembers is the windows of one passage
    chunker = Chunker(tokenizer_of(source), chunk, title_path=title_path)
    pick = partial(Chosen, include=include, exclude=exclude, format=format, as_text=as_text)
    chosen = pick(text_field=text_field, code=code, query=query)
    sink = Problems(on_error, skip)
    files = list(list_files(listed, sink, chosen))  # the one walk through the folders
    with ExitStack() as opened:
        index, origins = None, Origins()
        if exists:
            index = Index.open(output, model=model, write=True, runtime=runtime)
            origins = Origins.load(opened.enter_context(index).location)
        snapshot = index.store.snapshot if index is not None else None
        to_read, unchanged = origins.split(files, f"{chunker.size} {title_path}", snapshot)
        if on_total is not None:
            on_total(total_bytes(to_read))
        stream = (p for _, p in read_files(to_read, sink, on_bytes, chunker, chosen))
        # Read now, so that a wrong corpus fails before a model is loaded or anything written.
        first = list(itertools.islice(stream, 1))
        if index is None:
            if not first:
                raise _nothing(sources, problems)
            create = partial(Index.create, output, source, codec=codec, runtime=runtime)
            share = 1.0 if keep_tokens is None else keep_tokens
            index = opened.enter_context(create(keep_tokens=share, sources=sources))
        name, seen = index.location.name, Seen()
        workers_of = open_workers(name, cluster=cluster, count=workers, runtime=runtime)
        begun, helpers = len(index), opened.enter_context(workers_of)
        watched = seen.watch(origins.watch(itertools.chain(first, stream)))
        added = index.add(watched, progress=progress, workers=helpers)
        lost = {problem.name for problem in problems if problem.kind == "lost"}
        # A page that is no page any more may be half written: its passages stay, too.
        kept = {*unchanged, *(p.name for p in problems if p.name and p.kind in ("lost", "other"))}
        everything = sync and None not in lost
        stale = seen.stale(index.store.snapshot, everything=everything, kept=kept) if begun else []
        removed = index.delete(stale) if stale else 0
        origins.save(index.location, lost=kept - unchanged.keys())
        if not begun:
            index.store.tidy(older_than=SETTLED)
        return Built(
            index=name,
            added=replace(added, unchanged=added.unchanged + sum(unchanged.values())),
            problems=tuple(problems),
            removed=removed,
            passages=len(index),
            files=outcomes(files, unchanged, problems),
            unsynced=sync and not everything,
        )


def reindex(  # noqa: PLR0913 (the options of a build)
    index: str | Path,
    output: str | Path,
    *,
    model: str | Path | None = None,
    codec: str | None = None,
    keep_tokens: float | None = None,
    cluster: str | None = None,
    workers: int | None = None,
    runtime: str = "auto",
    progress: Progress | None = None,
) -> Built:
    """Encode what an index stores with another model, into another index; an interrupted run goes on.

    The codec and the share of the tokens are those of the index. Where the output is the index itself, its
    model is exchanged for one with the same input component (`adapt(keep_index=True)`), and nothing is
    encoded.
    """
    check_name(runtime)
    manifest, model = read_manifest(index), model or starter_model()
    if location_of(index).name == location_of(output).name:
        exchange_model(index, model)
        with Index.open(output) as same:
            count = len(same)
        added = Added(unchanged=count)
        return Built(index=str(output), added=added, problems=(), removed=0, passages=count)
    sources, codec = list(manifest.sources), codec or manifest.codec
    if is_index(output):
        _check_same(output, sources, codec, keep_tokens, append=False)
        target = Index.open(output, model=model, write=True, runtime=runtime)
    else:
        keep = manifest.keep_tokens if keep_tokens is None else keep_tokens
        target = Index.create(
            output, model, codec=codec, keep_tokens=keep, runtime=runtime, sources=sources
        )
    name = target.location.name
    with (
        Index.open(index) as source,
        target,
        open_workers(name, cluster=cluster, count=workers, runtime=runtime) as helpers,
    ):
        stream = stored_passages(source.refresh())
        added = target.add(stream, progress=progress, workers=helpers)
        return Built(index=name, added=added, problems=(), removed=0, passages=len(target))


def _nothing(corpus: list[str], problems: list[Problem]) -> InputError:
    why = [problem for problem in problems if problem.kind == "lost"] or problems
    what = str(why[0]) if why else f"no passages in {' '.join(corpus)}"
    more = f"; and {len(why) - 1} more that cannot be read" if why[1:] else ""
    remedy = "mend that, or name other files" if why else "check the path"
    return InputError(f"{what}{more}, so there is nothing to index; {remedy}")


def _check_same(
    output: str | Path, corpus: list[str], codec: str | None, keep: float | None, append: bool
) -> None:
    """Raise `InputError` where an index was built from another corpus, or stores states in another way."""
    manifest = read_manifest(output)
    sources = list(manifest.sources) or corpus
    if sources != corpus and not append:
        raise InputError(
            f"{output} was built from {' '.join(sources)}, not from {' '.join(corpus)}; "
            "add to it with append, or choose another path"
        )
    if codec and codec_name(codec, read_spec(model_folder(output))) != manifest.codec:
        raise InputError(
            f"{output} stores states as {manifest.codec}, not {codec}; leave out codec, or choose "
            "another path"
        )
    if keep not in (None, kept := manifest.keep_tokens):
        raise InputError(
            f"{output} keeps {kept:g} of the tokens, not {keep:g}; leave out keep_tokens, or choose "
            "another path"
        )
