"""Pairs from files and from judged collections: what models are trained and checked with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from decoupled.errors import InputError
from decoupled.index.documents.choices import choices_of, is_choices
from decoupled.index.documents.fields import lowered
from decoupled.index.documents.layouts import Pair, pairs_of
from decoupled.index.documents.passages import passages_of
from decoupled.index.documents.problems import (
    ColumnError,
    OnError,
    Problem,
    Problems,
    Report,
    RowError,
)
from decoupled.index.documents.queries import queries_of, read_qrels
from decoupled.index.documents.sources import File, Source, beir_corpus, single_file, unpacked_name
from decoupled.index.documents.squad import read_flat_rows


def read_pairs(
    source: Source,
    *,
    on_error: OnError = "stop",
    report: Report | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[Pair]:
    """The pairs of a jsonl, json, csv or tsv file, of SQuAD, RACE, or judgments in BEIR's layout.

    A row has a query and a passage under one of their usual names, perhaps a label, a score or
    SQuAD's answers; or a query with `positive` and `negative` (each a text or a list), or with
    `passages`. A BEIR folder gives its judged pairs; where it has several sets of judgments, name
    the file of one: `scifact/qrels/train.tsv`. Problems and progress as in `read_passages`.
    """
    problems = Problems(on_error, report)
    path = Path(source)
    if path.is_dir():
        path = _only_judgments(path)
    file = single_file(path)
    if path.parent.name == "qrels" or path.name.startswith("qrels"):
        return _judged_pairs(path, _corpus_of(path), problems, on_bytes)
    if file.form == "document":
        raise InputError(
            f"{source} is plain text; expected jsonl, json, csv or tsv with two texts a row"
        )
    return _pairs(file, problems, on_bytes)


def _pairs(
    file: File, problems: Problems, on_bytes: Callable[[int], None] | None
) -> Iterator[Pair]:
    for number, fields in read_flat_rows(file, problems, on_bytes):
        row, name = lowered(fields), f"{file.name}:{number}"
        try:
            if is_choices(row):
                yield from choices_of(row, name)
            else:
                yield from pairs_of(row, name, parse_labels=file.table)
        except RowError as error:
            hopeless = file.table and isinstance(error, ColumnError)
            problems.fail(file.problem(1 if hopeless else number, str(error)))
            if hopeless:
                return


def _only_judgments(folder: Path) -> Path:
    """The one file of judgments in a BEIR folder."""
    found = sorted(
        p
        for p in (*folder.glob("qrels*"), *folder.glob("qrels/*"))
        if p.is_file() and Path(unpacked_name(p)).suffix in (".tsv", ".txt")
    )
    if not found:
        raise InputError(
            f"{folder} is a folder without judgments; expected corpus.jsonl, queries.jsonl and "
            "qrels.tsv as in BEIR, or name a file of pairs"
        )
    if len(found) > 1:
        names = ", ".join(str(p.relative_to(folder)) for p in found)
        raise InputError(f"{folder} has several sets of judgments; name one of its files: {names}")
    return found[0]


def _corpus_of(qrels: Path) -> Path:
    folder = qrels.parent.parent if qrels.parent.name == "qrels" else qrels.parent
    corpus = beir_corpus(folder, [p.name for p in folder.iterdir()], ())
    if corpus is None:
        raise InputError(
            f"{qrels} holds judgments, but {folder} has no corpus.jsonl with queries.jsonl; put "
            "all three in one folder as in BEIR"
        )
    return corpus


def _judged_pairs(
    qrels: Path, corpus: Path, problems: Problems, on_bytes: Callable[[int], None] | None
) -> Iterator[Pair]:
    judged = read_qrels(qrels)
    wanted = {passage for grades in judged.values() for passage in grades}
    # Only what is judged is kept: the corpus may be far larger than memory.
    passages = {p.id: p for p in passages_of([corpus], problems, on_bytes) if p.id in wanted}
    queries = {
        query.id: query.text
        for path in sorted(corpus.parent.glob("queries*"))
        for query in queries_of(single_file(path), problems)
        if query.id in judged
    }
    for kind, lost, whole in (
        ("queries", judged.keys() - queries.keys(), judged),
        ("passages", wanted - passages.keys(), wanted),
    ):
        if lost:
            message = (
                f"{len(lost)} of {len(whole)} {kind} have no text, such as {min(lost)!r}; left out"
            )
            problems.note(Problem(path=str(qrels), line=None, message=message))
    for query_id, grades in judged.items():
        for passage_id, grade in grades.items():
            if query_id in queries and passage_id in passages:
                passage = passages[passage_id]
                yield Pair(
                    query=queries[query_id],
                    passage=passage.text,
                    label=grade,
                    title=passage.title,
                    id=f"{query_id}:{passage_id}",
                    group=query_id,
                )
