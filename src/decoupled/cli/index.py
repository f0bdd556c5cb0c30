"""`index`, `add`, `delete`, `compact` and `check`: an index, from its build to its repair."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.errors import DecoupledError, InputError, need

if TYPE_CHECKING:
    from decoupled.index.documents import Skipped

CORPUS = Argument(
    help="Folders, documents (html, md, pdf, docx, man…), mail, programs, rows (jsonl, csv, Parquet, BEIR), "
    ".zip .tar .gz .xz .zst; databases with --query; irds:NAME; `-` is stdin."
)
Corpus = Annotated[list[str], CORPUS]
Chunk = Annotated[
    str, Option(help="Tokens of the passages of a document, about 180; `none` leaves it whole.")
]
TitlePath = Annotated[bool, opt.rare(help="Read the headings above a passage with it.")]
Include = Annotated[list[str] | None, Option(help="Only files like `*.html`; repeatable.")]
Exclude = Annotated[list[str] | None, Option(help="No files like `drafts/*`; repeatable.")]
Format = Annotated[
    str | None,
    opt.rare("--format", help="How stdin and files of unknown endings are read: html, pdf, text…"),
]
AsText = Annotated[list[str] | None, opt.rare(help="Read files like `*.cfg` as text; repeatable.")]
TextField = Annotated[str | None, opt.rare(help="The field of rows that is their text.")]
Query = Annotated[str | None, opt.rare(help="What a database is to give: select id, title, body…")]
Code = Annotated[bool, opt.rare("--code", help="Read programs whole, not only their comments.")]
Report = Annotated[Path | None, Option(help="Write what became of each file, as JSON lines.")]
Cluster = Annotated[str | None, opt.rare(help="Ray cluster that encodes; `local` starts one.")]
Count = Annotated[int | None, opt.rare("--workers", min=1, help="Processes that encode.")]


def index(
    output: Annotated[Path, Option("--output", "-o", help="Index to write: a folder or s3://…")],
    corpus: Annotated[list[str] | None, CORPUS] = None,
    stored: Annotated[
        str | None,
        Option(
            "--from", metavar="INDEX", help="Encode what this index stores, with another model."
        ),
    ] = None,
    model: opt.Starter = None,
    codec: Annotated[
        str | None, Option(help="How states are stored: fp16, int8, int4, project:96+int8…")
    ] = None,
    keep_tokens: Annotated[
        float | None, opt.rare(help="Share of the tokens to store, such as 0.5, to rank only.")
    ] = None,
    chunk: Chunk = "auto",
    title_path: TitlePath = True,
    include: Include = None,
    exclude: Exclude = None,
    form: Format = None,
    as_text: AsText = None,
    text_field: TextField = None,
    query: Query = None,
    code: Code = False,
    append: Annotated[bool, opt.rare("--append", help="As `add`.")] = False,
    sync: Annotated[bool, Option("--sync", help="Remove passages that the corpus lost.")] = False,
    watch: Annotated[bool, Option("--watch", help="Stay, and follow changes of files.")] = False,
    cluster: Cluster = None,
    workers: Count = None,
    on_error: opt.OnError = "skip",
    report: Report = None,
    runtime: opt.Runtime = "auto",
    as_json: opt.Json = False,
) -> None:
    """Encode passages once and store them. Run it again after an interruption: it goes on."""
    from decoupled.index.build import reindex  # here: `--help` must not load it

    if bool(corpus) == bool(stored) or (stored and watch):
        raise InputError("give a corpus, or --from INDEX, and not both; --watch needs a corpus")
    sync = sync or (watch and not append)
    need(*((("watchfiles", "watch"),) if watch else ()))
    if stored:
        with printing.corpus_bar(None) as bar:
            run = partial(reindex, stored, output, model=model, codec=codec, runtime=runtime)
            run = partial(run, keep_tokens=keep_tokens, cluster=cluster, workers=workers)
            built = run(progress=bar.added)
        return printing.result(built, as_json)
    with building(output) as (skipped, bar):
        build = partial(dc.build_index, corpus or [], output, model=model, codec=codec)
        build = partial(build, keep_tokens=keep_tokens, append=append, sync=sync, runtime=runtime)
        build = partial(build, chunk=opt.chunk_size(chunk), title_path=title_path, format=form)
        build = partial(build, include=include or (), exclude=exclude or (), as_text=as_text or ())
        build = partial(build, text_field=text_field, query=query, code=code)
        build = partial(build, cluster=cluster, workers=workers)
        build = partial(build, on_error=opt.stop_or_skip(on_error), report=skipped)
        built = build(on_total=bar.expect, on_bytes=bar.read, progress=bar.added)
    built.write_report(report)
    printing.result(built, as_json)
    if watch:
        from decoupled.index.documents import Chosen
        from decoupled.index.watch import Watch

        pick = partial(Chosen, include=include or (), exclude=exclude or (), as_text=as_text or ())
        chosen = pick(format=form, text_field=text_field, code=code)
        make = partial(Watch, dc.Index.open(output, runtime=runtime), corpus or [], chosen=chosen)
        following = make(chunk=opt.chunk_size(chunk), title_path=title_path, sync=sync)
        printing.note(f"watching {' '.join(corpus or [])} (stop: Ctrl-C)")
        with suppress(KeyboardInterrupt):
            following.follow(Event(), *(lambda event: printing.note(str(event)),) * 2)


def add(
    path: opt.Existing,
    corpus: Corpus,
    chunk: Chunk = "auto",
    title_path: TitlePath = True,
    include: Include = None,
    exclude: Exclude = None,
    form: Format = None,
    as_text: AsText = None,
    text_field: TextField = None,
    query: Query = None,
    code: Code = False,
    cluster: Cluster = None,
    workers: Count = None,
    on_error: opt.OnError = "skip",
    report: Report = None,
    runtime: opt.Runtime = "auto",
    as_json: opt.Json = False,
) -> None:
    """Add passages to an index; an id that is there with other content is replaced."""
    from decoupled.index.manifest import read_manifest

    read_manifest(path)
    run = partial(index, path, corpus, append=True, chunk=chunk, title_path=title_path, form=form)
    run = partial(run, include=include, exclude=exclude, on_error=on_error, as_json=as_json)
    run = partial(run, as_text=as_text, text_field=text_field, code=code, report=report)
    run(query=query, cluster=cluster, workers=workers, runtime=runtime)


def delete(
    index: opt.Existing,
    ids: Annotated[list[str], Argument(metavar="ID", help="Ids of passages to remove.")],
    as_json: opt.Json = False,
) -> None:
    """Remove passages from an index."""
    with dc.Index.open(index, write=True) as opened:
        count = opened.delete(ids)
    printing.result({"deleted": count}, as_json)
    printing.note(f"deleted {count} of {len(ids)} passages")


def compact(
    index: opt.Existing,
    now: Annotated[
        bool, Option("--now", help="No one is reading: keep no older versions.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Free the disk space of deleted and replaced passages. Readers keep older versions for an hour."""
    with dc.Index.open(index, write=True) as opened:
        printing.result(opened.compact(older_than=timedelta(hours=0 if now else 1)), as_json)


def check(
    index: opt.Existing,
    repair: Annotated[bool, Option("--repair", help="Mend what the texts allow.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Compare every byte of an index with its checksum, and say what is damaged or lost."""
    from decoupled.index.check import check as check_index

    with printing.progress_bar("checking") as bar:
        checked = check_index(index, repair=repair, progress=bar.reach)
    printing.result(checked, as_json)
    if not checked.sound:
        remedy = "restore it from a copy" if repair else "run it again with --repair"
        raise DecoupledError(f"{checked.index} is damaged ({checked.compared}); {remedy}")


@contextmanager
def building(output: Path) -> Iterator[tuple[Skipped, printing.Bar]]:
    """A progress bar over a build, and the list of what it cannot read; Ctrl-C says what is stored."""
    from decoupled.index.documents import Skipped
    from decoupled.index.manifest import is_index

    skipped = Skipped()

    def stopped() -> str:
        if not is_index(output):
            raise KeyboardInterrupt
        printing.note(*skipped.lines())
        opened = dc.Index.open(output)
        kept = f"{len(opened)} passages are stored" if len(opened) else "nothing was stored yet"
        return f"stopped: {kept} in {opened.location.name}; run the same command to go on"

    with printing.stoppable(stopped), printing.corpus_bar(None) as bar:
        yield skipped, bar
    printing.note(*skipped.lines())
