"""Datasets with weights → every text once, every query with the texts that answer it, some set aside.

Where a dataset has answers, a question without any has none in its passage; where it has none, its passages
answer in words that nobody marked. Every text also gets a query that is made of it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from itertools import islice
from pathlib import Path
from random import Random

from decoupled.errors import InputError
from decoupled.index.documents import OnError, read_passages
from decoupled.measure.pairs import Pair, Span, read_pairs
from decoupled.model.tokens import Passage
from decoupled.train.data.synthetic import query_from, rarity


class Kind(IntEnum):
    """What is known of a query."""

    LABELLED = 0
    SYNTHETIC = 1
    UNANSWERABLE = 2
    """Its passage is about it, and does not hold the answer."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Pairs of queries and passages, or passages alone."""

    name: str
    pairs: Sequence[Pair] = ()
    passages: Sequence[Passage] = ()
    weight: float = 1.0
    """How often each query comes in a pass over the mixture; 0 takes its texts alone."""

    @classmethod
    def read(
        cls, source: str | Path, *, limit: int | None = None, on_error: OnError = "stop"
    ) -> Dataset:
        """A file or folder that `read_pairs` or, where that finds no queries, `read_passages` reads.

        `PATH=2` has the weight 2; `limit` keeps the first pairs or passages.
        """
        path, weight = _weighted(str(source))
        if _has_queries(path):
            pairs = tuple(islice(read_pairs(path, on_error=on_error), limit))
            return cls(name=path, pairs=pairs, weight=weight)
        passages = tuple(islice(read_passages(path, on_error=on_error), limit))
        return cls(name=path, passages=passages, weight=weight)


def _weighted(source: str) -> tuple[str, float]:
    path, equals, tail = source.rpartition("=")
    if not equals or Path(source).exists():
        return source, 1.0
    try:
        weight = float(tail)
    except ValueError:
        return source, 1.0
    if not 0 <= weight < 1000:
        raise InputError(f"{source}: the weight is {tail}; choose a number from 0")
    return path, weight


def _has_queries(path: str) -> bool:
    try:
        return next(iter(read_pairs(path)), None) is not None
    except InputError:
        return False


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A query, and what is known of the texts of the mixture for it."""

    query: str
    kind: Kind
    dataset: str = ""
    weight: float = 1.0
    own: tuple[int, ...]
    """Texts that answer it, or that it is about."""
    spans: tuple[Span | None, ...]
    """Where each of them does; None where nobody marked it."""
    judged: tuple[int, ...] = ()
    """Texts that are known not to answer it."""
    answers: tuple[str, ...] = ()
    """Lower-cased; a passage that holds one is no negative."""
    held: bool = False
    """Is it set aside, to judge and not to train?"""

    @property
    def reads(self) -> bool:
        """Is it known where its passages answer it, or that they do not?"""
        return self.kind == Kind.UNANSWERABLE or any(self.spans)


@dataclass
class Mixture:
    """Texts and queries of all datasets, in the order in which they were given."""

    texts: list[Passage] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)
    """The text that each was made of by taking a sentence out; the others are their own."""
    asked: list[Asked] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        datasets: Iterable[Dataset],
        *,
        held: float = 0.03,
        synthetic: bool = True,
        seed: int = 0,
    ) -> Mixture:
        """All queries of the datasets, a share of them `held` out, and one made of every text."""
        made = cls()
        number: dict[str, int] = {}
        for dataset in datasets:
            made._add(dataset, number, held)
        if not made.texts:
            raise InputError(
                "the datasets hold no texts; give at least one file of pairs or passages"
            )
        if synthetic:
            made._ask(seed)
        if not any(not asked.held for asked in made.asked):
            raise InputError(
                f"{len(made.texts)} texts give no query to train on; give pairs, or longer texts"
            )
        return made

    @cached_property
    def lowered(self) -> list[str]:
        """Texts as answers are looked for in them."""
        return [passage.text.lower() for passage in self.texts]

    @cached_property
    def positives(self) -> dict[str, set[int]]:
        """All texts that answer a query of those words, by whichever dataset."""
        found: dict[str, set[int]] = {}
        for asked in self.asked:
            texts = {self.origin[text] for text in asked.own}
            found.setdefault(_folded(asked.query), set()).update(texts)
        return found

    def barred(self, asked: Asked) -> set[int]:
        """Texts that are no negatives of a query, as far as the data says."""
        return self.positives[_folded(asked.query)]

    def digest(self) -> str:
        """Names the content."""
        made = hashlib.sha256()
        for passage, origin in zip(self.texts, self.origin, strict=True):
            made.update(f"{passage.title}\0{passage.text}\0{origin}\0".encode(errors="replace"))
        for asked in self.asked:
            made.update(f"{asked}\0".encode(errors="replace"))
        return made.hexdigest()[:16]

    def _add(self, dataset: Dataset, number: dict[str, int], held: float) -> None:
        def text(title: str, body: str) -> int:
            found = number.setdefault(body, len(self.texts))
            if found == len(self.texts):
                self.texts.append(Passage(id=str(found), text=body, title=title))
                self.origin.append(found)
            return found

        for passage in dataset.passages:
            text(passage.title, passage.text)
        reads = any(pair.answers for pair in dataset.pairs)
        groups: dict[str, list[Pair]] = {}
        for pair in dataset.pairs:
            _check_label(pair, dataset)
            groups.setdefault(pair.group or pair.query, []).append(pair)
        for pairs in groups.values():
            texts = [text(pair.title, pair.passage) for pair in pairs]
            if (made := _asked(pairs, texts, reads)) is not None:
                # By its words, so that the same query is on the same side in every run.
                aside = zlib.crc32(_folded(made.query).encode(errors="replace")) % 10_000
                made = replace(
                    made, dataset=dataset.name, weight=dataset.weight, held=aside < held * 10_000
                )
                self.asked.append(made)

    def _ask(self, seed: int) -> None:
        """A query made of every text, by a seed of its own: other texts beside it change nothing."""
        rare = rarity(passage.text for passage in self.texts)
        for number, passage in enumerate(list(self.texts)):
            draw = Random(zlib.crc32(passage.text.encode(errors="replace")) ^ seed)
            made = query_from(passage.text, passage.title, draw, rare)
            if made is None:
                continue
            own = number
            if made.without is not None:
                own = len(self.texts)
                self.texts.append(replace(passage, text=made.without))
                self.origin.append(number)
            known = Asked(query=made.query, kind=Kind.SYNTHETIC, own=(own,), spans=(None,))
            self.asked.append(known)


def _asked(pairs: Sequence[Pair], texts: Sequence[int], reads: bool) -> Asked | None:
    """The query of a group of pairs; None where no passage of it is relevant."""
    judged = tuple(t for t, p in zip(texts, pairs, strict=True) if _relevance(p) == 0)
    right = [(t, p) for t, p in zip(texts, pairs, strict=True) if t not in judged]
    if not right:
        return None
    answers = dict.fromkeys(a.text.lower() for _, pair in right for a in pair.answers)
    silent = reads and not answers and all(pair.label is None for _, pair in right)
    return Asked(
        query=pairs[0].query,
        kind=Kind.UNANSWERABLE if silent else Kind.LABELLED,
        own=tuple(text for text, _ in right),
        spans=tuple(pair.answers[0] if pair.answers else None for _, pair in right),
        judged=judged,
        answers=tuple(answer for answer in answers if answer.strip()),
    )


def _relevance(pair: Pair) -> float:
    return 1.0 if pair.label is None or pair.answers else max(0.0, float(pair.label))


def _check_label(pair: Pair, dataset: Dataset) -> None:
    if isinstance(pair.label, str):
        raise InputError(
            f"{dataset.name}: the pair {pair.id or pair.query!r:.60} has the label {pair.label!r}; a reader "
            "learns from answers, from grades (0 is not relevant), or from pairs without a label"
        )


def _folded(query: str) -> str:
    return " ".join(query.lower().split())
