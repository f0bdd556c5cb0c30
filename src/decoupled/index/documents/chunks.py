"""Documents cut into passages: at headings, else at paragraphs, else at sentences; no token is in two.

A document's text is its blocks with a blank line between them, which is what it is as one passage
(`chunk=None`); every passage that is cut from it is `text[start:end]`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple

from decoupled.errors import InputError
from decoupled.index.formats.blocks import TextBlock
from decoupled.model.sentences import sentences
from decoupled.model.tokens import Passage, Tokenizer

CHUNK = 180
"""About how many tokens a passage has by default."""
Size = int | Literal["auto"] | None
WHOLE_CHARS = 1 << 15
"""Characters (about ten pages) after which even a document that is left whole is cut."""
PATH = " › "
"""Separator between the headings that make a title."""

_BETWEEN = "\n\n"
_BATCH = 64
_SLUG, _HEADING_CHARS = 60, 200
# A token is rarely longer: what is, is no prose, and must not make a passage of a megabyte.
_TOKEN_CHARS = 20
_PARAGRAPH = re.compile(r".+?(?:\n\s*\n|\Z)", re.DOTALL)
_WORD = re.compile(r"\w+")


@dataclass(eq=False)
class _Section:
    """The section under one heading."""

    path: tuple[str, ...] = ()
    key: str = ""
    """The heading as ids write it, unlike those of the document's other sections."""
    passages: int = 0


class _Unit(NamedTuple):
    """A piece that is never cut: a paragraph, or a sentence or line of a long one, with its space."""

    text: str
    tokens: int
    section: _Section
    level: int
    first: bool
    """Whether this is the first unit of its block."""
    page: int = 0


class Chunker:
    """Cuts texts into passages of about `size` tokens; None leaves them whole, `auto` is 180 or the room."""

    def __init__(
        self, tokenizer: Tokenizer, size: Size = "auto", *, title_path: bool = True
    ) -> None:
        self._tokenizer, self._title_path = tokenizer, title_path
        room = tokenizer.passage_room - tokenizer.title_room
        size = self.size = min(CHUNK, room) if size == "auto" else size
        least = min(16, room)
        if size is not None and not least <= size <= room:
            raise InputError(
                f"chunk={size}; choose {least} to {room} tokens, which is what the model reads, or none"
            )
        # A passage may be 30 % longer where a short rest would else be a passage of its own.
        self._limit = min(int(1.3 * size), room) if size else 0

    def document(self, name: str, blocks: Iterable[TextBlock]) -> Iterator[Passage]:
        """The passages of a document; one that needs no cut is called as the document is."""
        passages = self._passages(name, blocks)
        # Two are looked at: only a document that was cut needs numbers in its ids.
        first, second = next(passages, None), next(passages, None)
        if first is not None:
            yield first if second else replace(first, id=name)
        if second is not None:
            yield second
        yield from passages

    def record(self, passage: Passage) -> Iterator[Passage]:
        """A passage that the user made: as it is where the model reads it at once, else cut."""
        if self.size is None or self._fits(passage):
            yield passage
            return
        section, place = _Section(), 0
        blocks = ((TextBlock(match[0]), section) for match in _PARAGRAPH.finditer(passage.text))
        for number, group in enumerate(self._pack(self._units(blocks, between="")), 1):
            text = "".join(unit.text for unit in group)
            start, end = place + len(text) - len(text.lstrip()), place + len(text.rstrip())
            place += len(text)
            if text.strip():
                cut = {"document": passage.id, "start": start, "end": end}
                meta = {**passage.meta, **cut}
                yield replace(passage, id=f"{passage.id}#{number}", text=text.strip(), meta=meta)

    def _passages(self, name: str, blocks: Iterable[TextBlock]) -> Iterator[Passage]:
        start = 0
        for group in self._pack(self._units(_sectioned(blocks))):
            passage = self._passage(name, group, start)
            start += sum(len(unit.text) for unit in group)
            if passage is not None:
                yield passage

    def _fits(self, passage: Passage) -> bool:
        text, tokenizer = passage.text, self._tokenizer
        room = tokenizer.passage_room - (tokenizer.title_room if passage.title else 0)
        return len(text) <= room or tokenizer.lengths([text])[0] <= room

    def _passage(self, name: str, group: Sequence[_Unit], place: int) -> Passage | None:
        """A passage of these units, the first of which begins at `place`; None where all are headings."""
        content = [unit for unit in group if not unit.level and unit.text.strip()]
        if not content and self.size is not None:
            return None
        path, section = _shared_path(content), (content or group)[0].section
        if self.size is None:
            path = next((unit.section.path for unit in group if unit.section.path), ())
        skipped = 0
        if self._title_path and self.size is not None:
            # Headings that the title says are not said again.
            for unit in group:
                if not unit.level or unit.section.path != path[: len(unit.section.path)]:
                    break
                skipped += len(unit.text)
        text = "".join(unit.text for unit in group)[skipped:].rstrip()
        section.passages += 1
        inner = f"{section.key}/{section.passages}" if section.key else str(section.passages)
        start = place + skipped
        meta: dict[str, Any] = {"document": name, "start": start, "end": start + len(text)}
        if page := (content or group)[0].page:
            meta["page"] = page
        return Passage(
            id=f"{name}#{inner}",
            text=text,
            title=PATH.join(path) if self._title_path else "",
            meta={**meta, "headings": list(path)} if path else meta,
        )

    # Units ----------------------------------------------------------------------------------------

    def _units(
        self, blocks: Iterator[tuple[TextBlock, _Section]], between: str = _BETWEEN
    ) -> Iterator[_Unit]:
        """The blocks with their tokens, long ones in pieces; a batch at a time, for the tokenizer's sake."""
        while batch := list(islice(blocks, _BATCH)):
            lengths = self._lengths([block.text for block, _ in batch])
            for (block, section), tokens in zip(batch, lengths, strict=True):
                if block.level or self._is_short(block.text, tokens):
                    yield _Unit(
                        block.text + between, tokens, section, block.level, True, block.page
                    )
                    continue
                *pieces, (last, end) = self._pieces(block)
                for number, (text, count) in enumerate([*pieces, (last + between, end)]):
                    yield _Unit(text, count, section, 0, number == 0, block.page)

    def _lengths(self, texts: list[str]) -> list[int]:
        if self.size is None:
            return [0] * len(texts)
        lengths = self._tokenizer.lengths(texts)
        return [max(n, len(t) // _TOKEN_CHARS) for n, t in zip(lengths, texts, strict=True)]

    def _is_short(self, text: str, tokens: int) -> bool:
        return len(text) <= WHOLE_CHARS if self.size is None else tokens <= self.size

    def _pieces(self, block: TextBlock) -> list[tuple[str, int]]:
        """Sentences, or lines, of a long block; what is too long even so is cut between tokens."""
        parts = block.text.splitlines(keepends=True) if block.lines else sentences(block.text)
        pieces: list[tuple[str, int]] = []
        for text, tokens in zip(parts, self._lengths(parts), strict=True):
            if self._is_short(text, tokens):
                pieces.append((text, tokens))
            elif self.size is None:
                starts = range(0, len(text), WHOLE_CHARS)
                pieces += [(text[i : i + WHOLE_CHARS], 0) for i in starts]
            else:
                cut = self._tokenizer.stretches(text, self.size, self.size * _TOKEN_CHARS)
                pieces += zip(cut, self._lengths(cut), strict=True)
        return pieces

    # Packing --------------------------------------------------------------------------------------

    def _pack(self, units: Iterator[_Unit]) -> Iterator[list[_Unit]]:
        """Group the units into passages, in their order; each unit is in exactly one."""
        if self.size is None:
            yield from _by_chars(units)
            return
        packer = _Packer(self.size, self._limit)
        for unit in units:
            yield from packer.take(unit)
        yield from packer.finish()


@dataclass
class _Packer:
    """Fills passages, and holds one back so that a short end can join it."""

    size: int
    limit: int
    before: list[_Unit] = field(default_factory=list)
    """A full passage whose section goes on."""
    held: list[_Unit] = field(default_factory=list)

    def take(self, unit: _Unit) -> Iterator[list[_Unit]]:
        """One more unit; gives the passages that are complete."""
        tokens = _tokens(self.held)
        # More units than tokens are headings without end: held together they would take ever longer.
        if self.held and len(self.held) > self.limit:
            yield from self.finish()
        elif unit.level:
            if self.held and not self._goes_on(unit, tokens):
                yield from self.finish()
        elif _has_text(self.held) and tokens + unit.tokens > self._most(unit, tokens):
            cut = self._cut(unit)
            if self.before:
                yield self.before
            self.before, self.held = self.held[:cut], self.held[cut:]
            if self.held and _tokens(self.held) + unit.tokens > self.limit and _has_text(self.held):
                yield self.before
                self.before, self.held = self.held, []
        self.held.append(unit)

    def finish(self) -> Iterator[list[_Unit]]:
        """The section ends here: what is held is a passage, or the end of the one before."""
        held, before, self.held, self.before = self.held, self.before, [], []
        short = _tokens(held) <= min(self.size // 4, self.limit - _tokens(before))
        if before and short and before[-1].section is held[0].section:
            before, held = before + held, []
        if before and held:
            yield before
        if last := held or before:
            yield last

    def _goes_on(self, heading: _Unit, tokens: int) -> bool:
        """Whether the next section may begin in the passage that is held: if that is short and related."""
        if not _has_text(self.held):
            return True
        top = self.held[-1].section.path[:1]
        akin = top != () and top == heading.section.path[:1]
        return akin and not self.before and tokens < self.size // 2

    def _most(self, unit: _Unit, tokens: int) -> int:
        """How full a passage may be: a little more, where it would else be less than half."""
        return self.limit if unit.first and tokens < self.size // 2 else self.size

    def _cut(self, unit: _Unit) -> int:
        """How many of the units that are held make a passage: up to a heading, or whole paragraphs."""
        for n in range(len(self.held) - 1, 0, -1):
            if self.held[n].level and _has_text(self.held[:n]):
                return n
        if not unit.first:
            starts = [n for n, held in enumerate(self.held) if held.first and n]
            if starts and _tokens(self.held[: starts[-1]]) >= self.size // 2:
                return starts[-1]
        last = self.held[-1]
        # A paragraph that ends in a colon announces what follows, and goes with it.
        announces = last.first and last.text.rstrip().endswith(":")
        return len(self.held) - (announces and len(self.held) > 1 and last.tokens < self.size // 4)


def _by_chars(units: Iterator[_Unit]) -> Iterator[list[_Unit]]:
    held: list[_Unit] = []
    chars = 0
    for unit in units:
        if held and chars + len(unit.text) > WHOLE_CHARS:
            yield held
            held, chars = [], 0
        held.append(unit)
        chars += len(unit.text)
    if held:
        yield held


def _sectioned(blocks: Iterable[TextBlock]) -> Iterator[tuple[TextBlock, _Section]]:
    """Each block with the section it stands in."""
    section, path = _Section(), list[tuple[int, str]]()
    keys: Counter[str] = Counter()
    for block in blocks:
        # No heading is that long: it is text in the style of one.
        if len(block.text) > _HEADING_CHARS:
            block = block._replace(level=0)
        if block.level:
            path = [(level, text) for level, text in path if level < block.level]
            path.append((block.level, block.text))
            key = "-".join(_WORD.findall(block.text.lower()))[:_SLUG].strip("-") or "section"
            keys[key] += 1
            key = key if keys[key] == 1 else f"{key}-{keys[key]}"
            section = _Section(tuple(text for _, text in path), key)
        yield block, section


def _tokens(units: Iterable[_Unit]) -> int:
    return sum(unit.tokens for unit in units)


def _has_text(units: Iterable[_Unit]) -> bool:
    return any(not unit.level for unit in units)


def _shared_path(units: Sequence[_Unit]) -> tuple[str, ...]:
    """The heading path that is common to all units."""
    levels = zip(*(unit.section.path for unit in units), strict=False)
    return tuple(texts[0] for texts in takewhile(lambda texts: len(set(texts)) == 1, levels))
