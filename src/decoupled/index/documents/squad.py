"""SQuAD's layout: articles of paragraphs, and questions about each."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator

from decoupled.index.documents.problems import Problems, RowError
from decoupled.index.documents.rows import Fields, read_rows
from decoupled.index.documents.sources import File
from decoupled.model.tokens import Passage


def is_article(fields: Fields) -> bool:
    """Is this row a SQuAD article, and not a row that happens to have paragraphs?"""
    found = fields.get("paragraphs")
    first = found[0] if isinstance(found, list) and found else None
    return isinstance(first, dict) and "context" in first


class SquadPassages:
    """Paragraphs of the articles of one file, each text once, numbered within their title."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: set[bytes] = set()
        self._numbers: Counter[str] = Counter()

    def of(self, article: Fields) -> Iterator[Passage]:
        """One passage per paragraph that no earlier article had; raises `RowError`."""
        title = _title(article)
        for context, _ in _paragraphs(article):
            self._numbers[title] += 1
            key = hashlib.blake2b(context.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if key not in self._seen:
                self._seen.add(key)
                name = f"{title or self._name}:{self._numbers[title]}"
                yield Passage(id=name, text=context, title=title.replace("_", " "))


def read_flat_rows(
    file: File, problems: Problems, on_bytes: Callable[[int], None] | None = None
) -> Iterator[tuple[int, Fields]]:
    """The rows of a file, an article as one row per question with its context and title."""
    for number, fields in read_rows(file, problems, on_bytes):
        if not is_article(fields):
            yield number, fields
            continue
        try:
            for row in _questions(fields):
                yield number, row
        except RowError as error:
            problems.fail(file.problem(number, str(error)))


def _questions(article: Fields) -> Iterator[Fields]:
    title = _title(article).replace("_", " ")
    for context, paragraph in _paragraphs(article):
        questions = paragraph.get("qas", [])
        if not isinstance(questions, list):
            raise RowError(f"qas is {questions!r:.60}; expected a list of questions")
        for question in questions:
            if not isinstance(question, dict):
                raise RowError(f"a question is {question!r:.60}; expected an object")
            yield {"answers": [], **question, "context": context, "title": title}


def _paragraphs(article: Fields) -> Iterator[tuple[str, Fields]]:
    for paragraph in article["paragraphs"]:
        context = paragraph.get("context") if isinstance(paragraph, dict) else None
        if not isinstance(context, str):
            raise RowError(f"a paragraph is {paragraph!r:.60}; expected an object with a context")
        yield context, paragraph


def _title(article: Fields) -> str:
    title = article.get("title")
    return title if isinstance(title, str) else ""
