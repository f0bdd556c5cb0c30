"""How a change reaches the table: segment, rows, deletions, and last the manifest that names them.

Everything that a manifest refers to is durable before the manifest is written, so a process that is
killed, or a machine that loses power, leaves the old version or the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from decoupled.errors import IndexBusy, InputError
from decoupled.index.record import Record, check_records, to_table
from decoupled.index.store.base import Rows, Staged
from decoupled.index.store.catalogue import Version
from decoupled.index.store.location import Location

STORAGE: Final = "2.2"
"""Version of Lance's file format."""


def stage(location: Location, schema: pa.Schema, records: Sequence[Record], *, part: str) -> Staged:
    """Write the states and the rows of one part. Needs no lock: nothing refers to them yet."""
    if not part:
        raise InputError("a part needs a name, by which a resumed build knows that it is done")
    token_bytes = int(schema.metadata[b"token_bytes"])
    width = schema.field("vector").type.list_size if "vector" in schema.names else None
    check_records(records, token_bytes=token_bytes, width=width)
    try:
        # Before the states are written: it refuses what cannot be stored.
        table = to_table(records, schema, part=part)
    except UnicodeEncodeError as error:
        raise InputError(
            f"a passage holds a lone surrogate ({error.object[error.start]!r}), which is not text; "
            "replace it"
        ) from None
    segment, start = location.put(r.states for r in records) if records else ("", 0)
    table = moved(table, segment, start)
    return Staged(
        part=part,
        ids=tuple(dict.fromkeys(r.id for r in records)),
        content={
            "segment": segment,
            "end": start + sum(r.states.nbytes for r in records),
            "fragments": [f.to_json() for f in write_rows(location, table)],
        },
    )


def moved(table: pa.Table, segment: str, start: int) -> pa.Table:
    """Rows whose offsets were counted from the start of their states, now that those have one."""
    names = pc.if_else(pc.is_valid(table["segment"]), segment, pa.scalar(None, pa.string()))
    table = table.set_column(table.schema.get_field_index("segment"), table.field("segment"), names)
    offsets = pc.add(table["offset"], pa.scalar(start, pa.int64()))
    return table.set_column(table.schema.get_field_index("offset"), table.field("offset"), offsets)


def write_rows(location: Location, table: pa.Table) -> list[Any]:
    """Durable fragments with these rows, which no version has yet."""
    from lance.fragment import write_fragments

    fragments = write_fragments(
        table,
        location.table,
        data_storage_version=STORAGE,
        storage_options=location.options,
        session=location.session,
    )
    location.sync(f"data/{file.path}" for fragment in fragments for file in fragment.files)
    return fragments


def replace_rows(
    version: Version, location: Location, rows: Rows, fragments: Sequence[Any] = ()
) -> Version:
    """One commit that takes rows away and adds fragments; deletions are durable before it refers to them."""
    from lance import LanceOperation

    updated, removed = [], []
    numbers = rows >> 32
    for number in np.unique(numbers).tolist():
        inside = (rows[numbers == number] & 0xFFFF_FFFF).tolist()
        changed = version.fragments[number].delete_rows(inside)
        if changed is None:
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
    return _commit(version, location, operation)


def _commit(version: Version, location: Location, operation: Any) -> Version:
    from lance import LanceDataset
    from lance.commit import CommitConflictError
    from lance.dataset import Transaction

    transaction = Transaction(version.number, operation)
    try:
        dataset = LanceDataset.commit(
            version.dataset, transaction, storage_options=location.options, max_retries=0
        )
    except CommitConflictError as error:
        raise IndexBusy(
            f"{location.name} was changed by another writer meanwhile ({error}); open it again"
        ) from None
    new = Version(dataset)
    location.sync(_commit_files(version.number, new.number, transaction.uuid))
    return new


def _commit_files(before: int, after: int, transaction: str) -> Iterator[str]:
    yield f"_transactions/{before}-{transaction}.txn"
    # Lance numbers manifests downwards, so that the newest is listed first.
    yield f"_versions/{(1 << 64) - 1 - after:020}.manifest"
