"""A table looked at without trust: each file against the head, each record against its own checksums.

What can be made again is, in an order in which a kill at any point leaves the damage as visible as it was:
the head that calls the table sound is written last.
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import lance
import numpy as np
from lance.fragment import FragmentMetadata

from decoupled.errors import DecoupledError
from decoupled.index.record import MARKER, Excerpt, Record, excerpts_of, keys_of, tags_of
from decoupled.index.store import changes
from decoupled.index.store.base import Rows
from decoupled.index.store.catalogue import TableVersion
from decoupled.index.store.head import TableHead, damage, manifest_file, trouble
from decoupled.index.store.lance import LanceStore
from decoupled.index.store.location import Location, Lock
from decoupled.index.stored import joined
from decoupled.model.tokens import Passage

Encode = Callable[[list[Passage]], list[Record]]
# Records that are read, and passages that are encoded, at a time.
_BLOCK, _PART = 1024, 256
_ANY = (
    OSError,
    ValueError,
    RuntimeError,
    ArithmeticError,
    LookupError,
    AssertionError,
    DecoupledError,
)
"""Errors that reading damaged files may raise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Seen:
    """A record as it lies on the disk."""

    row: int
    ident: str
    """Its id, as far as it can be read; empty for the marker of a part."""
    excerpt: Excerpt | None
    sound: bool


class Inspection:
    """One inspection of a table; with `repair` it holds the lock and mends what it can."""

    def __init__(
        self, location: Location, *, repair: bool, compared: Callable[[int], None]
    ) -> None:
        self._location, self._repair, self._compared = location, repair, compared
        self._exit = ExitStack()
        self._lock: Lock | None = None
        self.damage: list[tuple[str, bool, list[str]]] = []
        """For each damage: its description, whether it was repaired, and the ids that were lost."""
        self.passages = self.records = 0
        self.covered = True

    def __enter__(self) -> Inspection:
        if self._repair:
            self._lock = self._location.lock()
            self._exit.callback(self._lock.release)
        return self

    def __exit__(self, *exception: object) -> None:
        self._exit.close()

    def run(self, encode: Encode) -> None:
        """Compare everything with its checksums, and repair it where that was asked for."""
        head = self._head()
        store = LanceStore(self._location, self._open(head), self._lock)
        store._head = head
        wrong = self._wrong_files(head, store._at)
        if unknown := sorted(f for f in wrong if f.startswith("_deletions/")):
            # Which records were deleted is unknown now, so nothing else is compared or changed.
            for file in unknown:
                self._note(
                    f"{file} of its table is damaged or gone: what was deleted cannot be told; "
                    "restore the index from a copy",
                    False,
                )
            return
        # A table without a head has no checksums of its search indexes: they are made anew.
        stale = {f.split("/")[1] for f in wrong if f.startswith("_indices/")}
        bad = {n for n, f in store._at.fragments.items() if _data(f) & wrong}
        rows, passages, lost = self._look(store, bad)
        if len(rows):
            self._note(
                f"{len(rows)} records of {self._location.name} are damaged", self._repair, lost
            )
            if self._repair:
                _replace(store, self._location, rows, passages, encode)
        for file in sorted(wrong):
            self._note(f"{file} of its table is damaged or gone", self._repair)
        if self._repair:
            _drop_indexes(store, None if head is None else stale)
            store.optimise()
            store._head = None  # so that every file is read again
            store._seal(store._at)
        self.passages, self.records = store.snapshot.passages, len(store.snapshot)

    def _note(self, what: str, repaired: bool, lost: Sequence[str] = ()) -> None:
        self.damage.append((what, repaired, list(lost)))

    def _head(self) -> TableHead | None:
        """The head, with Lance's manifest put back from its copy where that is damaged."""
        try:
            head = TableHead.load(self._location)
        except DecoupledError as error:
            self._note(str(error).partition(";")[0], self._repair)
            return None
        if head is None:
            self.covered = self._repair
        elif not head.sound(self._location):
            what = f"the manifest of version {head.version} of {self._location.name} is damaged or gone"
            self._note(what, self._repair)
            if not self._repair:
                raise damage(self._location.name, what)
            self._location.save(manifest_file(head.version), head.manifest)
        return head

    def _open(self, head: TableHead | None) -> Any:
        """The newest version; torn ones are set aside, unless the head says that they were acknowledged."""
        try:
            with trouble(self._location.name):
                return lance.dataset(self._location.table, session=self._location.session)
        except (OSError, ValueError, DecoupledError) as error:
            if self._lock is None:
                raise damage(self._location.name, f"Lance cannot read it ({error})") from None
            self._lock.release()
            # It takes the lock itself, so ours was released for as long.
            torn = self._location.heal(head.version if head else 0)
            self._lock = self._location.lock()
            self._exit.callback(self._lock.release)
            if not torn:
                raise damage(self._location.name, f"Lance cannot read it ({error})") from None
        with trouble(self._location.name):
            dataset = lance.dataset(self._location.table, session=self._location.session)
        if head is None:
            gone = ", ".join(map(str, torn))
            self._note(
                f"version {gone} was torn, and what it changed is undone: version {dataset.version} is the "
                "newest now; run the last command on this index again",
                True,
            )
        return dataset

    def _wrong_files(self, head: TableHead | None, version: TableVersion) -> set[str]:
        wrong: set[str] = set()
        if head is not None and head.version == version.number:
            for file, (size, _) in head.files.items():
                wrong.update(head.wrong(self._location, [file], budget=size))
                self._compared(size)
        return wrong

    def _look(
        self, store: LanceStore, bad: set[int]
    ) -> tuple[Rows, list[list[Excerpt]], list[str]]:
        """Rows that must go, passages to make again from their texts, and what is lost."""
        gone, again, lost = [np.zeros(0, np.int64)], list[list[Excerpt]](), list[str]()
        for number, fragment in store._at.fragments.items():
            try:
                with trouble(self._location.name):
                    records = self._records(store, fragment, everything=number in bad)
                    for ident, group in groupby(records, key=lambda record: record.ident):
                        windows = list(group)  # they lie together
                        if all(window.sound for window in windows):
                            continue
                        gone.append(np.array([window.row for window in windows]))
                        texts = [window.excerpt for window in windows if window.excerpt]
                        if [text.window for text in texts] == list(range(len(windows))):
                            again.append(texts)
                        elif ident:
                            lost.append(ident)
            except _ANY as error:
                lost.append(f"{fragment.count_rows()} records of fragment {number} ({error!s:.80})")
                gone.append(np.arange(fragment.physical_rows, dtype=np.int64) | (number << 32))
        rows = np.unique(np.concatenate(gone))
        return rows[store._catalogue.alive(store._at, rows)], again, list(dict.fromkeys(lost))

    def _records(self, store: LanceStore, fragment: Any, *, everything: bool) -> Iterator[_Seen]:
        """Each record of a fragment; none is sound where `everything` is to be made again."""
        scanner = store._at.dataset.scanner(
            columns=[*store.snapshot._excerpt, "key", "tags"],
            fragments=[fragment],
            filter=None if everything else f"window != {MARKER}",
            with_row_address=True,
            batch_size=_BLOCK,
        )
        for batch in scanner.to_batches():
            rows = batch["_rowaddr"].to_numpy().astype(np.int64)
            broken = self._broken_states(store, rows)
            for place, row in enumerate(rows.tolist()):
                one = batch.slice(place, 1)
                ident = str(one["id"][0].as_py() or "")
                if one["window"][0].as_py() == MARKER:
                    yield _Seen(row=row, ident="", excerpt=None, sound=False)
                    continue
                excerpt = _excerpt(one)
                sound = excerpt is not None and place not in broken and not everything
                yield _Seen(
                    row=row, ident=ident, excerpt=excerpt, sound=sound and _matches(one, excerpt)
                )

    def _broken_states(self, store: LanceStore, rows: Rows) -> set[int]:
        """Positions among the rows whose stored states are damaged."""
        view = store.snapshot
        try:
            extents = store._catalogue.extents(store._at, rows)
            self._compared(int(extents["size"].sum()))
            return set(view._read(extents)[1])
        except _ANY:
            if len(rows) == 1:
                return {0}
        # One unreadable record fails the whole read, so each is looked at alone.
        return {p for p in range(len(rows)) if self._broken_states(store, rows[p : p + 1])}


def _data(fragment: Any) -> set[str]:
    return {f"data/{file.path}" for file in fragment.metadata.files}


def _excerpt(row: Any) -> Excerpt | None:
    """The text of a row; None where it is not what was written."""
    try:
        return excerpts_of(row)[0]
    except _ANY:
        return None


def _matches(row: Any, excerpt: Excerpt | None) -> bool:
    """Whether the key and the tags of a row are those of its id and metadata."""
    if excerpt is None:
        return False
    key, tags = int(keys_of([excerpt.id])[0]), tags_of(excerpt.meta) or None
    return (key, tags) == (row["key"][0].as_py(), row["tags"][0].as_py())


def _replace(
    store: LanceStore, location: Location, rows: Rows, passages: list[list[Excerpt]], encode: Encode
) -> None:
    """One commit that takes rows away and adds the passages, encoded anew."""
    fragments: list[Any] = []
    for start in range(0, len(passages), _PART):
        records = encode(
            [p for windows in passages[start : start + _PART] for p in joined(windows)]
        )
        staged = store.stage(records, part=f"repair-{uuid.uuid4().hex}")
        fragments += [
            FragmentMetadata.from_json(json.dumps(f)) for f in staged.content["fragments"]
        ]
    store._move(changes.replace_rows(store._at, location, rows, fragments))


def _drop_indexes(store: LanceStore, uuids: set[str] | None) -> None:
    """Drop search indexes with a damaged piece, or all: `optimise` makes them again."""
    dataset = copy.copy(store._at.dataset)
    for index in dataset.describe_indices():
        if uuids is None or any(str(piece.uuid) in uuids for piece in index.segments):
            dataset.drop_index(index.name)
    if dataset.version != store._at.number:
        store._move(TableVersion(dataset))
