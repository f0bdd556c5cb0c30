"""Passages from the files that people have: the entry of the write path."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from decoupled.errors import InputError
from decoupled.index.documents.chunks import Chunker, Size
from decoupled.index.documents.files import (
    ID_FIELDS,
    ColumnError,
    Fields,
    File,
    OnError,
    OtherError,
    Problems,
    Report,
    RowError,
    UnreadableError,
)
from decoupled.index.documents.layouts import SquadPassages, is_article
from decoupled.index.documents.readers import Readers
from decoupled.index.documents.rows import names_of, parse_rows, read_rows, word
from decoupled.index.documents.sources import Source, check_sources, format_of, list_files
from decoupled.index.documents.walk import Chosen
from decoupled.index.formats.archives import members
from decoupled.index.formats.blocks import TextBlock
from decoupled.index.formats.streams import OnBytes, opened
from decoupled.model import folder
from decoupled.model.tokens import Passage, Tokenizer

_TEXT = ("text", "contents", "content", "passage", "body")
_TITLE = ("title",)
_META = ("meta", "metadata")


def read_passages(  # noqa: PLR0913 (what there is to choose)
    *sources: Source,
    chunk: Size = "auto",
    title_path: bool = True,
    tokenizer: Tokenizer | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    format: str | None = None,
    as_text: Sequence[str] = (),
    text_field: str | None = None,
    code: bool = False,
    query: str | None = None,
    on_error: OnError = "stop",
    report: Report | None = None,
    on_bytes: OnBytes | None = None,
) -> Iterator[Passage]:
    """The passages of files, folders and standard input (`-`), one at a time, in a fixed order.

    Documents (HTML, Markdown, PDF, man pages…; `sources.FORMATS` lists them) are cut at headings,
    paragraphs and sentences into passages of about `chunk` tokens (180, or what the model reads if less)
    of the `tokenizer`, by default that of the bundled model; None leaves them whole.
    The headings above a passage are its title, unless `title_path` is false; `meta` says from which
    `document` it is, under which `headings`, and from which character to which (`start`, `end`).
    Rows (jsonl, json, csv, tsv, SQuAD, BEIR) are passages already: only one longer than the model reads
    at once is cut, into `id#1`, `id#2`… A passage without an id is named after its file and line.

    Of folders, hidden files, what programs made or git ignores, and links are left out; `include` and
    `exclude` are patterns such as `*.html` or `drafts/*`. Standard input and named files of no known ending
    are read as `format` (`html`, `pdf`, `markdown`, `csv`…), else by their first bytes; files like `as_text`
    are read as plain text, rows have their text in `text_field`, and of programs only comments and
    docstrings are read unless `code` is true. A source may be a database (`postgresql://…`, `sqlite:///…`,
    `duckdb:///…`), of which `query` selects id, text and title, or a data set, `irds:NAME`. What cannot be
    read raises `InputError`, or with `on_error="skip"` goes to `report` as a `Problem`; what is left out on
    purpose (unknown extensions in folders, empty passages) is reported either way.
    `on_bytes` receives the bytes read since its last call, out of `total_bytes` of the files.
    """
    check_sources(sources)
    chunker = Chunker(tokenizer or starter_tokenizer(), chunk, title_path=title_path)
    pick = partial(Chosen, include=include, exclude=exclude, format=format, as_text=as_text)
    chosen = pick(text_field=text_field, code=code, query=query)
    return passages_of(sources, Problems(on_error, report), on_bytes, chunker, chosen)


def passages_in(name: str, raw: bytes, tokenizer: Tokenizer) -> list[Passage]:
    """The passages of a document in memory; the ending of its name says how it is read."""
    safe = re.sub(r"[^\w. -]", "_", name).strip(". ")[-80:] or "document"
    with TemporaryDirectory() as work:
        path = Path(work, safe)
        path.write_bytes(raw)
        try:
            if passages := list(read_passages(path, tokenizer=tokenizer)):
                return passages
            raise InputError(f"{safe} holds no text; send a document that does")
        except InputError as error:
            raise InputError(str(error).replace(f"{work}{os.sep}", "")) from None


@cache
def starter_tokenizer() -> Tokenizer:
    """The tokenizer of the bundled model."""
    model = folder.starter_model()
    return folder.read_tokenizer(model, folder.read_spec(model))


def passages_of(
    sources: Sequence[Source],
    problems: Problems,
    on_bytes: OnBytes | None = None,
    chunker: Chunker | None = None,
    chosen: Chosen | None = None,
) -> Iterator[Passage]:
    """The passages of sources that were checked, their problems sent where the caller says."""
    chunker, chosen = chunker or Chunker(starter_tokenizer(), None), chosen or Chosen()
    files = list_files(sources, problems, chosen)
    return (p for _, p in read_files(files, problems, on_bytes, chunker, chosen))


def read_files(
    files: Iterable[File],
    problems: Problems,
    on_bytes: OnBytes | None,
    chunker: Chunker,
    chosen: Chosen,
) -> Iterator[tuple[File, Passage]]:
    """The passages of files in their order, each with its file; an archive gives those of its members."""
    with Readers() as readers:
        for file in readers.ahead(files):
            members_of: Iterable[File] = [file]
            if file.format.archive:
                members_of = members(file, format_of, problems, chosen, on_bytes)
            for member in members_of:
                if member.format.blocks is not None:
                    passages = _document(member, problems, on_bytes, chunker, readers)
                else:
                    rows = read_rows(member, problems, on_bytes, readers)
                    parse = _parser(member, problems, chosen.text_field)
                    parsed = parse_rows(member, rows, parse, problems)
                    passages = (cut for row in parsed for cut in chunker.record(row))
                for passage in passages:
                    yield file, passage


def _document(
    file: File, problems: Problems, on_bytes: OnBytes | None, chunker: Chunker, readers: Readers
) -> Iterator[Passage]:
    """The passages of a file that is one document."""
    empty = True
    try:
        for passage in chunker.document(file.name, _blocks(file, problems, on_bytes, readers)):
            empty = False
            yield _storable(passage)
    except (UnreadableError, RowError) as error:
        problem = file.problem(None, str(error))
        if isinstance(error, OtherError) and file.format.name == "html":
            problems.note(problem)
        elif isinstance(error, OtherError) and not file.named:
            problems.note(replace(problem, kind="other"))
        else:
            problems.fail(problem)
    else:
        if empty:
            problems.note(file.problem(None, "has no text"))


def _blocks(
    file: File, problems: Problems, on_bytes: OnBytes | None, readers: Readers
) -> Iterator[TextBlock]:
    """The blocks of a document, from another process where its format asks for that."""
    assert file.format.blocks is not None
    if file.format.boxed:
        # All of them, or none: a document that kills its reader is not half there.
        yield from [TextBlock(*fields) for fields in readers.items(file, problems, on_bytes)]
        return
    with opened(file, on_bytes) as stream:
        yield from file.format.blocks(file, stream)


def _parser(
    file: File, problems: Problems, text_field: str | None
) -> Callable[[int, Fields], Iterator[Passage]]:
    squad = SquadPassages(file.name)

    def parse(number: int, fields: Fields) -> Iterator[Passage]:
        if is_article(fields):
            yield from map(_storable, squad.of(fields))
            return
        passage = _storable(passage_of(fields, f"{file.name}:{number}", text_field))
        if passage.title or (passage.text and not passage.text.isspace()):
            yield passage
        else:
            problems.note(file.problem(number, "has neither text nor title"))

    return parse


class _Columns(NamedTuple):
    """The names of the fields that hold id, text, title and metadata of a row."""

    id: str | None
    text: str | None
    title: str | None
    meta: str | None
    rest: tuple[str, ...]


@lru_cache(maxsize=1024)
def _columns(names: tuple[str, ...], text: str | None) -> _Columns:
    # Reversed, so that of names that differ in case alone the first wins.
    originals = {name.strip().lower(): name for name in reversed(names)}

    def first(aliases: tuple[str, ...]) -> str | None:
        return next((originals[alias] for alias in aliases if alias in originals), None)

    texts = _TEXT if text is None else (text.strip().lower(),)
    parts = (first(ID_FIELDS), first(texts), first(_TITLE), first(_META))
    rest = tuple(name for name in names if name.strip() and name not in parts)
    return _Columns(*parts, rest)


def passage_of(fields: Fields, name: str, text_field: str | None = None) -> Passage:
    """The passage in a row; `name` is its id where the row has none. Raises `RowError`."""
    columns = _columns(tuple(fields), text_field)
    text = fields[columns.text] if columns.text else None
    if type(text) is not str:
        raise _no_text(fields, columns, text_field)
    meta = {key: value for key in columns.rest if _plain(value := fields[key])}
    if columns.meta is not None:
        own = fields[columns.meta]
        meta.update(own if isinstance(own, dict) else {columns.meta: own} if own else {})
    return Passage(
        id=(word(columns.id, fields[columns.id]) if columns.id else "") or name,
        text=text,
        title=word(columns.title, fields[columns.title]) if columns.title else "",
        meta=meta,
    )


def _plain(value: object) -> bool:
    """Whether metadata keeps a field: a word, a number, or a list of words, as tags and links are."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, str) for item in value)
    return isinstance(value, (str, int, float)) and value != ""


def _storable(passage: Passage) -> Passage:
    """The passage itself; `RowError` for what JSON can spell and no index can hold."""
    for key, value in passage.meta.items():
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, int) and not -(1 << 63) <= item < 1 << 64:
                raise RowError(f"{key} is {item}; an integer must fit 64 bits: write it as text")
            if "\0" in key or (isinstance(item, float) and not isfinite(item)):
                raise RowError(f"{key!r} is {item!r:.60}, which cannot be stored; write it as text")
    try:
        for text in (passage.id, passage.title, passage.text):
            text.encode()
        if passage.meta:
            json.dumps(passage.meta, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        raise RowError(f"holds a lone surrogate ({character!r}), which is not text") from None
    return passage


def _no_text(fields: Fields, columns: _Columns, text_field: str | None) -> RowError:
    if columns.text:
        return RowError(f"{columns.text} is {fields[columns.text]!r:.60}; expected a string")
    expected = text_field or " or ".join(_TEXT)
    remedy = "" if text_field else "; name the field that has it: --text-field"
    return ColumnError(
        f"has no text: expected a field {expected}, found {names_of(fields)}{remedy}"
    )
