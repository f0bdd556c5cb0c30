"""Queries, judgments and pairs: what models are trained and checked with."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from decoupled.errors import InputError
from decoupled.index.documents.files import (
    ColumnError,
    Fields,
    File,
    OnError,
    Problem,
    Problems,
    Report,
    RowError,
)
from decoupled.index.documents.layouts import choices_of, is_choices, read_flat_rows
from decoupled.index.documents.passages import passages_of
from decoupled.index.documents.rows import (
    first_of,
    lowered,
    names_of,
    parse_rows,
    read_rows,
    text_of,
    word,
)
from decoupled.index.documents.sources import BY_NAME, Source, single_file
from decoupled.index.documents.walk import beir_corpus
from decoupled.index.formats.streams import OnBytes, unpacked

_ID = ("id", "_id", "pid", "pair_id", "index", "idx")
_QUERY_ID = ("qid", "query_id", "query-id")
_QUERY = (
    *("query", "question", "sentence1", "premise", "question1", "text1", "anchor"),
    "#1 string",  # MRPC
)
_PASSAGE = (
    *("passage", "context", "sentence2", "hypothesis", "question2", "text2", "sentence"),
    *("text", "contents", "content", "body", "document"),
    "#2 string",
)
_JUDGED_ID = ("id", "_id", "qid", "query_id", "query-id")
_QUERY_TEXT = ("text", "query", "question")
_LABEL = ("label", "score", "relevance", "gold_label", "is_duplicate", "quality", "is_selected")
# Columns that hold passages, and the label that the column's name implies.
_LABELLED = (
    (re.compile(r"pos(itive)?s?(_\d+)?"), 1),
    (re.compile(r"neg(ative)?s?(_\d+)?"), 0),
    (re.compile(r"passages"), None),
)
_INTEGER = re.compile(r"[-+]?\d{1,18}")
_DECIMAL = re.compile(r"[-+]?\d*\.\d+(e[-+]?\d+)?", re.IGNORECASE)

LabelValue = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query with the id that judgments call it by."""

    id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Span:
    """A known answer: `passage[start:start + len(text)] == text`."""

    text: str
    start: int


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A query and a passage; a row that names several passages gives as many pairs of one group."""

    query: str
    passage: str
    label: LabelValue = None
    """A class, a grade or a score; None where the data has none."""
    answers: tuple[Span, ...] = ()
    """Where the passage answers the query; empty when it does not, or when that is not asked."""
    title: str = ""
    id: str = ""
    group: str = ""
    """What the pairs of one query share: the query's id, or its text where the data names no id."""
    structure: str = ""
    """A bracketed parse of the passage, for models that read trees."""


def read_pairs(
    source: Source,
    *,
    on_error: OnError = "stop",
    report: Report | None = None,
    on_bytes: OnBytes | None = None,
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
    if file.format.blocks is not None:
        raise InputError(
            f"{source} is {file.format.name}; expected jsonl, json, csv or tsv with two texts a row"
        )
    return parse_rows(file, read_flat_rows(file, problems, on_bytes), _parser(file), problems)


def _parser(file: File) -> Callable[[int, Fields], Iterator[Pair]]:
    def parse(number: int, fields: Fields) -> Iterator[Pair]:
        row, name = lowered(fields), f"{file.name}:{number}"
        for each in choices_of(row, name) if is_choices(row) else (row,):
            yield from pairs_of(each, name, parse_labels=file.format.table)

    return parse


def pairs_of(row: Fields, name: str, *, parse_labels: bool) -> Iterator[Pair]:
    """The pairs of a row with lower-case names; `name` is its id where it has none.

    `parse_labels` turns labels from a table's cells into the numbers they spell. Raises `RowError`.
    """
    query = first_of(row, _QUERY)
    columns = [
        (key, label)
        for pattern, label in _LABELLED
        for key in row
        if pattern.fullmatch(key) and row[key] not in (None, "")
    ]
    if query is None or not (columns or any(row.get(key) is not None for key in _PASSAGE)):
        raise ColumnError(
            "is no pair: expected query and passage, question and context, sentence1 and "
            "sentence2, premise and hypothesis, or query with positive, negative or passages; "
            f"found {names_of(row)}"
        )
    query = text_of("query", query)
    name = word("id", first_of(row, _ID)) or name
    # With answers, as in SQuAD, equal questions about two paragraphs are two groups.
    group = word("query id", first_of(row, _QUERY_ID)) or (name if "answers" in row else query)
    if not columns:
        yield _pair(row, query, name, group, parse_labels=parse_labels)
        return
    number = 0
    for key, label in columns:
        listed = row[key] if isinstance(row[key], list) else [row[key]]
        for item in listed:
            number += 1
            inner = item if isinstance(item, dict) else {"text": item}
            inner = {"label": label, **inner}
            yield _pair(inner, query, f"{name}:{number}", group, parse_labels=False)


def _pair(row: Fields, query: str, name: str, group: str, *, parse_labels: bool) -> Pair:
    passage = text_of("passage", first_of(row, _PASSAGE))
    label = first_of(row, _LABEL)
    if label is None and isinstance(row.get("answer"), bool):  # BoolQ
        label = row["answer"]
    answers = tuple(_spans(row.get("answers"), passage))
    if label is None and not answers and row.get("answers") and isinstance(row["answers"], list):
        label = 1  # it answers in other words, so that it is no question without an answer
    return Pair(
        query=query,
        passage=passage,
        label=_label(label, parse_labels),
        answers=answers,
        title=word("title", row.get("title")),
        id=name,
        group=group,
        structure=word("structure", row.get("structure")),
    )


def _label(value: object, parse: bool) -> LabelValue:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and parse:
        value = value.strip()
        if _INTEGER.fullmatch(value):
            return int(value)
        return float(value) if _DECIMAL.fullmatch(value) else value or None
    if isinstance(value, float) and not isfinite(value):
        raise RowError(f"the label is {value}; expected a finite number")
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise RowError(f"the label is {value!r:.60}; expected a word or a number")


def _spans(answers: object, passage: str) -> Iterator[Span]:
    """SQuAD's list of objects, the object of lists of its Hugging Face rows, or texts with their places.

    A text without a place is an answer wherever the passage holds it first, in any case.
    """
    match answers:
        case None:
            spans: list[tuple[object, object]] = []
        case list() if answers and all(isinstance(a, str) for a in answers):
            places = [(passage.lower().find(text.lower()), len(text)) for text in answers]
            spans = [(passage[at : at + size], at) for at, size in places if at >= 0 and size]
        case list() if answers and all(isinstance(a, list) and len(a) == 2 for a in answers):
            spans = [(text, start) for text, start in answers]
        case {"text": list(texts), "answer_start": list(starts)} if len(texts) == len(starts):
            spans = list(zip(texts, starts, strict=True))
        case list() if all(isinstance(a, dict) for a in answers):
            spans = [(answer.get("text"), answer.get("answer_start")) for answer in answers]
        case _:
            raise RowError(
                f"answers is {answers!r:.80}; expected a list of objects with text and answer_start, of "
                "[text, start], or of texts"
            )
    for text, start in spans:
        if not (isinstance(text, str) and type(start) is int and start >= 0):
            raise RowError(
                f"an answer is {text!r:.60} at {start!r}; expected text and answer_start, its place in "
                "the passage, 0 or more"
            )
        if not passage.startswith(text, start):
            there = passage[start : start + len(text)]
            raise RowError(
                f"the answer {text!r:.60} is not at {start} of its passage, {there!r:.60} is"
            )
        yield Span(text=text, start=start)


# Queries and judgments, as BEIR and TREC keep them ------------------------------------------------


def read_queries(
    source: Source, *, on_error: OnError = "stop", report: Report | None = None
) -> Iterator[Query]:
    """The queries of a jsonl, json, csv or tsv file, of SQuAD, or of a txt file with one a line."""
    return queries_of(single_file(source, part="queries"), Problems(on_error, report))


def queries_of(file: File, problems: Problems) -> Iterator[Query]:
    """The queries of a file, its problems sent where the caller says."""
    if file.format.blocks is not None:
        file = replace(file, format=BY_NAME["lines"])

    def parse(number: int, fields: Fields) -> Iterator[Query]:
        yield _query(lowered(fields), f"{file.name}:{number}")

    yield from parse_rows(file, read_flat_rows(file, problems), parse, problems)


def _query(row: Fields, name: str) -> Query:
    text = first_of(row, _QUERY_TEXT)
    if text is None:
        expected = " or ".join(_QUERY_TEXT)
        raise ColumnError(f"has no query: expected a field {expected}, found {names_of(row)}")
    if not isinstance(text, str) or not text.strip():
        raise RowError(f"the query is {text!r:.60}; expected a text")
    return Query(id=word("id", first_of(row, _JUDGED_ID)) or name, text=text)


def read_qrels(source: Source) -> dict[str, dict[str, int]]:
    """Grades by query id and passage id, from BEIR's three columns or TREC's four."""
    file = replace(single_file(source, part="qrels"), format=BY_NAME["lines"])
    problems = Problems("stop")
    qrels: dict[str, dict[str, int]] = {}
    header = True
    for number, fields in read_rows(file, problems):
        line: str = fields["text"]
        cells = line.split("\t") if "\t" in line else line.split()
        grade = _grade(cells[-1])
        if len(cells) not in (3, 4) or (grade is None and not header):
            message = (
                f"is {line!r:.80}; expected query-id, corpus-id, score, or TREC's four columns"
            )
            problems.fail(file.problem(number, message))
        elif grade is not None:
            qrels.setdefault(cells[0], {})[cells[-2]] = grade
        header = False
    return qrels


def _grade(cell: str) -> int | None:
    try:
        return round(float(cell))
    except (ValueError, OverflowError):
        return None


def _only_judgments(folder: Path) -> Path:
    """The one file of judgments in a BEIR folder."""
    files = sorted(
        p
        for p in (*folder.glob("qrels*"), *folder.glob("qrels/*"))
        if p.is_file() and unpacked(p).suffix.lower() in (".tsv", ".txt")
    )
    if not files:
        raise InputError(
            f"{folder} is a folder without judgments; expected corpus.jsonl, queries.jsonl and "
            "qrels.tsv as in BEIR, or name a file of pairs"
        )
    if len(files) > 1:
        names = ", ".join(str(p.relative_to(folder)) for p in files)
        raise InputError(f"{folder} has several sets of judgments; name one of its files: {names}")
    return files[0]


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
    qrels: Path, corpus: Path, problems: Problems, on_bytes: OnBytes | None
) -> Iterator[Pair]:
    grades_of = read_qrels(qrels)
    judged_ids = {passage for grades in grades_of.values() for passage in grades}
    # Only what is judged is kept: the corpus may be far larger than memory.
    passages = {p.id: p for p in passages_of([corpus], problems, on_bytes) if p.id in judged_ids}
    queries = {
        query.id: query.text
        for path in sorted(corpus.parent.glob("queries*"))
        for query in queries_of(single_file(path), problems)
        if query.id in grades_of
    }
    for kind, lost, whole in (
        ("queries", grades_of.keys() - queries.keys(), grades_of),
        ("passages", judged_ids - passages.keys(), judged_ids),
    ):
        if lost:
            message = f"{len(lost)} of {len(whole)} {kind} have no text, such as {min(lost)!r}"
            problems.note(Problem(path=str(qrels), message=message))
    for query_id, grades in grades_of.items():
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
