"""Rows of tables: csv and tsv, whatever their habits of quoting and delimiting; Parquet and Arrow."""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Literal

from decoupled.index.documents.files import Fields, File, Problems, UnreadableError
from decoupled.index.formats.streams import lines_of, seekable

_Quoting = Literal[0, 3]  # csv.QUOTE_MINIMAL, csv.QUOTE_NONE

_QUOTED_FIELD = re.compile(r'(?:^|(?<=\t))"((?:[^"\t]|"")*)"(?=\t|\r?\n?$)')
# Characters of a cell; the csv module refuses more than 131,072 by default.
_FIELD_LIMIT = 1 << 26
# How much of a file decides what its quotation marks mean.
_SAMPLE_CHARS = 1 << 20
_SAMPLE_LINES = 1000
# Rows of Parquet and Arrow that are Python objects at a time.
_ROWS = 1024


def table_rows(
    file: File, stream: io.BufferedReader, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    """Line number and cells by column name of every row below the header."""
    csv.field_size_limit(max(csv.field_size_limit(), _FIELD_LIMIT))
    # Escaped bytes pass the csv module, so that bytes that are not UTF-8 cost a row, not the file.
    lines = (raw.decode("utf-8", "surrogateescape") for raw in lines_of(stream))
    sample = _sample(lines)
    if not sample:
        return
    delimiter = "\t" if file.format.name == "tsv" else max(",;\t|", key=sample[0].count)
    quoting = _quoting(sample, delimiter)
    rows = _rows(file, chain(sample, lines), delimiter, quoting, problems)
    first = next(rows, None)
    if first is None:
        return
    line, names = first
    if len(names) == 2 and names[0].isdigit():  # MS MARCO: number and text, no header
        names = ["id", "text"]
        rows = chain([first], rows)
    for line, cells in rows:
        if len(cells) != len(names):
            fields = f"{len(cells)} field" + "s" * (len(cells) != 1)
            problems.fail(file.problem(line, f"has {fields}; the header has {len(names)}"))
        else:
            yield line, dict(zip(names, cells, strict=True))


def _sample(lines: Iterator[str]) -> list[str]:
    sample: list[str] = []
    chars = 0
    for line in lines:
        sample.append(line)
        chars += len(line)
        if chars >= _SAMPLE_CHARS or len(sample) >= _SAMPLE_LINES:
            break
    return sample


def _quoting(sample: list[str], delimiter: str) -> _Quoting:
    """Are quotation marks around fields syntax, as in spreadsheets, or text, as in GLUE's files?

    In csv they are syntax. In tsv the reading under which fewer rows are ill-formed wins; when both
    do as well, they are text unless the header or doubled marks show that a program wrote them.
    """
    if delimiter != "\t":
        return csv.QUOTE_MINIMAL
    options: tuple[_Quoting, _Quoting] = (csv.QUOTE_NONE, csv.QUOTE_MINIMAL)
    if _has_quoted_fields(sample):
        options = (csv.QUOTE_MINIMAL, csv.QUOTE_NONE)
    return min(options, key=lambda quoting: _ill_formed(sample, quoting))


def _has_quoted_fields(sample: list[str]) -> bool:
    doubled = ('""' in field[1] for line in sample for field in _QUOTED_FIELD.finditer(line))
    return sample[0].startswith('"') or any(doubled)


def _ill_formed(sample: list[str], quoting: _Quoting) -> int:
    reader = csv.reader(sample, delimiter="\t", quoting=quoting, strict=True)
    columns = bad = 0
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return bad
        except csv.Error:
            bad += 1
            continue
        columns = columns or len(cells)
        bad += bool(cells) and len(cells) != columns


def _rows(
    file: File, lines: Iterable[str], delimiter: str, quoting: _Quoting, problems: Problems
) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every row that can be parsed and is not empty, the header too."""
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problems.fail(file.problem(line, f"is not a row of {file.format.name} ({error})"))
            continue
        whole = "".join(cells)
        if not whole.strip():
            continue
        try:
            whole.encode()
        except UnicodeEncodeError:
            problems.fail(file.problem(line, "holds bytes that are not UTF-8"))
            continue
        yield line, cells


# Parquet, Arrow ---------------------------------------------------------------------------------


def parquet_rows(
    file: File, stream: io.BufferedReader, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    """Number and columns of each row of a Parquet file."""
    import pyarrow.parquet as parquet

    def batches() -> Iterable[Any]:
        return parquet.ParquetFile(seekable(file, stream)).iter_batches(batch_size=_ROWS)

    return _of_batches(batches, "Parquet")


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

    return _of_batches(batches, "Arrow")


def _of_batches(batches: Any, kind: str) -> Iterator[tuple[int, Fields]]:
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
