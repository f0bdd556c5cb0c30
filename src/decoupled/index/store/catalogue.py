"""What readers keep in memory about the rows of a Lance table, shared by the snapshots of one store.

A row is a Lance address: its fragment's number in the upper 32 bits, its place there in the lower. Rows of
a fragment never change, so what was read of them serves every version; deletions are kept beside them.
"""

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.index.record import LEAD, SIZE, STATES_SUM
from decoupled.index.store.base import Rows
from decoupled.model.states import rows_of

Keys = npt.NDArray[np.uint64]
Extents = npt.NDArray[np.void]

EXTENT = np.dtype(
    [
        ("segment", "i4"),
        ("offset", "i8"),
        ("tokens", "i4"),
        ("size", "i4"),
        ("crc32", "u4"),
        ("lead", "i2"),
    ]
)
"""Where the states of a row lie, 26 bytes each: a number in `Catalogue.segments`, or -1 for the marker of a
part, and the first byte there; how many tokens in how many bytes, their checksum, and how many come before
the text's own, 0 and -1 in a table that has none."""

LOW = (1 << 32) - 1
"""Mask of the bits of a row that are its position in its fragment."""


class TableVersion:
    """One version of the table and the widths of its records, with its fragments listed once."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.number, schema = dataset, int(dataset.version), dataset.schema
        self.token_bytes = int(schema.metadata[b"token_bytes"])
        self.width = schema.field("vector").type.list_size if "vector" in schema.names else None
        # Without packing every token takes the same bytes, so the number of tokens gives the size.
        packed = SIZE in schema.names
        self.size_column, self.size_unit = (SIZE, 1) if packed else ("tokens", self.token_bytes)

    @cached_property
    def fragments(self) -> dict[int, Any]:
        """Every fragment by its number."""
        return {f.fragment_id: f for f in self.dataset.get_fragments()}

    def rows(self, **scan: Any) -> Rows:
        """Sorted rows that a scan with these options finds; deleted rows are not among them."""
        table = self.dataset.scanner(columns=[], with_row_address=True, **scan).to_table()
        return np.sort(table["_rowaddr"].to_numpy().astype(np.int64))

    def take(self, rows: Rows, columns: list[str]) -> Any:
        """Columns of these rows, in their order; a row that was deleted is left out."""
        if not len(rows):
            return self.dataset.schema.empty_table().select(columns)
        # Lance's own `take` counts offsets; a filter on the address reads just these rows as fast.
        addresses = ",".join(map(str, rows.tolist()))
        table = self.dataset.scanner(
            columns=columns, filter=f"_rowaddr in ({addresses})", with_row_address=True
        ).to_table()
        stored = table["_rowaddr"].to_numpy().astype(np.int64)
        order = np.argsort(stored, kind="stable")
        at = np.searchsorted(stored[order], rows).clip(max=max(len(stored) - 1, 0))
        live = stored[order][at] == rows if len(stored) else np.zeros(len(rows), bool)
        return table.drop_columns("_rowaddr").take(order[at[live]])

    def physical(self, fragments: Sequence[int], columns: list[str]) -> tuple[Any, Rows]:
        """Columns of all rows of these fragments, deleted ones too, and how many rows each has."""
        chosen = [self.fragments[f] for f in fragments]
        table = self.dataset.scanner(
            columns=columns, fragments=chosen, include_deleted_rows=True, with_row_id=True
        ).to_table()
        counts = np.array([f.physical_rows for f in chosen], np.int64)
        assert len(table) == counts.sum()
        return table, counts


class Catalogue:
    """Segments, offsets, keys and deletions, read from the table when they are first asked for."""

    def __init__(self) -> None:
        self.segments: list[str] = []
        """Names of segments; their numbers in `EXTENT` are positions in this list."""
        self._numbers: dict[str, int] = {}
        self._extents: dict[int, Extents] = {}
        self._row_keys: dict[int, Keys] = {}
        self._dead: dict[tuple[int, int], Rows] = {}
        self._runs: tuple[tuple[Keys, Rows], ...] = ()
        """Keys of ids and their rows, in a few sorted runs that double in length."""
        self._covered: set[int] = set()
        """Fragments whose rows are in the runs."""
        self._guard = threading.RLock()

    def extents(self, version: TableVersion, rows: Rows) -> Extents:
        """Where the states of these rows lie."""
        return self._gather(version, rows, self._extents, EXTENT, self._read_extents)

    def keys_at(self, version: TableVersion, rows: Rows) -> Keys:
        """The keys of these rows: 8 bytes for each row of the index, kept once they were asked for."""
        return self._gather(version, rows, self._row_keys, np.dtype(np.uint64), _read_keys)

    def find(self, version: TableVersion, keys: Keys) -> tuple[npt.NDArray[np.int64], Rows]:
        """Live rows that have these keys, ordered by key as given and then by row."""
        positions, matches = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for run, its_rows in self._runs_of(version):
            first = np.searchsorted(run, keys, "left")
            count = np.searchsorted(run, keys, "right") - first
            positions.append(np.repeat(np.arange(len(keys)), count))
            matches.append(its_rows[rows_of(first, count)])
        which, rows = np.concatenate(positions), np.concatenate(matches)
        live = self.alive(version, rows)
        which, rows = which[live], rows[live]
        order = np.lexsort((rows, which))
        return which[order], rows[order]

    def alive(self, version: TableVersion, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows are in this version and not deleted in it."""
        live, fragments = np.zeros(len(rows), np.bool_), rows >> 32
        for number in np.unique(fragments).tolist():
            if (fragment := version.fragments.get(number)) is not None:
                here = fragments == number
                live[here] = ~np.isin(rows[here], self._dead_of(version, number, fragment))
        return live

    def forget(self, version: TableVersion) -> None:
        """Drop what is known of fragments that this version no longer has."""
        with self._guard:
            current = version.fragments
            for pieces in (self._extents, self._row_keys):
                for gone in pieces.keys() - current.keys():
                    del pieces[gone]
            self._dead = {k: dead for k, dead in self._dead.items() if k[0] in current}
            if not self._covered <= current.keys():
                # Runs mix the rows of all fragments, so they are made anew once a fragment is gone.
                self._runs, self._covered = (), set()

    def _gather(
        self,
        version: TableVersion,
        rows: Rows,
        pieces_of: dict[int, Any],
        dtype: np.dtype[Any],
        read: Callable[[TableVersion, list[int]], tuple[Any, Rows]],
    ) -> Any:
        """One value for each row, from what is known of its fragment; what is lacking is read first."""
        fragments = rows >> 32
        needed = np.unique(fragments).tolist()
        with self._guard:
            if lacking := [f for f in needed if f not in pieces_of]:
                stored, counts = read(version, lacking)
                pieces = np.split(stored, np.cumsum(counts)[:-1])
                # Copies: a view of one fragment would keep the arrays of all in memory.
                pieces_of |= {f: piece.copy() for f, piece in zip(lacking, pieces, strict=True)}
            here = {f: pieces_of[f] for f in needed}
        values = np.empty(len(rows), dtype)
        for fragment in needed:
            which = fragments == fragment
            values[which] = here[fragment][rows[which] & LOW]
        return values

    def _dead_of(self, version: TableVersion, number: int, fragment: Any) -> Rows:
        if not (deleted := int(fragment.num_deletions)):
            return np.zeros(0, np.int64)
        with self._guard:
            # Deletions in a fragment only grow, so their number tells its versions apart.
            if (number, deleted) not in self._dead:
                everything = np.arange(fragment.physical_rows, dtype=np.int64) | (number << 32)
                live = version.rows(fragments=[fragment])
                self._dead[number, deleted] = np.setdiff1d(everything, live, assume_unique=True)
            return self._dead[number, deleted]

    def _read_extents(self, version: TableVersion, fragments: list[int]) -> tuple[Extents, Rows]:
        more = {STATES_SUM: ("crc32", 0), LEAD: ("lead", -1)}
        more = {name: kept for name, kept in more.items() if name in version.dataset.schema.names}
        columns = dict.fromkeys(["segment", "offset", "tokens", version.size_column, *more])
        table, counts = version.physical(fragments, list(columns))
        names = table["segment"].combine_chunks().dictionary_encode()
        fresh = names.dictionary.to_pylist()
        for name in fresh:
            if self._numbers.setdefault(name, len(self.segments)) == len(self.segments):
                self.segments.append(name)
        numbers = np.array([*(self._numbers[name] for name in fresh), -1], np.int32)
        extents = np.zeros(len(table), EXTENT)
        # Without a name the index is -1, which finds the last number.
        extents["segment"] = numbers[names.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        extents["offset"], extents["tokens"] = table["offset"], table["tokens"]
        extents["size"] = table[version.size_column].fill_null(0).to_numpy() * version.size_unit
        extents["lead"] = -1
        for name, (kept, none) in more.items():
            extents[kept] = table[name].fill_null(none).to_numpy()
        return extents, counts

    def _runs_of(self, version: TableVersion) -> tuple[tuple[Keys, Rows], ...]:
        """The runs with all rows: new ones are merged with runs before them that are not twice as long."""
        with self._guard:
            if lacking := sorted(version.fragments.keys() - self._covered):
                table, counts = version.physical(lacking, ["key", "window"])
                real = table["window"].to_numpy() >= 0
                keys = table["key"].to_numpy()[real]
                rows = rows_of(np.array(lacking, np.int64) << 32, counts)[real]
                runs = list(self._runs)
                # Runs double in length, so that each key is sorted again only log(n) times.
                while runs and len(runs[-1][0]) < 2 * len(keys):
                    before, rows_before = runs.pop()
                    keys, rows = np.concatenate([before, keys]), np.concatenate([rows_before, rows])
                order = np.argsort(keys, kind="stable")
                self._runs = (*runs, (keys[order], rows[order]))
                self._covered.update(lacking)
            return self._runs


def _read_keys(version: TableVersion, fragments: list[int]) -> tuple[Keys, Rows]:
    table, counts = version.physical(fragments, ["key"])
    return table["key"].to_numpy(), counts
