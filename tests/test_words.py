"""Plain words: names say what a value is, docstrings are sentences, pages have short ones."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
AVOIDED = json.loads((ROOT / "docs/tables/words.json").read_text(encoding="utf-8"))["avoided"]
SOURCES = sorted((ROOT / "src/decoupled").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(
    r"```.*?```|^\s*[|#<>!-].*?$|<!--.*?-->|`[^`]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE
)
RIDDLE = re.compile(r"(The same|Of|As|Its|Their|That|Those)\b.{0,12}[.,;:]?$|The same (of|as|for) ")
"""Docstrings that lean on the one before, or lack their noun."""
WORDS = 16
"""Mean words of a sentence of a page; none has more than 40."""


def names(tree: ast.AST):
    """Every name that a module binds, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno


def test_a_name_says_what_a_value_is():
    bound = [
        f"{path.relative_to(ROOT)}:{line} {name}: better {AVOIDED[name.strip('_').lower()]}"
        for path in SOURCES
        for name, line in names(ast.parse(path.read_text(encoding="utf-8")))
        if name.strip("_").lower() in AVOIDED
    ]
    assert bound == []


def test_a_docstring_is_clear_on_its_own():
    riddles = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            if text and (len(text.split()) < 2 or RIDDLE.match(text.splitlines()[0])):
                riddles.append(f"{path.relative_to(ROOT)}: {text.splitlines()[0]}")
    assert riddles == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sentences_of_pages_are_short(page):
    text = CODE.sub(" ", page.read_text(encoding="utf-8"))
    lengths = [len(s.split()) for s in re.split(r"(?<=[.!?:])\s+", text) if len(s.split()) > 2]
    if lengths:
        assert sum(lengths) / len(lengths) <= WORDS
        assert max(lengths) <= 40
