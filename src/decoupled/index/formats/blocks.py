"""What a reader finds in a document: headings, paragraphs, listings and tables, in their order."""

import re
from typing import NamedTuple

_SPACE = re.compile(r"\s+")


class TextBlock(NamedTuple):
    """A heading, or a text that belongs together."""

    text: str
    """Without space at its ends; never empty."""
    level: int = 0
    """1 for the highest heading, 2 for the next, …; 0 for a text that is none."""
    lines: bool = False
    """A listing or a table, which is cut between lines and not between sentences."""
    page: int = 0
    """The page that it stands on, from 1; 0 where a document has none."""


def one_line(text: str) -> str:
    """The text with every run of space as one blank."""
    return _SPACE.sub(" ", text).strip()


def words(text: str) -> frozenset[str]:
    """A set of names that are written one after the other."""
    return frozenset(text.split())
