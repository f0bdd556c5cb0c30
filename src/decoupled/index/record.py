"""One stored passage, or one window of a long one: its values, its tags, and its row in an Arrow table.

Shapes: T tokens of a record, V width of a dense vector, R records.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from decoupled.errors import DecoupledError, InputError
from decoupled.model.tokens import Passage, Window

if TYPE_CHECKING:
    import pyarrow as pa

Offsets = npt.NDArray[np.int32]
E = TypeVar("E", bound="Excerpt")

FORMAT, READ = "2", ("1", "2")
"""Version of the table's layout, kept in its schema, and those that can be read."""

MARKER = -1
"""`window` of the row that says a part was committed; its `id` is the part's name."""

# The gap that marks a special token; a token of the text with this gap makes offsets wide.
_SPECIAL = -128
# Doubles hold every integer up to here; of larger ones the rounding error is written as well.
_EXACT = 1 << 53


@dataclass(frozen=True, kw_only=True, eq=False)
class Excerpt:
    """The text of a record and what is known about it, without its states."""

    id: str
    window: int = 0
    """0 for a passage that fits the model; a longer one has windows 0, 1, 2…"""
    start: int = 0
    """Where `text` begins in the passage."""
    text: str
    title: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    offsets: Offsets
    """`[T,2]` start and end of each token in `text`; (0, 0) for special tokens and those of the title."""

    @property
    def lead(self) -> int:
        """Number of tokens before those of the text: special tokens and the title's."""
        real = np.flatnonzero(self.offsets.any(1))
        return int(real[0]) if len(real) else len(self.offsets)

    @classmethod
    def of(cls: type[E], passage: Passage, number: int, window: Window, **rest: Any) -> E:
        """The excerpt or record of one window of a passage; `rest` are the fields of a record."""
        return cls(
            id=passage.id,
            window=number,
            start=window.start,
            text=window.text,
            title=passage.title,
            meta=passage.meta,
            offsets=window.offsets,
            **rest,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Record(Excerpt):
    """One passage, or one window of it, as a store takes it."""

    states: npt.NDArray[np.uint8]
    """`[T, bytes per token]`, as a codec wrote them."""
    vector: npt.NDArray[np.float32] | None = None
    """`[V]` for first-stage retrieval; stores keep it in half precision."""
    digest: int = 0
    """64 bits of the whole passage's content, by which a writer sees that nothing changed."""


def check_records(records: Sequence[Record], *, token_bytes: int, width: int | None) -> None:
    """Raise `InputError` for records that a store with these widths cannot take."""
    expected: dict[str, int] = {}
    for record in records:
        where = f"passage {record.id!r:.80}, window {record.window}"
        if not record.id:
            raise InputError("a passage has an empty id; give every passage an id of its own")
        if record.window != expected.get(record.id, 0):
            raise InputError(
                f"{where}: expected window {expected.get(record.id, 0)}; give the windows of an id "
                "once, in order, from 0"
            )
        expected[record.id] = record.window + 1
        tokens = len(record.states)
        if record.states.dtype != np.uint8 or record.states.shape != (tokens, token_bytes):
            raise InputError(
                f"{where}: states are {record.states.dtype}{list(record.states.shape)}; expected "
                f"uint8[T, {token_bytes}], the bytes of this store's codec"
            )
        if record.offsets.shape != (tokens, 2):
            raise InputError(
                f"{where}: offsets are {list(record.offsets.shape)}; expected [{tokens}, 2]"
            )
        if record.vector is not None and record.vector.shape != (width,):
            raise InputError(
                f"{where}: its vector is {list(record.vector.shape)}; this store expects "
                + ("none" if width is None else f"[{width}]")
            )


def digest(passage: Passage) -> int:
    """64 bits of everything about a passage that is stored."""
    content = json.dumps(
        [passage.text, passage.title, dict(passage.meta)], sort_keys=True, default=str
    )
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest(), "little")


def part_name(records: Sequence[Record]) -> str:
    """The name of a part, made from its ids and contents: the same records get the same name."""
    content = "\0".join(f"{r.id}\0{r.digest}" for r in records)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]


# Keys and tags ------------------------------------------------------------------------------------


def keys_of(ids: Iterable[str]) -> npt.NDArray[np.uint64]:
    """64-bit keys by which stores find ids; a store refuses two ids with one key."""
    raw = (i.encode("utf-8", "surrogatepass") for i in ids)
    digests = (hashlib.blake2b(text, digest_size=8).digest() for text in raw)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def tags_of(meta: Mapping[str, Any]) -> list[str]:
    """One tag for each scalar of `meta` and for each item of its lists; filters are made of tags."""
    tags = []
    for key, value in meta.items():
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if item is None or isinstance(item, (str, bool, int, float)):
                tags.append(tag(key, item))
    return tags


def tag(key: str, value: str | float | None) -> str:
    """Key, kind and value as one string; tags of one key and kind sort as their values do."""
    if "\0" in key:
        raise InputError(f"the metadata key {key!r} holds a NUL character; rename it")
    match value:
        case None:
            return f"{key}\0z"
        case bool():
            return f"{key}\0b{int(value)}"
        case str():
            return f"{key}\0s{value}"
        case int() | float():
            return f"{key}\0n{_sortable(key, value)}"
    raise InputError(f"{key:.80}={value!r:.80}: a filter compares text, numbers, booleans and null")


def _sortable(key: str, value: float) -> str:
    """A number as text that sorts like it: the bits of its double, then what rounding took away."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise InputError(f"{key}={value}: an integer must fit 64 bits; store it as text")
    # Adding 0.0 turns -0.0 into 0.0, which is equal and so must have the same tag.
    double = float(value) + 0.0
    if not math.isfinite(double):
        raise InputError(
            f"{key}={value}: JSON has no such number; leave it out or store it as text"
        )
    (bits,) = struct.unpack(">Q", struct.pack(">d", double))
    # Doubles in the order of unsigned integers: flip negative ones, set the sign bit of others.
    bits = bits ^ 0xFFFF_FFFF_FFFF_FFFF if bits >> 63 else bits | 1 << 63
    # A double is off by at most 1024 from a 64-bit integer, so four hex digits hold the rest.
    rest = f"{value - int(double) + 0x8000:04x}" if isinstance(value, int) else "8000"
    return f"{bits:016x}" + (rest if abs(double) >= _EXACT else "")


# Token offsets ------------------------------------------------------------------------------------


def pack_offsets(offsets: Offsets) -> bytes:
    """Two bytes a token, the gap to the token before and the length, where all of them fit; else eight."""
    start, end = offsets[:, 0].astype(np.int64), offsets[:, 1].astype(np.int64)
    real = (start != 0) | (end != 0)
    gaps, lengths = np.full(len(offsets), _SPECIAL, np.int64), np.zeros(len(offsets), np.int64)
    gaps[real] = start[real] - np.concatenate([[0], end[real][:-1]])[: int(real.sum())]
    lengths[real] = end[real] - start[real]
    narrow = (np.abs(gaps[real]) < -_SPECIAL).all() and ((lengths >= 0) & (lengths < 256)).all()
    if not narrow:
        return offsets.astype("<i4").tobytes()
    return gaps.astype(np.int8).tobytes() + lengths.astype(np.uint8).tobytes()


def unpack_offsets(packed: bytes, tokens: int) -> Offsets:
    """The offsets that `pack_offsets` packed, for a record of `tokens` tokens."""
    if len(packed) != 2 * tokens:
        return np.frombuffer(packed, "<i4").reshape(tokens, 2).astype(np.int32)
    gaps = np.frombuffer(packed, np.int8, tokens).astype(np.int32)
    lengths = np.frombuffer(packed, np.uint8, tokens, tokens).astype(np.int32)
    real = gaps != _SPECIAL
    offsets = np.zeros((tokens, 2), np.int32)
    ends = np.cumsum(gaps[real] + lengths[real])
    offsets[real] = np.stack([ends - lengths[real], ends], 1)
    return offsets


# Arrow --------------------------------------------------------------------------------------------

EXCERPT_COLUMNS = ["id", "window", "start", "title", "body", "meta", "offsets", "tokens"]

LEAD = "lead"
"""Column of the tokens before a record's own: tables from before titles were read lack it."""
SIZE = "size"
"""Column of the bytes that a record's states take: tables whose states are not packed lack it."""
STATES_SUM, EXCERPT_SUM = "states_crc32", "excerpt_crc32"
"""Columns of checksums, by which damage on a disk is noticed; tables of early versions lack them."""


_PACKED = {"lance-encoding:compression": "lz4"}


def schema_of(*, token_bytes: int, width: int | None) -> pa.Schema:
    """The table's columns; `body` is the title and the text, so that one index searches both."""
    import pyarrow as pa

    fields = [
        pa.field("id", pa.string(), nullable=False),
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("window", pa.int32(), nullable=False),
        pa.field("start", pa.int32(), nullable=False),
        pa.field("digest", pa.uint64(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("body", pa.string()),
        pa.field("meta", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("offsets", pa.binary(), metadata=_PACKED),  # half of it goes
        pa.field("segment", pa.string()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field(SIZE, pa.int32()),
        pa.field(LEAD, pa.int16()),
        pa.field(STATES_SUM, pa.uint32()),
        pa.field(EXCERPT_SUM, pa.uint32()),
    ]
    if width is not None:
        fields.append(pa.field("vector", pa.list_(pa.float16(), width)))
    return pa.schema(fields, metadata={"decoupled": FORMAT, "token_bytes": str(token_bytes)})


@contextmanager
def _text_alone() -> Iterator[None]:
    """Lone surrogates, which no column of text can hold, are an `InputError`."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InputError(
            f"a passage holds a lone surrogate ({error.object[error.start]!r}), which is not text; "
            "replace it"
        ) from None


@_text_alone()
def to_table(
    records: Sequence[Record],
    stored: Sequence[npt.NDArray[np.uint8]],
    schema: pa.Schema,
    *,
    part: str,
) -> pa.Table:
    """The rows of one part: its records, and last a marker that the part is done.

    States will lie one after the other; `changes.moved` adds their segment and where they begin in it.
    """
    import pyarrow as pa

    sizes = [states.nbytes for states in stored]
    columns: dict[str, list[Any]] = {
        "id": [*(r.id for r in records), part],
        "key": [*keys_of(r.id for r in records).tolist(), 0],
        "window": [*(r.window for r in records), MARKER],
        "start": [*(r.start for r in records), 0],
        "digest": [*(r.digest for r in records), 0],
        "title": [*(r.title for r in records), ""],
        "body": [*(f"{r.title}\n{r.text}" if r.title else r.text for r in records), None],
        "meta": [*(_dump(r) for r in records), None],
        "tags": [*(tags_of(r.meta) or None for r in records), None],
        "offsets": [*(pack_offsets(r.offsets) for r in records), None],
        "segment": [*([""] * len(records)), None],
        "offset": [0, *itertools.accumulate(sizes)],
        "tokens": [*(len(r.states) for r in records), 0],
        SIZE: [*sizes, None],
        LEAD: [*(r.lead for r in records), None],
        STATES_SUM: [*(zlib.crc32(np.ascontiguousarray(states).data) for states in stored), None],
    }
    # The last row is the marker, which has no text.
    summed = [columns[name][:-1] for name in EXCERPT_COLUMNS]
    columns[EXCERPT_SUM] = [*map(_excerpt_sum, *summed), None]
    if "vector" in schema.names:
        columns["vector"] = [*(half_precision(r.vector) for r in records), None]
    arrays = [pa.array(columns[name], schema.field(name).type) for name in schema.names]
    return pa.Table.from_arrays(arrays, schema=schema)


@_text_alone()
def relabelled(table: pa.Table, passages: Mapping[str, Passage]) -> pa.Table:
    """The rows of a table with new metadata from these passages, whose text and title are the same."""
    import pyarrow as pa

    mine = [passages[ident] for ident in table["id"].to_pylist()]
    columns: dict[str, list[Any]] = {
        "digest": [digest(passage) for passage in mine],
        "meta": [_dump(passage) for passage in mine],
        "tags": [tags_of(passage.meta) or None for passage in mine],
    }
    kept = {name: table[name].to_pylist() for name in EXCERPT_COLUMNS} | columns
    if EXCERPT_SUM in table.schema.names:
        columns[EXCERPT_SUM] = list(map(_excerpt_sum, *(kept[name] for name in EXCERPT_COLUMNS)))
    for name, values in columns.items():
        field = table.schema.field(name)
        place = table.schema.get_field_index(name)
        table = table.set_column(place, field, pa.array(values, field.type))
    return table


def excerpts_of(table: pa.Table | pa.RecordBatch) -> list[Excerpt]:
    """The rows of a table that has `EXCERPT_COLUMNS`, compared with their checksums where it has those."""
    columns = [table[name].to_pylist() for name in EXCERPT_COLUMNS]
    if EXCERPT_SUM in table.schema.names:
        actual = list(map(_excerpt_sum, *columns))
        for row, expected in enumerate(table[EXCERPT_SUM].to_pylist()):
            if actual[row] != expected:
                raise DecoupledError(
                    f"the stored text of passage {columns[0][row]!r:.80} is damaged; delete the "
                    "passage and add it again, or restore the index from a copy"
                )
    return [
        Excerpt(
            id=ident,
            window=window,
            start=start,
            text=body[len(title) + 1 :] if title else body,
            title=title,
            meta=json.loads(meta) if meta else {},
            offsets=unpack_offsets(offsets, tokens),
        )
        for ident, window, start, title, body, meta, offsets, tokens in zip(*columns, strict=True)
    ]


def _excerpt_sum(*values: Any) -> int:
    """CRC-32 of the values of one row in `EXCERPT_COLUMNS`."""
    total = 0
    for value in values:
        raw = value if isinstance(value, bytes) else str(value).encode()
        # The NUL after each value tells ("ab", "c") from ("a", "bc").
        total = zlib.crc32(b"\0", zlib.crc32(raw, total))
    return total


def half_precision(vector: npt.NDArray[np.float32] | None) -> npt.NDArray[np.float16] | None:
    """The vector as it is stored; one that half precision cannot hold is an `InputError`."""
    if vector is None:
        return None
    with np.errstate(over="ignore"):
        half = vector.astype(np.float16)
    if not np.isfinite(half).all():
        largest = np.abs(vector).max()
        raise InputError(f"a dense vector has the value {largest}; expected numbers up to 65504")
    return half


def _dump(record: Record | Passage) -> str | None:
    if not record.meta:
        return None
    try:
        return json.dumps(dict(record.meta), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"the metadata of passage {record.id!r} is not JSON: {error}") from None
