"""Rows that nest what they hold: SQuAD's paragraphs with questions, RACE's articles with options."""

import hashlib
from collections import Counter
from collections.abc import Iterator

from decoupled.index.documents.files import Fields, File, Problems, RowError
from decoupled.index.documents.rows import read_rows, text_of
from decoupled.index.formats.streams import OnBytes
from decoupled.model.tokens import Passage

# RACE marks the gap of a cloze question by an underscore.
_BLANK = "_"

# SQuAD --------------------------------------------------------------------------------------------


def is_article(fields: Fields) -> bool:
    """Whether a row is a SQuAD article, and not one that happens to have paragraphs."""
    paragraphs = fields.get("paragraphs")
    first = paragraphs[0] if isinstance(paragraphs, list) and paragraphs else None
    return isinstance(first, dict) and "context" in first


class SquadPassages:
    """Paragraphs of the articles of one file, each text once, numbered within their title."""

    def __init__(self, name: str) -> None:
        self._name = name
        # Digests of 16 bytes, not texts: a file may hold more text than fits into memory.
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
    file: File, problems: Problems, on_bytes: OnBytes | None = None
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


# RACE ---------------------------------------------------------------------------------------------


def is_choices(row: Fields) -> bool:
    """Whether a row is an article with options to choose from, as in RACE."""
    return "article" in row and "options" in row


def choices_of(row: Fields, name: str) -> Iterator[Fields]:
    """A row for each option, label 1 for the right one; those of a question share a query id.

    A row has one `question` with `options` and an `answer`, or a list of each (`questions`,
    `answers`). The option stands in the blank of its question, or after it. Raises `RowError`.
    """
    article = text_of("article", row["article"])
    if "questions" not in row:
        yield from _question(name, article, row.get("question"), row["options"], row.get("answer"))
        return
    lists = [row["questions"], row["options"], row.get("answers")]
    if not all(isinstance(items, list) for items in lists) or len({len(x) for x in lists}) > 1:
        raise RowError(
            "questions, options and answers are not lists of one length; give one entry of each "
            "for every question"
        )
    for number, (question, options, answer) in enumerate(zip(*lists, strict=True), 1):
        yield from _question(f"{name}:{number}", article, question, options, answer)


def _question(
    name: str, article: str, question: object, options: object, answer: object
) -> Iterator[Fields]:
    query = text_of("question", question)
    if not isinstance(options, list) or len(options) < 2:
        raise RowError(f"options is {options!r:.60}; expected a list of two texts or more")
    right = _right(answer, len(options))
    for number, option in enumerate(options):
        text = text_of("option", option)
        blank = _BLANK in query
        yield {
            "query": query.replace(_BLANK, f" {text} ", 1) if blank else f"{query} {text}",
            "passage": article,
            "label": int(number == right),
            "id": f"{name}:{number}",
            "qid": name,
        }


def _right(answer: object, count: int) -> int:
    """The number of the right option, from its letter or its number."""
    number = answer
    if isinstance(answer, str) and len(answer) == 1 and answer.isascii() and answer.isalpha():
        number = ord(answer.upper()) - ord("A")
    if type(number) is not int or not 0 <= number < count:
        last = chr(ord("A") + count - 1)
        raise RowError(
            f"the answer is {answer!r:.60}; expected a letter A..{last} or 0..{count - 1}"
        )
    return number
