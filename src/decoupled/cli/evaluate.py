"""`evaluate`: how good is a model on judged data?"""

from __future__ import annotations

import tempfile
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoupled.cli import printing
from decoupled.cli.index import Reading, progress_bar
from decoupled.cli.runtimes import Runtime
from decoupled.errors import InputError, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from decoupled.index.documents import Pair, Problem
    from decoupled.index.index import Index
    from decoupled.model.model import Model

SHOWN_PROBLEMS = 20


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(evaluate)


def evaluate(
    task: Annotated[
        str, typer.Option(help="squad, squad2, race, boolq, mnli, qqp, mrpc, pairs, retrieval…")
    ],
    data: Annotated[
        list[Path],
        typer.Option(help="Labelled pairs; for retrieval a BEIR folder. May be repeated."),
    ],
    model: Annotated[str | None, typer.Option(help="Model; the bundled one if not given.")] = None,
    index: Annotated[
        Path | None,
        typer.Option(help="Index of the corpus; for pairs, the index whose model it is."),
    ] = None,
    codec: Annotated[str, typer.Option(help="Codec of an index that is made.")] = "int8",
    codec_bits: Annotated[
        int | None, typer.Option(help="Pairs: read passage states as 8 or 4 bits give them back.")
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="squad2: no answer when its score is higher by more than this.")
    ] = 0.0,
    limit: Annotated[int | None, typer.Option(min=1, help="Use the first N queries.")] = None,
    candidates: Annotated[int, typer.Option(min=1, help="Records that are reranked.")] = 100,
    on_error: Annotated[
        str, typer.Option(help="A broken line: `stop`, or `skip` it and say so.")
    ] = "stop",
    runtime: Runtime = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Measure a model on judged data. Pairs are scored by torch unless --runtime names another."""
    from decoupled.runtime.open import check_name

    check_name(runtime)
    for place in data:
        if not place.exists():
            raise InputError(f"{place} does not exist; give a file or folder of judged data")
    if task != "retrieval":
        if codec_bits not in (None, 4, 8):
            raise InputError(f"--codec-bits is {codec_bits}; choose 8 or 4")
        check_task(task, "retrieval")
        pairs = labelled_pairs(data, on_error)
        if codec_bits and runtime not in ("auto", "torch"):
            raise InputError("--codec-bits is for torch; index the passages to store them")
        source = model or _model_of(index)
        _show_metrics(_metrics(source, runtime, task, pairs, limit, codec_bits, threshold), as_json)
        return
    if len(data) > 1:
        raise InputError("--data is repeated; retrieval takes one folder in BEIR's layout")
    from decoupled.index.index import Index

    queries, qrels = judged_files(data[0])
    with tempfile.TemporaryDirectory() as scratch:
        path = index
        if path is None:
            corpus = Reading([str(data[0])], on_error)
            path = _build(corpus, model, codec, runtime, Path(scratch) / "corpus.idx")
        with Index.open(path, runtime=runtime) as found:
            _retrieval(found, queries, qrels, limit, candidates, as_json)


# Pairs --------------------------------------------------------------------------------------------


def check_task(name: str, *more: str) -> None:
    """Fail for an unknown task before anything is loaded."""
    from decoupled.train.data.tasks import TASKS

    if name not in (*TASKS, "pairs"):
        raise InputError(f"--task is {name!r}; choose one of {', '.join((*TASKS, 'pairs', *more))}")


def labelled_pairs(sources: Sequence[str | Path], on_error: str) -> list[Pair]:
    """The pairs of all sources; a source that is not there fails before any is read."""
    from decoupled.index.documents import read_pairs

    if on_error not in ("stop", "skip"):
        raise InputError(f"--on-error is {on_error!r}; choose stop or skip")
    problems: list[Problem] = []

    def report(problem: Problem) -> None:
        problems.append(problem)
        if len(problems) <= SHOWN_PROBLEMS:
            printing.note(f"skipped {problem}")

    lenient = on_error == "skip"
    readers = [
        read_pairs(source, on_error="skip" if lenient else "stop", report=report)
        for source in sources
    ]
    found = list(chain.from_iterable(readers))
    if len(problems) > SHOWN_PROBLEMS:
        printing.note(f"skipped {len(problems) - SHOWN_PROBLEMS} more")
    if not found:
        named = ", ".join(map(str, sources))
        raise InputError(f"{named}: no pairs were read; expected a query and a passage in each row")
    return found


def need(*packages: tuple[str, str]) -> None:
    """Fail with the line that installs what is missing: (package, extra)."""
    from importlib.util import find_spec

    for package, extra in packages:
        if find_spec(package) is None:
            raise MissingDependency(package, extra)


def open_model(source: str | Path) -> Model:
    """A model folder, a checkpoint or a hub name, loaded where it runs fastest."""
    from decoupled.runtime import cpu

    need(("torch", "torch"))
    cpu.protect()
    from decoupled.runtime.open import open_runtime
    from decoupled.runtime.torch import TorchRuntime

    runtime = open_runtime(source, name="torch")
    assert isinstance(runtime, TorchRuntime)
    return runtime.model


def _model_of(index: Path | None) -> Path:
    from decoupled.index.manifest import model_folder, read_manifest
    from decoupled.model.folder import starter_model

    if index is None:
        return starter_model()
    read_manifest(index)
    return model_folder(index)


def _metrics(
    source: str | Path,
    runtime: str,
    task: str,
    pairs: list[Pair],
    limit: int | None,
    bits: int | None,
    threshold: float,
) -> dict[str, Any]:
    from decoupled.runtime import cpu

    need(("torch", "torch"))
    cpu.protect()
    from decoupled.train.evaluate import evaluate as measure

    with progress_bar("pairs", None) as bar:
        return measure(
            source,
            data=pairs,
            task=task,
            limit=limit,
            bits=bits,
            threshold=threshold,
            runtime=runtime,
            progress=bar.reached,
        )


def _show_metrics(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        printing.document(found)
    else:
        printing.facts(found.items())


# Retrieval ----------------------------------------------------------------------------------------


def judged_files(data: Path) -> tuple[Path, Path]:
    """Queries and judgments of a BEIR folder; of several sets of judgments the one named `test`."""
    if not data.is_dir():
        raise InputError(f"{data} is a file; retrieval takes a folder in BEIR's layout")
    queries = sorted(data.glob("queries.*"))
    qrels = sorted((*data.glob("qrels.*"), *data.glob("qrels/*.*")))
    for name, found in (("queries.jsonl", queries), ("qrels.tsv", qrels)):
        if not found:
            raise InputError(
                f"{data} has no {name}; expected corpus.jsonl, queries.jsonl and qrels.tsv as in BEIR"
            )
    if len(qrels) > 1:
        qrels = [path for path in qrels if path.name.startswith("test.")]
    if len(qrels) != 1:
        raise InputError(f"{data}/qrels holds several sets of judgments and none is test; keep one")
    return queries[0], qrels[0]


def _build(corpus: Reading, model: str | None, codec: str, runtime: str, path: Path) -> Path:
    from decoupled.index.index import Index

    with (
        Index.create(path, model, codec=codec, runtime=runtime) as fresh,
        progress_bar("indexing", corpus.bytes) as bar,
    ):
        corpus.watch(bar)
        fresh.add(corpus.passages, progress=bar.added)
    return path


def _retrieval(
    index: Index, queries: Path, qrels: Path, limit: int | None, candidates: int, as_json: bool
) -> None:
    from decoupled.index.documents import read_qrels, read_queries
    from decoupled.measure.retrieval import evaluate_retrieval
    from decoupled.search.engine import Engine

    judged = read_qrels(qrels)
    asked = [query for query in read_queries(queries) if query.id in judged][:limit]
    with progress_bar("queries", 3 * len(asked)) as bar:
        found = evaluate_retrieval(
            Engine(index),
            asked,
            judged,
            candidates=candidates,
            on_query=lambda: bar.read(1),
        )
    if as_json:
        printing.document({"task": "retrieval", "stages": [stage.to_json() for stage in found]})
        return
    columns = ("first stage", "queries", "recall@100", "nDCG@10", "reranked", "MRR@10", "reranked")
    rows = [
        (
            s.first_stage,
            s.queries,
            s.recall_at_100,
            s.before["ndcg@10"],
            s.after["ndcg@10"],
            s.before["mrr@10"],
            s.after["mrr@10"],
        )
        for s in found
    ]
    printing.table(columns, rows)
