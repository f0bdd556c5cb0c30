"""What readers keep in memory about the rows of a Lance table, shared by the snapshots of one store.

A row is a Lance address: its fragment's number in the upper 32 bits, its location there in the lower. Rows of
a fragment never change, so what was read of them serves every version; deletions are kept beside them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.index.record import STATES_SUM
from decoupled.index.store.base import Rows
from decoupled.model.states import rows_of

_LOW = (1 << 32) - 1


class Version:
    """One version of the table, with its fragments listed once."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    @property
    def number(self) -> int:
        """Lance's version number."""
        return int(self.dataset.version)

    @cached_property
    def fragments(self) -> dict[int, Any]:
        """Every fragment by its number."""
        return {f.fragment_id: f for f in self.dataset.get_fragments()}

    def rows(self, **scan: Any) -> Rows:
        """Live rows that a scan with these options gives, sorted."""
        table = self.dataset.scanner(columns=[], with_row_address=True, **scan).to_table()
        return np.sort(table["_rowaddr"].to_numpy().astype(np.int64))


@dataclass(frozen=True, eq=False)
class Spots:
    """Where the states of rows lie, and their checksums: 20 bytes a row."""

    segment: npt.NDArray[np.int32]
    """A number in `Catalogue.names`; -1 for the marker of a part."""
    offset: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int32]
    crc32: npt.NDArray[np.uint32]
    """Of the states; 0 in a table without checksums."""


@dataclass(frozen=True, eq=False)
class Keys:
    """Keys of ids and their rows, in a few sorted runs that double in length."""

    runs: tuple[tuple[npt.NDArray[np.uint64], Rows], ...] = ()
    covered: frozenset[int] = frozenset()
    """Fragments whose rows are in the runs."""

    def extended(self, keys: npt.NDArray[np.uint64], rows: Rows, fragments: Iterable[int]) -> Keys:
        """With more rows: a new run, merged with those before it that are not twice as long."""
        runs = list(self.runs)
        while runs and len(runs[-1][0]) < 2 * len(keys):
            before, rows_before = runs.pop()
            keys, rows = np.concatenate([before, keys]), np.concatenate([rows_before, rows])
        order = np.argsort(keys, kind="stable")
        return Keys((*runs, (keys[order], rows[order])), self.covered.union(fragments))

    def find(self, wanted: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int64], Rows]:
        """For each match: which of `wanted` it is, and its row."""
        which, found = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for keys, rows in self.runs:
            first = np.searchsorted(keys, wanted, "left")
            count = np.searchsorted(keys, wanted, "right") - first
            which.append(np.repeat(np.arange(len(wanted)), count))
            found.append(rows[rows_of(first, count)])
        return np.concatenate(which), np.concatenate(found)


class Catalogue:
    """Segments, offsets, keys and deletions, read from the table when they are first asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """Segments by number."""
        self._numbers: dict[str, int] = {}
        self._spots: dict[int, Spots] = {}
        self._dead: dict[tuple[int, int], Rows] = {}
        self._keys_by_row: dict[int, npt.NDArray[np.uint64]] = {}
        self._keys = Keys()
        self._guard = threading.RLock()

    def spots(self, version: Version, rows: Rows) -> Spots:
        """Where the states of these rows lie."""
        fragments, places = rows >> 32, rows & _LOW
        wanted = np.unique(fragments).tolist()
        with self._guard:
            self._load(version, [f for f in wanted if f not in self._spots])
            known = {f: self._spots[f] for f in wanted}
        count = len(rows)
        found = Spots(
            np.empty(count, np.int32),
            np.empty(count, np.int64),
            np.empty(count, np.int32),
            np.empty(count, np.uint32),
        )
        for fragment in wanted:
            here = fragments == fragment
            source, at = known[fragment], places[here]
            found.segment[here] = source.segment[at]
            found.offset[here] = source.offset[at]
            found.tokens[here] = source.tokens[at]
            found.crc32[here] = source.crc32[at]
        return found

    def keys_at(self, version: Version, rows: Rows) -> npt.NDArray[np.uint64]:
        """The keys of these rows: 8 bytes for each row of the index, kept once they were asked for."""
        fragments = rows >> 32
        wanted = np.unique(fragments).tolist()
        with self._guard:
            if lacking := [f for f in wanted if f not in self._keys_by_row]:
                table, counts = _physical(version, lacking, ["key"])
                pieces = np.split(table["key"].to_numpy(), np.cumsum(counts)[:-1])
                self._keys_by_row |= {f: k.copy() for f, k in zip(lacking, pieces, strict=True)}
            known = {f: self._keys_by_row[f] for f in wanted}
        found = np.empty(len(rows), np.uint64)
        for fragment in wanted:
            here = fragments == fragment
            found[here] = known[fragment][rows[here] & _LOW]
        return found

    def find(
        self, version: Version, keys: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.int64], Rows]:
        """Live rows that have these keys, ordered by key as given and then by row."""
        which, rows = self._keys_of(version).find(keys)
        live = self.alive(version, rows)
        which, rows = which[live], rows[live]
        order = np.lexsort((rows, which))
        return which[order], rows[order]

    def alive(self, version: Version, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows are in this version and not deleted in it."""
        live = np.zeros(len(rows), np.bool_)
        fragments = rows >> 32
        for number in np.unique(fragments).tolist():
            if (fragment := version.fragments.get(number)) is not None:
                here = fragments == number
                live[here] = ~np.isin(rows[here], self._dead_of(version, number, fragment))
        return live

    def forget(self, version: Version) -> None:
        """Drop what is known of fragments that this version no longer has."""
        with self._guard:
            current = version.fragments
            self._spots = {f: spots for f, spots in self._spots.items() if f in current}
            self._keys_by_row = {f: k for f, k in self._keys_by_row.items() if f in current}
            self._dead = {k: dead for k, dead in self._dead.items() if k[0] in current}
            if not self._keys.covered <= current.keys():
                self._keys = Keys()

    def _dead_of(self, version: Version, number: int, fragment: Any) -> Rows:
        deleted = int(fragment.num_deletions)
        if not deleted:
            return np.zeros(0, np.int64)
        with self._guard:
            if (number, deleted) not in self._dead:
                everything = np.arange(fragment.physical_rows, dtype=np.int64) | (number << 32)
                live = version.rows(fragments=[fragment])
                self._dead[number, deleted] = np.setdiff1d(everything, live, assume_unique=True)
            return self._dead[number, deleted]

    def _load(self, version: Version, wanted: Sequence[int]) -> None:
        if not wanted:
            return
        sums = [STATES_SUM] if STATES_SUM in version.dataset.schema.names else []
        table, counts = _physical(version, wanted, ["segment", "offset", "tokens", *sums])
        names = table["segment"].combine_chunks().dictionary_encode()
        if hasattr(names, "combine_chunks"):
            names = names.combine_chunks()
        numbers = np.array(
            [self._number(n) for n in names.dictionary.to_pylist()] or [-1], np.int32
        )
        indices = names.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        segment = np.where(indices >= 0, numbers[indices], -1).astype(np.int32)
        offset, tokens = table["offset"].to_numpy(), table["tokens"].to_numpy()
        crc32 = np.zeros(len(table), np.uint32)
        for name in sums:
            crc32[:] = table[name].fill_null(0).to_numpy()
        ends = np.cumsum(counts)
        for number, start, end in zip(wanted, ends - counts, ends, strict=True):
            self._spots[number] = Spots(
                segment[start:end].copy(),
                offset[start:end].copy(),
                tokens[start:end].copy(),
                crc32[start:end].copy(),
            )

    def _keys_of(self, version: Version) -> Keys:
        with self._guard:
            if lacking := sorted(version.fragments.keys() - self._keys.covered):
                table, counts = _physical(version, lacking, ["key", "window"])
                rows = rows_of(np.array(lacking, np.int64) << 32, counts)
                real = table["window"].to_numpy() >= 0
                keys = table["key"].to_numpy()[real]
                self._keys = self._keys.extended(keys, rows[real], lacking)
            return self._keys

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]


def _physical(
    version: Version, fragments: Sequence[int], columns: list[str]
) -> tuple[Any, npt.NDArray[np.int64]]:
    """Columns of all rows of these fragments, deleted ones too, and how many rows each has."""
    chosen = [version.fragments[f] for f in fragments]
    scanner = version.dataset.scanner(
        columns=columns, fragments=chosen, include_deleted_rows=True, with_row_id=True
    )
    counts = np.array([f.physical_rows for f in chosen], np.int64)
    table = scanner.to_table()
    assert len(table) == counts.sum()
    return table, counts
