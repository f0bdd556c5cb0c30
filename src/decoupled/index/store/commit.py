"""How a change reaches the table: segment, rows, deletions, and last the manifest that names them.

Everything that a manifest refers to is durable before the manifest is written, so a process that is
killed, or a machine that loses power, leaves the old version or the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset, LanceOperation
from lance.commit import CommitConflictError
from lance.dataset import Transaction
from lance.fragment import write_fragments

from decoupled.errors import IndexBusy, InputError
from decoupled.index.record import Record, check_records, to_table
from decoupled.index.store.base import Rows, Staged
from decoupled.index.store.catalogue import LOW, Version
from decoupled.index.store.location import Location

STORAGE: Final = "2.2"
"""Version of Lance's file format."""


def stage(version: Version, location: Location, records: Sequence[Record], *, part: str) -> Staged:
    """Write the states and the rows of one part. Needs no lock: nothing refers to them yet."""
    if not part:
        raise InputError("a part needs a name, by which a resumed build knows that it is done")
    check_records(records, token_bytes=version.token_bytes, width=version.width)
    try:
        # Before the states are written: it refuses what cannot be stored.
        table = to_table(records, version.dataset.schema, part=part)
    except UnicodeEncodeError as error:
        raise InputError(
            f"a passage holds a lone surrogate ({error.object[error.start]!r}), which is not text; "
            "replace it"
        ) from None
    segment, start = location.put(r.states for r in records) if records else ("", 0)
    fragments = write_rows(location, moved(table, segment, start))
    content = {
        "segment": segment,
        "end": start + sum(r.states.nbytes for r in records),
        "fragments": [f.to_json() for f in fragments],
    }
    return Staged(part=part, ids=tuple(dict.fromkeys(r.id for r in records)), content=content)


def moved(table: pa.Table, segment: str, start: int) -> pa.Table:
    """Rows whose offsets were counted from the start of their states, now that those have one."""
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
    version: Version, location: Location, rows: Rows, fragments: Sequence[Any] = ()
) -> Version:
    """One commit that takes rows away and adds fragments; deletions are durable before it refers to them."""
    updated, removed = [], []
    numbers = rows >> 32
    for number in np.unique(numbers).tolist():
        inside = (rows[numbers == number] & LOW).tolist()
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
        new = Version(LanceDataset.commit(version.dataset, transaction, max_retries=0))
    except CommitConflictError as error:
        raise IndexBusy(
            f"{location.name} was changed by another writer meanwhile ({error}); open it again"
        ) from None
    # Lance numbers manifests downwards, so that the newest is listed first.
    manifest = f"_versions/{(1 << 64) - 1 - new.number:020}.manifest"
    location.sync([f"_transactions/{version.number}-{transaction.uuid}.txn", manifest])
    return new
