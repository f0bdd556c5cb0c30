"""The embedded store: a Lance table for text, search and versions, and segments for states.

with LanceStore.create("docs.idx", token_bytes=98) as store:
    store.append(records, part="0")
    store.optimise()
rows = LanceStore.open("docs.idx").snapshot.lexical("who wrote Dracula?", 100).rows
"""

from __future__ import annotations

import copy
import errno
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
from lance.fragment import FragmentMetadata

from decoupled.errors import DecoupledError, IndexBusy, InputError
from decoupled.index.record import READ, Record, keys_of, relabelled, schema_of
from decoupled.index.store import changes
from decoupled.index.store.base import KEEP, Rows, Share, Staged, Store
from decoupled.index.store.catalogue import Catalogue, TableVersion
from decoupled.index.store.head import HEAD, TableHead, damage, sound_head, trouble, verify
from decoupled.index.store.location import Location, Lock, location_of
from decoupled.index.store.snapshot import LanceSnapshot
from decoupled.model.tokens import Passage


class LanceStore(Store):
    """Implements `Store` in a folder or under an address such as `s3://bucket/docs.idx`."""

    def __init__(
        self, location: Location, dataset: Any, lock: Lock | None, share: Share | None = None
    ) -> None:
        self._location, self._lock, self._share = location, lock, share
        self._catalogue, self._guard = Catalogue(), threading.RLock()
        self._uncertain = False
        self._head: TableHead | None = None
        """The head that this store wrote or read last."""
        self._known: set[str] = set()
        """Files of the table that were compared with the head, or written by this store."""
        self._move(TableVersion(dataset))

    @classmethod
    def exists(cls, uri: str | Path) -> bool:
        """Whether `open` would find a store."""
        location = location_of(uri)
        if location.load(HEAD) is not None:
            return True
        try:
            with trouble(location.name):
                lance.dataset(location.table, session=location.session)
        except (ValueError, OSError, DecoupledError) as error:
            return "not found" not in str(error).lower()  # one that is there but torn exists
        return True

    @classmethod
    def create(cls, uri: str | Path, *, token_bytes: int, width: int | None = None) -> LanceStore:
        """A new, empty store, open for writing, for states and dense vectors of these widths."""
        location = location_of(uri)
        location.prepare()
        with ExitStack() as on_error:
            lock = location.lock()
            on_error.callback(lock.release)
            if cls.exists(uri):
                raise InputError(
                    f"{location.name} already holds an index; open it, or choose another folder"
                )
            with location.synced():
                dataset = lance.write_dataset(
                    schema_of(token_bytes=token_bytes, width=width).empty_table(),
                    location.table,
                    mode="create",
                    data_storage_version=changes.STORAGE,
                    enable_v2_manifest_paths=True,
                    session=location.session,
                )
            store = cls(location, dataset, lock)
            store.optimise()
            # All went well: the lock stays with the store.
            on_error.pop_all()
        return store

    @classmethod
    def open(
        cls, uri: str | Path, *, write: bool = False, share: Share | None = None
    ) -> LanceStore:
        """An existing store; what was acknowledged and is damaged or gone is an error, which says the remedy.

        A newer version that a power failure tore was never acknowledged, and is set aside.
        """
        location, verified = location_of(uri), set[str]()
        dataset = _open(location, verified)
        if not write:
            store = cls(location, dataset, None, share)
            store._known = verified
            return store
        with ExitStack() as on_error:
            lock = location.lock()
            on_error.callback(lock.release)
            # Another writer may have committed before the lock was ours.
            dataset.checkout_latest()
            store = cls(location, dataset, lock)
            store._known, store._head = verified, TableHead.load(location)
            store._maintain(changes.drop_damaged)
            on_error.pop_all()
        return store

    def __enter__(self) -> LanceStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def refresh(self) -> LanceSnapshot:
        """Move to the newest version and return it; cheap where there is none."""
        with self._guard:
            dataset = copy.copy(self._at.dataset)
            try:
                with trouble(self._location.name):
                    dataset.checkout_latest()
                if dataset.version != self._at.number:
                    verify(self._location, dataset, self._known)
            except (OSError, ValueError):
                dataset = _open(self._location, self._known)
            if dataset.version != self._at.number:
                self._move(TableVersion(dataset))
            return self.snapshot

    def stage(self, records: Sequence[Record], *, part: str) -> Staged:
        """Write records without making them visible, which needs no lock; `commit` does the rest."""
        with self._translated(f"part {part}"):
            return changes.stage(self._at, self._location, records, part=part)

    def append(self, records: Sequence[Record], *, part: str) -> int:
        """Add records and mark `part` as done, in one commit."""
        with self._writing(f"part {part}"):
            return self.commit([self.stage(records, part=part)])

    def commit(self, staged: Sequence[Staged]) -> int:
        """Make staged parts visible, in one commit unless an id is in several of them."""
        with self._writing("part " + ", ".join(s.part for s in staged)):
            ids = [i for s in staged for i in s.ids]
            # A commit cannot replace rows that it adds itself, so such parts follow one another.
            if len(set(ids)) < len(ids):
                return sum(self.commit([s]) for s in staged)
            for s in staged:
                # Nothing refers to staged states, so a compaction may have removed them meanwhile.
                if self._location.length(s.content["segment"]) < s.content["end"]:
                    raise DecoupledError(f"the states of part {s.part} are gone; stage it again")
            rows, replaced = self._rows_of(ids, strict=True)
            written = [json.dumps(f) for s in staged for f in s.content["fragments"]]
            fragments = [FragmentMetadata.from_json(f) for f in written]
            self._seal(changes.replace_rows(self._at, self._location, rows, fragments))
            return replaced

    def relabel(self, passages: Sequence[Passage]) -> None:
        """Give passages other metadata: their rows are written again, their states are not."""
        with self._writing("the metadata"):
            new = {passage.id: passage for passage in passages}
            rows, _ = self._rows_of(list(new), strict=True)
            table = relabelled(self._at.take(rows, self._at.dataset.schema.names), new)
            fragments = changes.write_rows(self._location, table)
            # Sealed as any other change: without its head this version would not count as acknowledged.
            self._seal(changes.replace_rows(self._at, self._location, rows, fragments))

    def delete(self, ids: Sequence[str]) -> int:
        """Remove all windows of these ids, in one commit."""
        with self._writing("the deletion"):
            rows, count = self._rows_of(list(dict.fromkeys(ids)), strict=False)
            if count:
                self._seal(changes.replace_rows(self._at, self._location, rows))
            return count

    def optimise(self) -> None:
        """Bring the search indexes up to date, and merge fragments where there are many."""
        self._maintain(changes.optimise)
        self._maintain(changes.merge_many_fragments)

    def compact(self, *, older_than: timedelta = KEEP) -> None:
        """Rewrite what is mostly dead, merge fragments and indexes, remove what nobody can read.

        With `older_than=timedelta(0)` no one may be reading or staging meanwhile. Else fragments stay as they
        are while nothing in them was deleted: merged ones would stand beside them for as long.
        """
        with self._writing("the compaction"):
            self._seal(changes.rewrite_segments(self._at, self._location))
            if not older_than or any(f.num_deletions for f in self._at.dataset.get_fragments()):
                self._maintain(changes.merge_fragments)
                self._maintain(changes.merge_indexes)
            self.tidy(older_than=older_than)

    def superseded(self) -> int:
        """Bytes of files that the newest version does not need: they wait for readers of older ones."""
        return changes.superseded_bytes(self._at, self._location)

    def tidy(self, *, older_than: timedelta = KEEP) -> None:
        """Remove what was superseded `older_than` ago, and rewrite nothing."""
        with self._writing("the removal"):
            alone = self._location.exclusive and not older_than
            changes.remove_versions(self._at.dataset, older_than, alone=alone)
            changes.remove_segments(self._at, self._location, older_than)

    def close(self) -> None:
        """Let another writer in; reading stays possible."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def _at(self) -> TableVersion:
        return self.snapshot._at

    def _move(self, version: TableVersion) -> None:
        self._catalogue.forget(version)
        self._location.let_go()
        self.snapshot = LanceSnapshot(version, self._location, self._catalogue, self._share)

    def _seal(self, version: TableVersion) -> None:
        """Move to a version that this store made, and write the head that acknowledges it."""
        if self._head is None or self._head.version != version.number:
            head = TableHead.of(version.dataset, self._location, self._head)
            head.save(self._location)
            self._known |= head.files.keys()
            self._head = head
        self._move(version)

    def _maintain(self, work: changes.Work) -> None:
        """Let `work` change a copy of the dataset in place, and move to what it made."""
        with self._writing("the change"):
            dataset = copy.copy(self._at.dataset)
            with self._location.synced():
                work(dataset, self._location)
            if dataset.version != self._at.number:
                self._seal(TableVersion(dataset))

    def _rows_of(self, ids: Sequence[str], *, strict: bool) -> tuple[Rows, int]:
        """Live rows of those ids that are there, and how many ids that is.

        Keys are found in memory and the ids then compared, so that two ids with one key are never mixed up.
        """
        which, rows = self._catalogue.find(self._at, keys_of(ids))
        if not len(rows):
            return rows, 0
        stored = self._at.take(rows, ["id"])["id"].to_pylist()
        same = np.array([ids[w] == s for w, s in zip(which, stored, strict=True)], np.bool_)
        if strict and not same.all():
            new, old = ids[which[~same][0]], stored[int(np.flatnonzero(~same)[0])]
            raise InputError(
                f"the id {new!r} has the same key as {old!r}, which is there; rename it"
            )
        return rows[same], len(np.unique(which[same]))

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        with self._guard, self._translated(what):
            if self._lock is None:
                raise IndexBusy(
                    f"{self._location.name} was opened for reading; open it with write=True"
                )
            self._lock.confirm()
            if self._uncertain:
                self.refresh()
                self._uncertain = False
            try:
                yield
            except BaseException:
                # The commit may or may not have happened: look before the next one.
                self._uncertain = True
                raise

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) and "os error 28" not in str(error):
                raise
            raise DecoupledError(
                f"the disk of {self._location.name} is full: {what} was not written, and what was there "
                "before is unharmed; free some space and run it again"
            ) from error


def _open(location: Location, verified: set[str]) -> Any:
    """The newest version, compared with its head before Lance reads it and its files after that."""
    head = sound_head(location)
    try:
        with trouble(location.name):
            dataset = lance.dataset(location.table, session=location.session)
    except (ValueError, OSError) as error:
        if head is None and "not found" in str(error).lower():
            raise InputError(
                f"{location.name} holds no index; make one with `decoupled index CORPUS -o INDEX`"
            ) from None
        if head is not None and location.heal(head.version):
            return _open(location, verified)
        raise damage(location.name, f"Lance cannot read it ({str(error)[:200]})") from error
    verify(location, dataset, verified)
    if (layout := (dataset.schema.metadata or {}).get(b"decoupled", b"").decode()) not in READ:
        raise InputError(
            f"{location.name} has table format {layout or 'unknown'}, this version reads "
            f"{' and '.join(READ)}; index again, or install the version that made it"
        )
    return dataset
