"""Texts as trees: phrases, sentences and headings as nodes over their tokens (Nguyen et al., 2020).

A node is a row after the last of its tokens, children before parents; its id says its label and how many
tokens before it are under it. So the ids of a text are all that is needed to know its tree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from decoupled.errors import InputError
from decoupled.model.jsonable import LATER
from decoupled.model.parts.structure import Rows, Structure
from decoupled.model.sentences import sentences

SPAN = 1024
"""The number of ids of each label; a node with as many tokens or more is left out."""
PASSAGE, HEADING, SENTENCE, OTHER = "passage", "heading", "sentence", "other"
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


@dataclass(frozen=True, kw_only=True)
class TreeText(Structure):
    """The labels of nodes, which have the last rows of the token table; a bracketed parse, or sentences."""

    labels: tuple[str, ...]
    first: int
    kind: Literal["tree"] = field(default="tree", metadata=LATER)

    def read(self, text: str, parse: str) -> list[Node]:
        return parsed(parse, text) if parse else sentence_tree(text)

    def add(
        self, read: Sequence[Node], ids: Rows, offsets: Rows, *, start: int, title: slice
    ) -> tuple[Rows, Rows]:
        own = [node._replace(start=node.start - start, end=node.end - start) for node in read]
        return with_nodes(ids, offsets, own, title, self)

    def in_table(self, ids: Any) -> Any:
        label = (ids - self.first) // SPAN
        # Labels have the last rows of the table; ids of tokens stay as they are.
        return ids + (ids >= self.first) * (self.first - len(self.labels) + label - ids)

    def code(self, label: str, tokens: int) -> int:
        """The id of a node with that label over so many tokens."""
        name = label if label in self.labels else OTHER
        return self.first + self.labels.index(name) * SPAN + tokens


class Node(NamedTuple):
    """A node: a label over the characters `start` to `end` of a text."""

    start: int
    end: int
    label: str


def sentence_tree(text: str) -> list[Node]:
    """A node for each sentence of a text."""
    nodes, at = [], 0
    for sentence in sentences(text):
        nodes.append(Node(at, at + len(sentence), SENTENCE))
        at += len(sentence)
    return nodes


def parsed(structure: str, text: str) -> list[Node]:
    """The phrases of a bracketed parse of a text, children before parents: `(S (NP the cat) (VP sat))`."""
    nodes: list[Node] = []
    stack: list[tuple[str, int | None]] = []
    at, opened = 0, False
    for part in re.findall(r"[()]|[^\s()]+", structure):
        if part == "(":
            stack.append(("", None))
            opened = True
            continue
        if not stack:
            raise _no_tree(structure, text, f"{part!r:.40} stands outside of all brackets")
        if part == ")":
            label, start = stack.pop()
            if start is None:
                raise _no_tree(structure, text, f"no word is under {label!r:.40}")
            nodes.append(Node(start, at, label))
        elif opened:
            stack[-1] = (part, None)
        else:
            word = _BRACKETS.get(part, part)
            start = at + len(text[at:]) - len(text[at:].lstrip())
            # Parsers and tasks lower what they read.
            if text[start : start + len(word)].lower() != word.lower():
                there = text[start : start + 20]
                raise _no_tree(structure, text, f"{word!r:.40} where the text has {there!r}")
            at = start + len(word)
            # Every open bracket without a word so far begins with this one.
            stack = [(label, start if begun is None else begun) for label, begun in stack]
        opened = False
    if stack:
        raise _no_tree(structure, text, f"{len(stack)} of its brackets are never closed")
    return nodes


def _no_tree(structure: str, text: str, why: str) -> InputError:
    return InputError(
        f"structure {structure!r:.60} is no tree over its text {text!r:.40}: {why}; give brackets with a "
        "label and the words of the text in order, such as (S (NP the cat) (VP sat))"
    )


def with_nodes(
    ids: Rows, offsets: Rows, nodes: Sequence[Node], title: slice, tree: TreeText
) -> tuple[Rows, Rows]:
    """The rows of a window with those of its nodes among them; characters count from its beginning.

    Rows of the `title` are under a heading, and all under the passage. Of nodes over the same tokens the
    topmost stays, and a token alone has none.
    """
    real = np.flatnonzero(offsets.any(1))
    starts, ends = offsets[real, 0], offsets[real, 1]
    spans: dict[tuple[int, int], str] = {}
    if title.stop > title.start:
        spans[title.start, title.stop - 1] = HEADING
    for start, end, label in nodes:
        first, last = np.searchsorted(starts, start), np.searchsorted(ends, end, "right") - 1
        if first <= last:
            spans[int(real[first]), int(real[last])] = label
    if len(real):
        spans[min(title.start, int(real[0])), int(real[-1])] = PASSAGE
    # A node over one token says nothing that the token does not.
    kept = {span: label for span, label in spans.items() if 0 < span[1] - span[0] < SPAN - 1}
    after = [last + 1 for _, last in kept]
    codes = [tree.code(label, last - first + 1) for (first, last), label in kept.items()]
    points = np.repeat(offsets[[last for _, last in kept], 1:], 2, 1) if kept else offsets[:0]
    return (
        np.insert(ids, after, codes).astype(np.int32),
        np.insert(offsets, after, points, axis=0).astype(np.int32),
    )
