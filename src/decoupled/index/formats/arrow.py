"""Rows of Parquet and Arrow files, also those that `datasets` saves."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

from decoupled.index.documents.files import Fields, File, Problems, UnreadableError
from decoupled.index.formats.streams import seekable

# Rows that are Python objects at a time.
_ROWS = 1024


def parquet_rows(
    file: File, stream: io.BufferedReader, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    """Number and columns of each row of a Parquet file."""
    import pyarrow.parquet as parquet

    def batches() -> Iterable[Any]:
        return parquet.ParquetFile(seekable(file, stream)).iter_batches(batch_size=_ROWS)

    return _rows(batches, "Parquet")


def arrow_rows(
    file: File, stream: io.BufferedReader, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    """Number and columns of each row of an Arrow file, or of a stream of record batches."""
    from pyarrow import ArrowInvalid, ipc, memory_map

    def batches() -> Iterable[Any]:
        source = seekable(file, stream)
        source = memory_map(source) if isinstance(source, str) else source
        try:
            reader = ipc.open_file(source)
        except ArrowInvalid:
            # `datasets` saves streams, which lack the footer of a file.
            source.seek(0)
            return ipc.open_stream(source)
        return (reader.get_batch(n) for n in range(reader.num_record_batches))

    return _rows(batches, "Arrow")


def _rows(batches: Any, kind: str) -> Iterator[tuple[int, Fields]]:
    import pyarrow as pa

    number = 0
    try:
        for batch in batches():
            for start in range(0, len(batch), _ROWS):
                for fields in batch.slice(start, _ROWS).to_pylist():
                    number += 1
                    yield number, fields
    except (pa.ArrowException, OSError, ValueError) as error:
        why = str(error).partition("\n")[0][:120]
        raise UnreadableError(f"is not a whole {kind} file ({why})") from None
