"""Reading one version of the embedded store: search in the Lance table, states from the segments."""

import json
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.dataset import serialize_row_addrs
from lance.query import MatchQuery

from decoupled.errors import DecoupledError
from decoupled.index.record import (
    EXCERPT_COLUMNS,
    EXCERPT_SUM,
    MARKER,
    STATES_SUM,
    Excerpt,
    excerpts_of,
    keys_of,
)
from decoupled.index.store.base import Ranking, Rows, Share, Where, check_vector, missing, ranking
from decoupled.index.store.catalogue import Catalogue, Extents, TableVersion
from decoupled.index.store.filters import Condition, conditions
from decoupled.index.store.head import trouble
from decoupled.index.store.location import Location, gone, unreadable
from decoupled.index.store.packing import unpack
from decoupled.index.store.vectors import Vectors
from decoupled.model.states import Encoded

LARGE = 100_000
"""Records from which vectors and tags are searched through an index instead of one by one."""

# Rows of a filter that are compared one by one even in a large index; rows of a batch.
_FEW, _BATCH = 10_000, 4096
# Offsets in a segment are below 2^42 (4 TB); the bits above hold its number.
_OFFSET_BITS = 42
# Filters whose rows are remembered.
_FILTERS = 8
# Which of equal scores come last is a matter of chance in Lance: ask for more, and choose.
_TIES = 32
_NOTHING = Ranking(np.zeros(0, np.int64), np.zeros(0, np.float32))


@dataclass(frozen=True, eq=False)
class Allowed:
    """The rows that pass a filter, sorted, and as a mask that Lance understands."""

    rows: Rows

    @cached_property
    def mask(self) -> bytes:
        """The rows as Lance's scanner takes them, made once."""
        return serialize_row_addrs(self.rows.tolist())


class LanceSnapshot:
    """One version of a `LanceStore`."""

    def __init__(
        self,
        version: TableVersion,
        location: Location,
        catalogue: Catalogue,
        share: Share | None = None,
    ) -> None:
        self._at, self._location, self._catalogue = version, location, catalogue
        self._share, self.version = share, version.number
        names = version.dataset.schema.names
        self._summed = STATES_SUM in names
        self._excerpt = [n for n in (*EXCERPT_COLUMNS, EXCERPT_SUM) if n in names]
        self._filters: dict[tuple[Condition, ...], Allowed] = {}
        self._guard = threading.Lock()

    @cached_property
    def _markers(self) -> list[str]:
        with self._reading() as dataset:
            scanner = dataset.scanner(columns=["id"], filter=f"window = {MARKER}")
            return scanner.to_table()["id"].to_pylist()

    def __len__(self) -> int:
        return int(self._at.dataset.count_rows()) - len(self._markers)

    @cached_property
    def passages(self) -> int:
        """Distinct ids: each has one window 0."""
        with self._reading() as dataset:
            return int(dataset.count_rows("window = 0"))

    @cached_property
    def documents(self) -> int:
        """Distinct documents, by the metadata of their passages."""
        names = set()
        with self._reading() as dataset:
            scanner = dataset.scanner(columns=["id", "meta"], filter="window = 0")
            for batch in scanner.to_batches():
                for name, meta in zip(
                    *(column.to_pylist() for column in batch.columns), strict=True
                ):
                    cut = json.loads(meta).get("document") if meta and "document" in meta else None
                    names.add(name if cut is None else cut)
        return len(names)

    @cached_property
    def parts(self) -> frozenset[str]:
        """Names of the committed parts."""
        return frozenset(self._markers)

    def lexical(
        self, query: str, k: int, where: Where | None = None, rows: Rows | None = None
    ) -> Ranking:
        """BM25 over title and text; words that are not in the index's language count as they stand."""
        allowed = self._allowed(where, rows)
        if k <= 0 or not query or (allowed is not None and not len(allowed.rows)):
            return _NOTHING
        # Without lone surrogates, which UTF-8 cannot hold.
        words = MatchQuery(query.encode("utf-8", "replace").decode("utf-8"), "body")
        return ranking(*self._search("_score", allowed, full_text_query=words, limit=k + _TIES), k)

    def dense(
        self,
        vector: npt.NDArray[np.float32],
        k: int,
        where: Where | None = None,
        rows: Rows | None = None,
    ) -> Ranking:
        """Inner products: all of them for few records, through the index for many."""
        check_vector(vector, self._at.width)
        allowed, count = self._allowed(where, rows), self._at.dataset.count_rows()
        if k <= 0 or not count or (allowed is not None and not len(allowed.rows)):
            return _NOTHING
        if count < LARGE:
            vectors = self._all_vectors if allowed is None else self._all_vectors.at(allowed.rows)
            return ranking(vectors.rows, vectors.dot(vector.astype(np.float32)), k)
        if allowed is not None and len(allowed.rows) <= _FEW:
            rows, values_RV = self._vectors(allowed.rows)
            return ranking(rows, values_RV @ vector.astype(np.float32), k)
        nearest = {"column": "vector", "q": vector.astype(np.float16), "k": k, "metric": "dot"}
        rows, distances = self._search("_distance", allowed, nearest=nearest | {"refine_factor": 2})
        # For inner products Lance's distance is one minus the product.
        return ranking(rows, 1.0 - distances, k)

    def _search(
        self, by: str, allowed: Allowed | None, **how: Any
    ) -> tuple[Rows, npt.NDArray[np.float32]]:
        """Rows that a search finds among those that are allowed, and the column it goes by."""
        with self._reading() as dataset:
            table = dataset.scanner(
                columns=["_rowid", by],
                disable_scoring_autoprojection=True,
                row_addr_allowlist=None if allowed is None else allowed.mask,
                **how,
            ).to_table()
        return table["_rowid"].to_numpy().astype(np.int64), table[by].to_numpy()

    @cached_property
    def _all_vectors(self) -> Vectors:
        width = self._at.width or 0

        def read(batch: pa.RecordBatch) -> tuple[Rows, npt.NDArray[np.generic]]:
            rows = batch["_rowaddr"].to_numpy().astype(np.int64)
            return rows, batch["vector"].flatten().to_numpy().reshape(len(rows), width)

        scan = {"columns": ["vector"], "filter": "vector IS NOT NULL", "with_row_address": True}
        with self._reading() as dataset:
            return Vectors.of(map(read, dataset.scanner(**scan).to_batches()), width)

    def vectors(self, rows: Rows) -> npt.NDArray[np.float32]:
        """`[R,V]` the vectors of these rows, in their order; zeros where there is none."""
        all_RV, order = np.zeros((len(rows), self._at.width or 0), np.float32), np.argsort(rows)
        if self._at.dataset.count_rows() < LARGE:
            vectors = self._all_vectors.at(rows[order])
            stored_rows, values_FV = vectors.rows, vectors.codes * vectors.steps[:, None]
        else:
            stored_rows, values_FV = self._vectors(rows[order])
        all_RV[order[np.isin(rows[order], stored_rows)]] = values_FV
        return all_RV

    def _vectors(self, rows: Rows) -> tuple[Rows, npt.NDArray[np.float32]]:
        table = self._take(rows, ["vector"])
        here = table["vector"].is_valid().to_numpy()
        return rows[here], self._matrix(table.filter(table["vector"].is_valid()))

    def _matrix(self, table: pa.Table) -> npt.NDArray[np.float32]:
        chunks = [c.flatten().to_numpy(zero_copy_only=False) for c in table["vector"].chunks]
        flat = np.concatenate(chunks) if chunks else np.zeros(0, np.float16)
        return flat.astype(np.float32).reshape(len(table), self._at.width or 0)

    def locate(self, ids: Sequence[str]) -> Rows:
        """Rows of all windows of each id."""
        if self._share is not None and len(ids):
            ids = [ids[n] for n in np.flatnonzero(self._share.holds(keys_of(ids))).tolist()]
        with self._reading():
            which, rows = self._catalogue.find(self._at, keys_of(ids))
        counts = np.bincount(which, minlength=len(ids))
        if not counts.all():
            raise missing([ids[i] for i in np.flatnonzero(counts == 0).tolist()])
        return rows

    def mine(self, rows: Rows) -> Rows:
        """The rows that are in this reader's share, in order."""
        if self._share is None or not len(rows):
            return rows
        with self._reading():
            keys = self._catalogue.keys_at(self._at, np.asarray(rows, np.int64))
        return rows[self._share.holds(keys)]

    def digests(self, ids: Sequence[str]) -> list[int | None]:
        """The digest that each id was stored with, or None."""
        with self._reading():
            _, rows = self._catalogue.find(self._at, keys_of(ids))
        if not len(rows):
            return [None] * len(ids)
        table = self._take(rows, ["id", "digest"])
        stored = dict(zip(table["id"].to_pylist(), table["digest"].to_pylist(), strict=True))
        return [stored.get(i) for i in ids]

    def rows(self) -> Rows:
        """All rows."""
        with self._reading():
            return self._at.rows(filter=f"window != {MARKER}")

    def state_keys(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Segment and offset, as one number: nothing is ever written twice at one location."""
        with self._reading():
            extents = self._catalogue.extents(self._at, np.asarray(rows, np.int64))
        keys = (extents["segment"].astype(np.int64) << _OFFSET_BITS) | extents["offset"]
        # A record without tokens begins where the next one does; all such have the same states.
        return np.where(extents["tokens"] > 0, keys, -1)

    def leads(self, rows: Rows) -> npt.NDArray[np.int64]:
        """How many tokens of each row come before those of its text."""
        with self._reading():
            extents = self._catalogue.extents(self._at, np.asarray(rows, np.int64))
        return extents["lead"].astype(np.int64)

    def states(self, rows: Rows) -> Encoded:
        """The codec's bytes of these rows, read into one buffer and compared with their checksums."""
        rows = np.asarray(rows, np.int64)
        with self._reading():
            extents = self._catalogue.extents(self._at, rows)
        encoded, damaged = self._read(extents)
        bad = extents[["segment", "offset"]][damaged].tolist()
        # Perhaps only the copy on this machine is damaged: drop it and read the original.
        if damaged and self._location.forget([(self._catalogue.segments[n], at) for n, at in bad]):
            encoded, damaged = self._read(extents)
        if damaged:
            ids = self._take(rows[damaged[:3]], ["id"])["id"].to_pylist()
            raise DecoupledError(
                f"the stored states of {len(damaged)} of {len(rows)} records of {self._location.name} are "
                f"damaged, first those of {', '.join(f'{i!r:.80}' for i in ids)}; delete these passages "
                "and add them again, or restore the index from a copy"
            )
        return encoded

    def _read(self, extents: Extents) -> tuple[Encoded, list[int]]:
        """Read states from the segments; returns them, or the positions of damaged ones and no states."""
        lengths, sizes = (extents[name].astype(np.int64) for name in ("tokens", "size"))
        names = [self._catalogue.segments[n] for n in extents["segment"].tolist()]
        stored = np.empty(int(sizes.sum()), np.uint8)
        ranges = zip(names, extents["offset"].tolist(), sizes.tolist(), strict=True)
        self._location.read(list(ranges), stored.data)
        width = self._at.token_bytes
        if self._summed:
            ends, sums, out = np.cumsum(sizes), extents["crc32"].tolist(), stored.data
            spans = zip((ends - sizes).tolist(), ends.tolist(), sums, strict=True)
            differ = [zlib.crc32(out[start:end]) != expected for start, end, expected in spans]
            if any(differ):
                nothing = Encoded(np.zeros((0, width), np.uint8), np.zeros(0, np.int64))
                return nothing, np.flatnonzero(differ).tolist()
        return Encoded(unpack(stored, sizes, lengths * width).reshape(-1, width), lengths), []

    def texts(self, rows: Rows) -> list[Excerpt]:
        """Text, title, metadata and offsets of these rows."""
        table = self._take(np.asarray(rows, np.int64), self._excerpt)
        with self._reading():
            return excerpts_of(table)

    def scan(self, where: Where | None = None) -> Iterator[Excerpt]:
        """Every record that passes the filter in turn, a few thousand in memory at a time."""
        if (allowed := self._allowed(where, None)) is not None:
            for start in range(0, len(allowed.rows), _BATCH):
                yield from self.texts(allowed.rows[start : start + _BATCH])
            return
        with self._reading() as dataset:
            scanner = dataset.scanner(
                columns=self._excerpt, filter=f"window != {MARKER}", batch_size=_BATCH
            )
            for batch in scanner.to_batches():
                yield from excerpts_of(batch)

    def _take(self, rows: Rows, columns: list[str]) -> pa.Table:
        with self._reading():
            table = self._at.take(rows, columns)
        if len(table) != len(rows):
            raise DecoupledError(
                f"{len(rows) - len(table)} of {len(rows)} rows are not in version {self.version} of "
                f"{self._location.name}; use rows only with the snapshot they came from"
            )
        return table

    def _allowed(self, where: Where | None, rows: Rows | None) -> Allowed | None:
        """The rows that pass the filter, or those that are named; the last few filters are remembered."""
        if rows is not None:
            assert not where, "rows that are named were filtered before"
            return Allowed(np.sort(rows))
        if not where:
            return None
        filters = conditions(where)
        allowed = self._filters.get(filters) or Allowed(self._passing(filters))
        with self._guard:
            self._filters.pop(filters, None)
            self._filters[filters] = allowed  # as the last, so that the first is the one to go
            if len(self._filters) > _FILTERS:
                del self._filters[next(iter(self._filters))]
        return allowed

    def _passing(self, filters: Sequence[Condition]) -> Rows:
        """Equality is left to Lance, which may have an index for it; ranges are compared here."""
        named = [c for c in filters if c.field == "id" and c.exact is not None]
        exact = [c for c in filters if c.field != "id" and c.exact is not None]
        ranges = [c for c in filters if c.exact is None]
        with self._reading() as dataset:
            rows_of = [self._catalogue.find(self._at, keys_of(c.exact or ()))[1] for c in named]
            if exact or ranges:
                predicate = " AND ".join([f"window != {MARKER}", *map(_predicate, exact)])
                columns = sorted({c.field for c in ranges})
                scan = {"columns": columns, "filter": predicate, "with_row_address": True}
                rows = [np.zeros(0, np.int64)]
                for batch in dataset.scanner(**scan).to_batches():
                    here = np.ones(len(batch), np.bool_)
                    for condition in ranges:
                        here &= _in_range(batch[condition.field], condition)
                    rows.append(batch["_rowaddr"].to_numpy()[here].astype(np.int64))
                rows_of.append(np.concatenate(rows))
        return np.unique(reduce(np.intersect1d, rows_of))

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        """The dataset, in a context that turns Lance's errors into messages that say what happened."""
        try:
            with trouble(self._location.name):
                yield self._at.dataset
        except (OSError, ValueError, RuntimeError) as error:
            if "not found" not in str(error).lower():
                raise unreadable(self._location.name, error) from error
            raise gone(f"version {self.version}", self._location.name) from error


def _predicate(condition: Condition) -> str:
    if not condition.exact:
        return "false"
    # Quotes are doubled: a user's value must not end the literal and go on as SQL.
    literals = ", ".join("'" + s.replace("'", "''") + "'" for s in condition.exact)
    if condition.field == "tags":
        return f"array_has_any(tags, [{literals}])"
    return f"{condition.field} IN ({literals})"


def _in_range(column: pa.Array, condition: Condition) -> npt.NDArray[np.bool_]:
    """Which rows have a string between the bounds, whether a row holds one string or a list."""
    lists = pa.types.is_list(column.type)
    strings = column.flatten() if lists else column
    here = pc.greater_equal(strings, condition.low)
    if condition.high is not None:
        here = pc.and_(here, pc.less(strings, condition.high))
    hits = here.fill_null(False).to_numpy(zero_copy_only=False)
    if not lists:
        return hits
    matches = np.zeros(len(column), np.bool_)
    matches[pc.list_parent_indices(column).to_numpy()[hits]] = True
    return matches
