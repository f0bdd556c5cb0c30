"""`index`, `add`, `delete`, `compact`, `check`, `cascade` and `plan`: an index, from plan to repair."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.errors import DecoupledError, InputError

if TYPE_CHECKING:
    from decoupled.index.build import Built
    from decoupled.lab.capacity import Planned

CORPUS = Argument(
    help="Folders, documents (html, md, rst, txt, pdf, docx, epub), mail, rows (jsonl, csv, Parquet, BEIR), "
    ".zip .tar .gz .xz .zst; `-` is stdin."
)
Corpus = Annotated[list[str], CORPUS]
Chunk = Annotated[
    str, Option(help="Tokens of the passages of a document, about 180; `none` leaves it whole.")
]
TitlePath = Annotated[
    bool, Option(help="Read the headings above a passage as its title, together with it.")
]
Include = Annotated[
    list[str] | None,
    Option(help="Only files of a folder that match, such as `*.html`; repeatable."),
]
Exclude = Annotated[
    list[str] | None,
    Option(help="No files of a folder that match, such as `drafts/*`; repeatable."),
]
Format = Annotated[
    str | None,
    Option(
        "--format",
        help="How stdin and named files of unknown endings are read: html, pdf, markdown, text, csv…",
    ),
]
Cluster = Annotated[
    str | None, Option(help="Encode on the Ray cluster at this address; `local` starts one here.")
]
Count = Annotated[
    int | None, Option("--workers", min=1, help="Processes that encode, here or on the cluster.")
]


def index(
    output: Annotated[
        Path, Option("--output", "-o", help="Index to write: a folder, or s3://bucket/name.")
    ],
    corpus: Annotated[list[str] | None, CORPUS] = None,
    stored: Annotated[
        str | None,
        Option(
            "--from",
            metavar="INDEX",
            help="Instead of a corpus: encode what this index stores, with another model. With the same "
            "index as output a model of `adapt --keep-index` goes into it.",
        ),
    ] = None,
    model: opt.Starter = None,
    codec: Annotated[
        str | None,
        Option(help="How states are stored: fp16, int8, int4, project:96+int8, residual:2…"),
    ] = None,
    keep_tokens: Annotated[
        float | None, Option(help="Share of the tokens to store, such as 0.5, to rank only.")
    ] = None,
    chunk: Chunk = "auto",
    title_path: TitlePath = True,
    include: Include = None,
    exclude: Exclude = None,
    form: Format = None,
    append: Annotated[
        bool, Option("--append", help="Add another corpus to an index that exists.")
    ] = False,
    sync: Annotated[
        bool, Option("--sync", help="Remove passages that the corpus does not have any more.")
    ] = False,
    cluster: Cluster = None,
    workers: Count = None,
    on_error: opt.OnError = "skip",
    runtime: opt.Runtime = "auto",
    as_json: opt.Json = False,
) -> None:
    """Encode passages once and store them. Run it again after an interruption: it goes on."""
    from decoupled.index.build import reindex

    if bool(corpus) == bool(stored):
        raise InputError("give a corpus, or --from INDEX, and not both")
    where: dict[str, Any] = {"cluster": cluster, "workers": workers, "runtime": runtime}
    where |= {"model": model, "codec": codec, "keep_tokens": keep_tokens}
    if stored:
        with printing.corpus_bar(None) as bar:
            built = reindex(stored, output, progress=bar.added, **where)
        printing.result(built, as_json)
        return
    options = {"append": append, "sync": sync, **where}
    options |= _reading(chunk, title_path, include, exclude, form)
    built = build(corpus or [], output, on_error, **options)
    if sync and built.skipped:
        printing.note("some of the corpus could not be read, so --sync removed nothing else")
    printing.result(built, as_json)


def add(
    index: opt.Existing,
    corpus: Corpus,
    chunk: Chunk = "auto",
    title_path: TitlePath = True,
    include: Include = None,
    exclude: Exclude = None,
    form: Format = None,
    cluster: Cluster = None,
    workers: Count = None,
    on_error: opt.OnError = "skip",
    runtime: opt.Runtime = "auto",
    as_json: opt.Json = False,
) -> None:
    """Add passages to an index; an id that is there with other content is replaced."""
    from decoupled.index.manifest import read_manifest

    read_manifest(index)
    options = {"append": True, "cluster": cluster, "workers": workers, "runtime": runtime}
    options |= _reading(chunk, title_path, include, exclude, form)
    printing.result(build(corpus, index, on_error, **options), as_json)


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


def compact(index: opt.Existing, as_json: opt.Json = False) -> None:
    """Reclaim the space of passages that were deleted or replaced an hour ago; readers may need others."""
    with dc.Index.open(index, write=True) as opened:
        before = opened.info()["bytes"]
        opened.compact()
        after = opened.info()["bytes"]
    printing.result({"bytes_before": before, "bytes": after}, as_json)
    printing.note(f"{index}: {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB now")


def check(
    index: opt.Existing,
    repair: Annotated[
        bool, Option("--repair", help="Mend what can be made again from the texts.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Compare every byte of an index with its checksum, and say what is damaged or lost."""
    from decoupled.index.check import check as check_index

    with printing.progress_bar("checking") as bar:
        found = check_index(index, repair=repair, progress=bar.reach)
    printing.result(found, as_json)
    if not found.sound:
        remedy = "restore it from a copy" if repair else "run it again with --repair"
        raise DecoupledError(f"{found.index} is damaged ({found.compared}); {remedy}")


def cascade(
    index: opt.Existing,
    data: Annotated[
        Path, Option(help="Queries: a file (jsonl, txt, tsv), or a BEIR folder with judgments.")
    ],
    loss: Annotated[
        float, Option(min=0, max=1, help="Relative loss of MRR@10 that is allowed.")
    ] = 0.002,
    limit: Annotated[int, Option(min=8, help="Use the first N queries.")] = 400,
    candidates: Annotated[int, Option(min=2, help="Records of the first stage.")] = 100,
    as_json: opt.Json = False,
) -> None:
    """Fit late interaction to an index, so that `--read auto` reads only the best candidates."""
    from decoupled.search.late_interaction import fit_cascade

    opened = dc.Index.open(index)
    options = {"limit": limit, "candidates": candidates}
    with printing.progress_bar("queries") as bar:
        tuned: Any = fit_cascade(opened, data, loss=loss, progress=bar.reach, **options)
    printing.result(tuned, as_json)
    printing.note(
        f"{opened.location.name}: reads {tuned.cascade.keep:.0%} of the candidates and what is close to "
        "the cut, with `search --read auto` or `ask --read auto`"
    )


def plan(
    passages: Annotated[str, Option(help="How many: 250000, 3M, 1.5B.")],
    tokens: Annotated[int, Option(min=1, help="Tokens of a passage.")] = 150,
    codec: Annotated[str, Option(help="How states are stored, as for `index`.")] = "int8",
    rate: Annotated[float, Option(help="Queries per second.")] = 1.0,
    latency: Annotated[float, Option(help="Milliseconds that a query may take.")] = 1000.0,
    candidates: Annotated[int, Option(min=1, help="Records that a query scores.")] = 100,
    workers: Annotated[int, Option(min=1, help="Processes that build.")] = 1,
    model: opt.Bundled = None,
    as_json: opt.Json = False,
) -> None:
    """Say how many shards, how much disk, memory and time an index needs, by rates of this machine."""
    from decoupled.lab.capacity import plan as plan_capacity

    load: dict[str, Any] = {"tokens": tokens, "rate": rate, "latency": latency}
    load |= {"codec": codec, "candidates": candidates, "workers": workers, "model": model}
    printing.result(plan_capacity(passages, **load), as_json, _show_plan)


def _reading(
    chunk: str,
    title_path: bool,
    include: list[str] | None,
    exclude: list[str] | None,
    form: str | None,
) -> dict[str, Any]:
    """How documents are cut, and files chosen and read."""
    size: Any = {"auto": "auto", "none": None}.get(chunk, 0)
    if size == 0:
        size = opt.parsed("--chunk", chunk, int, "give a number of tokens such as 180, or none")
    chosen = {"include": tuple(include or ()), "exclude": tuple(exclude or ())}
    return {"chunk": size, "title_path": title_path, "format": form, **chosen}


def build(corpus: list[str], output: Path, on_error: str, **options: Any) -> Built:
    """Build an index under a progress bar; Ctrl-C says what is stored."""
    from decoupled.index.documents import Skipped
    from decoupled.index.manifest import is_index

    skipped = Skipped()
    options |= {"on_error": opt.stop_or_skip(on_error), "report": skipped}

    def stopped() -> str:
        if not is_index(output):
            raise KeyboardInterrupt
        printing.note(*skipped.lines())
        opened = dc.Index.open(output)
        kept = f"{len(opened)} passages are stored" if len(opened) else "nothing was stored yet"
        return f"stopped: {kept} in {opened.location.name}; run the same command to go on"

    with printing.stoppable(stopped), printing.corpus_bar(None) as bar:
        options |= {"on_total": bar.expect, "on_bytes": bar.read, "progress": bar.added}
        built = dc.build_index(corpus, output, **options)
    printing.note(*skipped.lines())
    return built


def _show_plan(planned: Planned) -> None:
    printing.note(*(f"warning: {line}" for line in planned.warnings()))
    printing.facts(planned.described())
    printing.note(*(f"assumed: {line}" for line in planned.assumptions))
