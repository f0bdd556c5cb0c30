"""What a build counts and makes: parts of passages become records, here or with helpers elsewhere."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from decoupled.errors import InputError
from decoupled.index.encode import encode_texts
from decoupled.index.record import Record
from decoupled.index.store.base import Store
from decoupled.model.codec import Codec
from decoupled.model.tokens import Passage
from decoupled.runtime.base import Runtime

if TYPE_CHECKING:
    from decoupled.index.store.commit import Staged


@dataclass(frozen=True, kw_only=True)
class Added:
    """What `add` did."""

    added: int = 0
    unchanged: int = 0
    """Already there with the same content: not encoded again."""
    replaced: int = 0
    """Ids that were there with other content, or came twice; the last one stays."""
    seconds: float = 0.0
    duplicates: tuple[str, ...] = ()
    """The first few ids that came twice close together."""


@dataclass
class Tally:
    """The running count behind `Added`."""

    added: int = 0
    unchanged: int = 0
    replaced: int = 0
    duplicates: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def done(self) -> Added:
        """The count as it stands."""
        return Added(
            added=self.added,
            unchanged=self.unchanged,
            replaced=self.replaced,
            seconds=time.perf_counter() - self.started,
            duplicates=tuple(self.duplicates[:10]),
        )


def checked(passages: Iterable[Passage]) -> Iterator[Passage]:
    """The passages, one by one; `InputError` for what is none."""
    if isinstance(passages, str | Path | Passage):
        raise InputError(
            f"add was given {str(passages)!r:.60}; give it a list of passages, or read_passages(FILE)"
        )
    for passage in passages:
        if not isinstance(passage, Passage):
            raise InputError(
                f"a passage is {passage!r:.60}; expected Passage(id=…, text=…), or what "
                "read_passages(FILE) gives"
            )
        if not isinstance(passage.id, str):
            raise InputError(f"the id of a passage is {passage.id!r:.60}; expected a string")
        yield passage


class Sieve:
    """Lets through what is new or changed, against what is stored and what is on its way there."""

    def __init__(self, store: Store, tally: Tally) -> None:
        self._store, self._tally = store, tally
        self._flying: dict[str, list[int]] = {}

    def fresh(self, part: Sequence[Passage]) -> list[Passage]:
        """The passages of a part that must be stored, each id once; they count as on their way."""
        unique: dict[str, Passage] = {}
        for passage in part:
            if passage.id in unique:
                self._tally.duplicates.append(passage.id)
                self._tally.replaced += 1
            unique[passage.id] = passage
        stored = self._store.snapshot.digests(list(unique))
        passing = []
        for passage, old in zip(unique.values(), stored, strict=True):
            flying, new = self._flying.get(passage.id), digest(passage)
            if new == (flying[-1] if flying else old):
                self._tally.unchanged += 1
            else:
                passing.append(passage)
                self._flying.setdefault(passage.id, []).append(new)
        return passing

    def landed(self, part: Sequence[Passage]) -> None:
        """A part that was let through is stored."""
        for passage in part:
            flying = self._flying[passage.id]
            flying.pop(0)
            if not flying:
                del self._flying[passage.id]


Progress = Callable[[Added], None]


class Workers(Protocol):
    """Processes that encode parts of a build and write them, several at a time."""

    def stage(self, parts: Iterator[list[Passage]]) -> Iterator[list[Staged]]:
        """What became of each part, in the order of the parts; those that are ready come together."""


def encode(runtime: Runtime, codec: Codec, passages: Sequence[Passage]) -> list[Record]:
    """Records of all windows of the passages, states encoded by the codec."""
    split = runtime.tokenizer.windows([p.text for p in passages])
    encoding = encode_texts(runtime, "passage", [w.ids for group in split for w in group])
    encoded = codec.encode(encoding.states)
    records: list[Record] = []
    for passage, group in zip(passages, split, strict=True):
        content = digest(passage)
        for number, window in enumerate(group):
            row = len(records)
            records.append(
                Record(
                    id=passage.id,
                    window=number,
                    start=window.start,
                    text=window.text,
                    title=passage.title,
                    meta=passage.meta,
                    offsets=window.offsets,
                    states=np.asarray(encoded[row], np.uint8),
                    vector=encoding.vectors[row],
                    digest=content,
                )
            )
    return records


def part_name(records: Sequence[Record]) -> str:
    """A name that the same records always get."""
    content = "\0".join(f"{r.id}\0{r.digest}" for r in records)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def digest(passage: Passage) -> int:
    """64 bits of everything about a passage that is stored."""
    content = json.dumps(
        [passage.text, passage.title, dict(passage.meta)], sort_keys=True, default=str
    )
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest(), "little")
