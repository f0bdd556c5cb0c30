"""Names of things and what kind they are: found in a corpus, and exchanged for others of their kind."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from decoupled.errors import InputError
from decoupled.methods.pretrain.corpus import Corpus, Places, pieces_of
from decoupled.methods.pretrain.segments import Builder, Segments, texts
from decoupled.model.tokens import Passage, Tokenizer
from decoupled.train.data.synthetic import STOPWORDS

LONGEST = 4
"""The most words of a name that is made from titles."""
OFTEN = 2
"""The fewest titles or headings that a name must occur in, where it is a part of them."""
TITLE = "title"
"""The kind of a name that is a whole title."""
_WORD = re.compile(r"[^\W_][\w'-]*")

Named = dict[str, dict[str, tuple[str, ...]]]
"""Kind → name → all its spellings."""


def read_gazetteer(path: str | Path) -> Named:
    """A JSON object of kinds, each a list of names, of which one with several spellings is a list of them."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        named = {
            kind: {spelt[0]: tuple(map(str, spelt)) for spelt in map(_spellings, names)}
            for kind, names in content.items()
        }
    except (OSError, ValueError, AttributeError, TypeError, IndexError) as error:
        raise InputError(
            f"{path} is no list of names ({error}); write JSON such as "
            '{"city": ["Paris", ["New York", "NYC"]], "river": ["Seine", "Rhine"]}'
        ) from None
    return named


def _spellings(name: str | list[str]) -> list[str]:
    return [name] if isinstance(name, str) else list(name)


def made_gazetteer(passages: Iterable[Passage]) -> Named:
    """Names from titles and headings: short ones as they are, and what comes in several of them.

    What kind a part of a title is says its last word: `neural networks` may stand for `social networks`.
    """
    titles = {part for passage in passages for part in _titles(passage)}
    counts = Counter(name for title in titles for name in set(_parts(_WORD.findall(title))))
    named: Named = defaultdict(dict)
    for name, count in counts.items():
        if count >= OFTEN:
            # Whatever else is said of a thing stands before it.
            named[name.split()[-1]][name] = (name,)
    kinds_of = {kind: names for kind, names in named.items() if len(names) > 1}
    all_names = {name for names in kinds_of.values() for name in names}
    short = [
        t for t in sorted(titles) if len(_WORD.findall(t)) <= LONGEST and t.lower() not in all_names
    ]
    return kinds_of | ({TITLE: {title: (title,) for title in short}} if len(short) > 1 else {})


def _titles(passage: Passage) -> Iterator[str]:
    headings = passage.meta.get("headings")
    paths = headings if isinstance(headings, list) and headings else [passage.title]
    yield from (text.strip() for text in paths if isinstance(text, str) and text.strip())


def _parts(words: list[str]) -> Iterator[str]:
    """Runs of two words or more without a stop word, in lower case."""
    small = [word.lower() for word in words]
    for start in range(len(small)):
        for end in range(start + 2, min(start + LONGEST, len(small)) + 1):
            if not STOPWORDS & set(small[start:end]):
                yield " ".join(small[start:end])


@dataclass(frozen=True, kw_only=True, eq=False)
class Gazetteer:
    """Spellings as tokens. Things are numbered, and so are their spellings."""

    spellings: tuple[tuple[int, ...], ...]
    thing: tuple[int, ...]
    """The thing that each spelling names."""
    kind: tuple[str, ...]
    """The kind of each thing."""

    @classmethod
    def of(cls, named: Named, tokenizer: Tokenizer) -> Gazetteer:
        """The names in the tokens of a model; what has several kinds is of the first."""
        numbers: dict[tuple[int, ...], int] = {}
        kinds: list[str] = []
        for kind, names in named.items():
            for spelt in names.values():
                tokens = [tuple(ids) for ids, _ in pieces_of(tokenizer, spelt) if ids]
                if tokens and (fresh := [one for one in tokens if one not in numbers]):
                    numbers |= dict.fromkeys(fresh, len(kinds))
                    kinds.append(kind)
        if not any(count > 1 for count in Counter(kinds).values()):
            raise InputError(
                "no kind has two names, so none can stand for another; give --gazetteer FILE, a JSON object "
                "of kinds with their names"
            )
        return cls(spellings=tuple(numbers), thing=tuple(numbers.values()), kind=tuple(kinds))

    @cached_property
    def sizes(self) -> dict[int, list[int]]:
        """The lengths in tokens of spellings that begin with a token, longest first."""
        lengths: dict[int, set[int]] = defaultdict(set)
        for spelling in self.spellings:
            lengths[spelling[0]].add(len(spelling))
        return {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}

    @cached_property
    def spelt(self) -> dict[int, list[int]]:
        """The spellings of each thing."""
        members: dict[int, list[int]] = defaultdict(list)
        for number, thing in enumerate(self.thing):
            members[thing].append(number)
        return dict(members)

    @cached_property
    def alike(self) -> dict[str, list[int]]:
        """The things of each kind."""
        numbers: dict[str, list[int]] = defaultdict(list)
        for thing, kind in enumerate(self.kind):
            numbers[kind].append(thing)
        return dict(numbers)

    def find(self, corpus: Corpus) -> Places:
        """`[K,3]` start, end and spelling of each name: whole words, the longest, no two in one place."""
        ids, begins = corpus.ids, corpus.begins
        number = {spelling: n for n, spelling in enumerate(self.spellings)}
        may = np.flatnonzero(np.isin(ids, list(self.sizes)) & begins)
        limits = corpus.sentences[np.searchsorted(corpus.sentences, may, side="right")]
        positions, free = [], 0
        for start, limit in zip(may.tolist(), limits.tolist(), strict=True):
            # A name within one that was found already is skipped; the longest match comes first.
            for size in self.sizes[int(ids[start])] if start >= free else ():
                end = start + size
                entity = number.get(tuple(ids[start:end].tolist())) if end <= limit else None
                # Only whole words: the next token must begin one.
                if entity is not None and (end == limit or begins[end]):
                    if len(self.alike[self.kind[self.thing[entity]]]) > 1:
                        positions.append((start, end, entity))
                        free = end
                    break
        return np.asarray(positions, np.int64).reshape(-1, 3)

    def exchange(
        self, corpus: Corpus, positions: Places, share: float, draw: np.random.Generator
    ) -> Corpus:
        """The corpus with some names replaced by others of their kind, no two neighbours, all marked."""
        parts, begins, mentions = [], list[np.ndarray](), []
        shifts, place, shift, free = [], 0, 0, True
        for start, end, spelling in positions.tolist():
            thing = self.thing[spelling]
            # Never two neighbours: an untouched name must stand between two replaced ones (WKLM).
            replaced = free and draw.random() < share
            new = self._other(thing, draw) if replaced else self.spellings[spelling]
            parts += [corpus.ids[place:start], np.asarray(new, np.int32)]
            marks = np.zeros(len(new), np.bool_)
            marks[0] = True
            begins += [corpus.begins[place:start], marks if replaced else corpus.begins[start:end]]
            mentions.append((start + shift, start + shift + len(new), int(replaced)))
            shifts.append((start, len(new) - (end - start)))
            shift += len(new) - (end - start)
            place, free = end, not replaced
        moved = np.asarray(shifts, np.int64).reshape(-1, 2)
        # Sentence starts move by all length changes before them.
        before = np.searchsorted(moved[:, 0], corpus.sentences)
        total = np.cumsum([0, *moved[:, 1]])
        return replace(
            corpus,
            ids=np.concatenate([*parts, corpus.ids[place:]]),
            begins=np.concatenate([*begins, corpus.begins[place:]]),
            sentences=corpus.sentences + total[before],
            mentions=np.asarray(mentions, np.int64).reshape(-1, 3),
        )

    def _other(self, thing: int, draw: np.random.Generator) -> tuple[int, ...]:
        alike = self.alike[self.kind[thing]]
        # One of the others: the last takes the place of the thing itself.
        other = alike[int(draw.integers(len(alike) - 1))]
        spelt = self.spelt[alike[-1] if other == thing else other]
        return self.spellings[spelt[int(draw.integers(len(spelt)))]]


def exchanging(gazetteer: Gazetteer, share: float) -> Builder:
    """A builder that cuts a corpus after exchanging names anew each time."""
    cached: dict[int, Places] = {}

    def build(corpus: Corpus, room: int, draw: np.random.Generator) -> Segments:
        if id(corpus) not in cached:
            cached[id(corpus)] = gazetteer.find(corpus)
        return texts(gazetteer.exchange(corpus, cached[id(corpus)], share, draw), room, draw)

    return build
