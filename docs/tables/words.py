"""The words of the project: those it uses, and names that say what happened to a value instead of what it is."""

from __future__ import annotations

import json
from pathlib import Path

from results import Table

_WORDS = json.loads((Path(__file__).parent / "words.json").read_text(encoding="utf-8"))


def glossary() -> Table:
    return ("word", "<meaning"), list(_WORDS["words"].items())


def avoided_names() -> Table:
    return ("not a name", "<better"), [
        (f"`{name}`", use) for name, use in _WORDS["avoided"].items()
    ]


WORDS = (glossary, avoided_names)
