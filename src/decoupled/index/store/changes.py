"""Changes to the embedded store: parts and deletions, search indexes, dead bytes, old versions.

A change reaches the table as segment, rows, deletions, and last the manifest that names them. Everything
that a manifest refers to is durable before the manifest is written, so a process that is killed, or a
machine that loses power, leaves the old version or the new one.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset, LanceOperation
from lance.commit import CommitConflictError
from lance.dataset import Transaction
from lance.fragment import write_fragments
from lance.optimize import Compaction

from decoupled.errors import IndexBusy, InputError
from decoupled.index.record import MARKER, SIZE, Record, check_records, to_table
from decoupled.index.store.base import Rows, Staged
from decoupled.index.store.catalogue import LOW, TableVersion
from decoupled.index.store.head import manifest_file
from decoupled.index.store.location import GARBAGE, SEGMENT, TABLE, Location
from decoupled.index.store.packing import pack
from decoupled.index.store.snapshot import LARGE
from decoupled.model.jsonable import JsonObject
from decoupled.model.language import language

_log = logging.getLogger(__name__)

Work = Callable[[Any, Location], None]
"""A function that changes a dataset in place."""

STORAGE: Final = "2.2"
"""Version of Lance's file format."""

SMALL = 16 << 20
"""Segments below this are merged when there are several."""

# Growth between pieces of a search index, fragments that are many, rows of a batch.
_GROWTH, _MANY, _BATCH = 4, 8, 4096
# Passages whose language is looked at; languages of which Lance knows the endings.
_SAMPLE = 100
_STEMMED = frozenset(
    ("German", "French", "Spanish", "Italian", "Portuguese", "Dutch", "Swedish", "Turkish", "Greek")
)
# Rows of the fragments that small ones are merged into, the largest first.
_STEPS = (1 << 20, 1 << 15, 1 << 12, 1 << 9)


# Commits ------------------------------------------------------------------------------------------


def stage(
    version: TableVersion, location: Location, records: Sequence[Record], *, part: str
) -> Staged:
    """Write the states and the rows of one part. Needs no lock: nothing refers to them yet."""
    if not part:
        raise InputError("a part needs a name, by which a resumed build knows that it is done")
    check_records(records, token_bytes=version.token_bytes, width=version.width)
    schema = version.dataset.schema
    stored = [pack(r.states) if SIZE in schema.names else r.states for r in records]
    # Before the states are written: it refuses what cannot be stored.
    table = to_table(records, stored, schema, part=part)
    segment, start = location.put(stored) if records else ("", 0)
    fragments = write_rows(location, moved(table, segment, start))
    content = {
        "segment": segment,
        "end": start + sum(states.nbytes for states in stored),
        "fragments": [f.to_json() for f in fragments],
    }
    return Staged(part=part, ids=tuple(dict.fromkeys(r.id for r in records)), content=content)


def moved(table: pa.Table, segment: str, start: int) -> pa.Table:
    """The rows with the segment of their states, and offsets counted from where these begin in it."""
    names = pc.if_else(pc.is_valid(table["segment"]), segment, pa.scalar(None, pa.string()))
    table = table.set_column(table.schema.get_field_index("segment"), table.field("segment"), names)
    offsets = pc.add(table["offset"], pa.scalar(start, pa.int64()))
    return table.set_column(table.schema.get_field_index("offset"), table.field("offset"), offsets)


def write_rows(location: Location, table: pa.Table) -> list[Any]:
    """Durable fragments with these rows, which no version has yet."""
    fragments = write_fragments(
        table, location.table, data_storage_version=STORAGE, session=location.session
    )
    location.sync(f"data/{file.path}" for fragment in fragments for file in fragment.files)
    return fragments


def replace_rows(
    version: TableVersion, location: Location, rows: Rows, fragments: Sequence[Any] = ()
) -> TableVersion:
    """One commit that takes rows away and adds fragments; deletions are durable before it refers to them."""
    updated, removed = [], []
    numbers = rows >> 32
    for number in np.unique(numbers).tolist():
        inside = (rows[numbers == number] & LOW).tolist()
        # Lance returns None where no row of the fragment is left.
        if (changed := version.fragments[number].delete_rows(inside)) is None:
            removed.append(number)
        else:
            updated.append(changed)
    location.sync(f.deletion_file.path(f.id) for f in updated)
    operation: Any
    if not updated and not removed:
        operation = LanceOperation.Append(list(fragments))
    elif not fragments:
        operation = LanceOperation.Delete(updated, removed, "false")
    else:
        operation = LanceOperation.Update(
            removed_fragment_ids=removed, updated_fragments=updated, new_fragments=list(fragments)
        )
    transaction = Transaction(version.number, operation)
    try:
        # No retries: a conflict means that another writer holds the index by now.
        new = TableVersion(LanceDataset.commit(version.dataset, transaction, max_retries=0))
    except CommitConflictError as error:
        raise IndexBusy(
            f"{location.name} was changed by another writer meanwhile ({error}); open it again"
        ) from None
    manifest = manifest_file(new.number).partition("/")[2]
    location.sync([f"_transactions/{version.number}-{transaction.uuid}.txn", manifest])
    return new


# Search indexes -----------------------------------------------------------------------------------


def optimise(dataset: Any, location: Location) -> None:
    """Make the indexes that are lacking, and cover new rows.

    New rows get a small index of their own, joined with the newest ones before it that are not much
    larger: few pieces to search (each costs 0.8 ms), and no row is rewritten often.
    """
    _make_lacking(dataset)
    for index, pieces, uncovered in _coverage(dataset):
        if uncovered:
            joined, total = 0, uncovered
            while joined < len(pieces) and pieces[-1 - joined] < _GROWTH * total:
                total += pieces[-1 - joined]
                joined += 1
            dataset.optimize.optimize_indices(num_indices_to_merge=joined, index_names=[index])


def merge_indexes(dataset: Any, location: Location) -> None:
    """Merge the pieces of each search index into one, without the rows that were deleted."""
    _make_lacking(dataset)
    for index, pieces, uncovered in _coverage(dataset):
        if len(pieces) > 1 or uncovered:
            dataset.optimize.optimize_indices(num_indices_to_merge=len(pieces), index_names=[index])


def drop_damaged(dataset: Any, location: Location) -> None:
    """Drop indexes whose files a power failure cut off: Lance itself never waits for the disk."""
    for index in dataset.describe_indices():
        for part in index.segments:
            size = location.bytes_under(f"{TABLE}/_indices/{part.uuid}")
            if part.size_bytes is not None and size is not None and size < part.size_bytes:
                _log.warning(
                    "%s: the index on %s is damaged and will be rebuilt", location.name, index.name
                )
                dataset.drop_index(index.name)
                break


def _coverage(dataset: Any) -> list[tuple[str, list[int], int]]:
    """For each index: its name, the rows of each of its pieces, and the rows that none covers."""
    rows = {f.fragment_id: int(f.physical_rows) for f in dataset.get_fragments()}
    coverage = []
    for index in dataset.describe_indices():
        pieces = [set(piece.fragment_ids) for piece in index.segments]
        uncovered = rows.keys() - set().union(*pieces)
        sizes = [sum(rows.get(f, 0) for f in piece) for piece in pieces]
        coverage.append((index.name, sizes, sum(rows[f] for f in uncovered)))
    return coverage


def _make_lacking(dataset: Any) -> None:
    there = {name for name, pieces, _ in _coverage(dataset) if name != "body" or any(pieces)}
    if "body" not in there:  # or made when there were no passages yet
        # ICU finds words in scripts without spaces, too.
        words: JsonObject = {"base_tokenizer": "icu", "language": _stemmed(dataset)}
        dataset.create_scalar_index("body", "INVERTED", name="body", **words)
    if dataset.count_rows() < LARGE:
        return
    if "tags" not in there and dataset.count_rows("tags IS NOT NULL"):
        dataset.create_scalar_index("tags", "LABEL_LIST", name="tags")
    if "vector" in dataset.schema.names and "vector" not in there:
        vectors = dataset.count_rows("vector IS NOT NULL")
        if vectors >= LARGE:
            # 120 000 x 384: 4-bit codes have recall 0.998 in 7 ms, 1-bit codes 0.92 in 6 ms.
            quantised = dataset.schema.field("vector").type.list_size % 8 == 0
            kind, options = ("IVF_RQ", {"num_bits": 4}) if quantised else ("IVF_FLAT", {})
            # The usual choice for IVF: as many lists as vectors in each.
            options |= {"num_partitions": int(vectors**0.5)}
            dataset.create_index("vector", kind, name="vector", metric="dot", **options)


def _stemmed(dataset: Any) -> str:
    """The language whose word endings are left out: that of the first passages if it is clear."""
    bodies = dataset.head(_SAMPLE, columns=["body"])["body"].drop_null().to_pylist()
    name = language("\n".join(bodies))
    return name if name in _STEMMED else "English"


# Fragments and segments ---------------------------------------------------------------------------


def merge_fragments(dataset: Any, location: Location, *, rows: int = 1 << 20) -> None:
    """Rewrite small fragments and those with many deletions into ones of so many rows."""
    options: Any = {"target_rows_per_fragment": rows, "batch_size": _BATCH}
    with location.synced():
        results = [task.execute(dataset) for task in Compaction.plan(dataset, options).tasks]
    if results:
        Compaction.commit(dataset, results, options)


def merge_many_fragments(dataset: Any, location: Location) -> None:
    """Keep fragments few: every one that holds a candidate costs its query 0.2 ms, or 0.4 with others.

    Rows move only into a fragment at least twice as large as theirs, or a small one: so they move rarely.
    """
    sizes = [int(f.physical_rows) for f in dataset.get_fragments()]
    for rows in _STEPS:
        small = [size for size in sizes if size < rows]
        if len(small) >= _MANY and (2 * max(small) <= sum(small) or rows == _STEPS[-1]):
            return merge_fragments(dataset, location, rows=rows)


def rewrite_segments(version: TableVersion, location: Location) -> TableVersion:
    """Copy the records of segments that are mostly dead, or small, into new segments."""
    live = live_bytes(version)
    sizes = location.segments()
    # Less than half alive: copying costs less than it frees.
    dying = [s for s, size in sizes.items() if s in live and 2 * live[s] < size]
    small = [s for s, size in sizes.items() if s in live and size < SMALL and s not in dying]
    if len(small) > 1:
        dying += small
    location.finish()  # it must not be copied into itself
    group: list[str] = []
    for segment in dying:
        group.append(segment)
        if segment == dying[-1] or sum(live[s] for s in group) >= SEGMENT:
            version, group = _rewrite(version, location, group), []
    return version


def live_bytes(version: TableVersion) -> dict[str, int]:
    """Bytes of each segment that some record of this version refers to."""
    live: Counter[str] = Counter()
    column = version.size_column
    scanner = version.dataset.scanner(columns=["segment", column], filter=f"window != {MARKER}")
    for batch in scanner.to_batches():
        sums = pa.Table.from_batches([batch]).group_by("segment").aggregate([(column, "sum")])
        for row in sums.to_pylist():
            live[row["segment"]] += row[f"{column}_sum"] * version.size_unit
    return live


def _rewrite(version: TableVersion, location: Location, segments: list[str]) -> TableVersion:
    """Move the records of these segments to a new one, in one commit."""
    names = ", ".join(f"'{s}'" for s in segments)
    scanner = version.dataset.scanner(
        filter=f"segment IN ({names})", with_row_address=True, batch_size=_BATCH
    )
    schema = version.dataset.schema
    tables: list[pa.Table] = []
    addresses: list[Rows] = []

    def copied() -> Iterator[npt.NDArray[np.uint8]]:
        end = 0
        for batch in scanner.to_batches():
            sizes = batch[version.size_column].to_numpy().astype(np.int64) * version.size_unit
            buffer = np.empty(int(sizes.sum()), np.uint8)
            starts = batch["offset"].to_pylist()
            ranges = zip(batch["segment"].to_pylist(), starts, sizes.tolist(), strict=True)
            location.read(list(ranges), buffer.data)
            offsets = pa.array(end + np.cumsum(sizes) - sizes, pa.int64())
            columns = [offsets if n == "offset" else batch[n] for n in schema.names]
            tables.append(pa.Table.from_arrays(columns, schema=schema))
            addresses.append(batch["_rowaddr"].to_numpy().astype(np.int64))
            end += len(buffer)
            yield buffer

    target, start = location.put(copied())
    fragments = write_rows(location, moved(pa.concat_tables(tables), target, start))
    return replace_rows(version, location, np.concatenate(addresses), fragments)


def superseded_bytes(version: TableVersion, location: Location) -> int:
    """Bytes of data, search indexes and segments that this version does not refer to."""
    sizes = location.segments()
    dead = sum(sizes[segment] for segment in sizes.keys() - live_bytes(version).keys())
    files = (f for part in version.dataset.get_fragments() for f in part.data_files())
    used = sum(file.file_size_bytes or 0 for file in files)
    pieces = (part for index in version.dataset.describe_indices() for part in index.segments)
    used += sum(location.bytes_under(f"{TABLE}/_indices/{part.uuid}") or 0 for part in pieces)
    stored = (location.bytes_under(f"{TABLE}/{folder}") or 0 for folder in ("data", "_indices"))
    return dead + max(0, sum(stored) - used)


# Removal ------------------------------------------------------------------------------------------


def remove_versions(dataset: Any, older_than: timedelta, *, alone: bool) -> None:
    """Remove versions that were superseded `older_than` ago, however old they are themselves.

    `alone` says that no one else is writing or staging, so that the leavings of killed writers go now,
    not after the week that Lance gives them.
    """
    history = pairwise(sorted(dataset.versions(), key=lambda v: v["version"]))
    limit = time.time() - older_than.total_seconds()
    if old := [v["version"] for v, after in history if _moment(after["timestamp"]) <= limit]:
        dataset.cleanup_old_versions(versions=old, delete_unverified=alone)


def _moment(local: datetime) -> float:
    """The latest that a local time, as Lance gives it, can be: in autumn an hour comes twice."""
    return max(local.replace(fold=fold).timestamp() for fold in (0, 1))


def remove_segments(version: TableVersion, location: Location, older_than: timedelta) -> None:
    """Remove segments that were seen without a record `older_than` ago, and still have none.

    A reader that could still need one opened its version before that, so it is older than the limit.
    """
    live = live_bytes(version)
    ages = _seen(location.load(GARBAGE) or b"{}")
    now, waiting = time.time(), {}
    for segment in location.segments().keys() - live.keys():
        # A time in the future is of a clock that was wrong, and counts as now.
        seen = min(ages.get(segment, now), now)
        if now - seen >= older_than.total_seconds():
            location.remove(segment)
        else:
            waiting[segment] = seen
    if waiting != ages:
        location.save(GARBAGE, json.dumps(waiting).encode())


def _seen(content: bytes) -> dict[str, float]:
    """When each segment was first seen without a record; a damaged list only begins the wait anew."""
    try:
        return {str(name): float(seen) for name, seen in json.loads(content).items()}
    except (ValueError, TypeError, AttributeError):
        return {}
