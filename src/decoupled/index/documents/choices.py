"""RACE's layout: an article, questions about it, and options of which one answers each."""

from __future__ import annotations

from collections.abc import Iterator

from decoupled.index.documents.layouts import Pair
from decoupled.index.documents.problems import RowError
from decoupled.index.documents.rows import Fields

_BLANK = "_"


def is_choices(row: Fields) -> bool:
    """Is this row an article with options to choose from?"""
    return "article" in row and "options" in row


def choices_of(row: Fields, name: str) -> Iterator[Pair]:
    """One pair an option, label 1 for the right one; the pairs of a question share a group.

    A row has one `question` with `options` and an `answer`, or a list of each (`questions`,
    `answers`). The option stands in the blank of its question, or after it. Raises `RowError`.
    """
    article = _text("article", row["article"])
    if "questions" not in row:
        yield from _question(name, article, row.get("question"), row["options"], row.get("answer"))
        return
    lists = [row["questions"], row["options"], row.get("answers")]
    if not all(isinstance(found, list) for found in lists) or len({len(x) for x in lists}) > 1:
        raise RowError(
            "questions, options and answers are not lists of one length; give one entry of each "
            "for every question"
        )
    for number, (question, options, answer) in enumerate(zip(*lists, strict=True), 1):
        yield from _question(f"{name}:{number}", article, question, options, answer)


def _question(
    name: str, article: str, question: object, options: object, answer: object
) -> Iterator[Pair]:
    asked = _text("question", question)
    if not isinstance(options, list) or len(options) < 2:
        raise RowError(f"options is {options!r:.60}; expected a list of two texts or more")
    right = _right(answer, len(options))
    for number, option in enumerate(options):
        text = _text("option", option)
        blank = _BLANK in asked
        yield Pair(
            query=asked.replace(_BLANK, f" {text} ", 1) if blank else f"{asked} {text}",
            passage=article,
            label=int(number == right),
            id=f"{name}:{number}",
            group=name,
        )


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


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise RowError(f"the {name} is {value!r:.60}; expected a text")
    return value
