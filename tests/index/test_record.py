"""Packing of token offsets and of states, and tags that sort as their values do."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoupled.errors import DecoupledError, InputError
from decoupled.index.record import (
    check_records,
    excerpts_of,
    keys_of,
    pack_offsets,
    schema_of,
    tag,
    tags_of,
    to_table,
    unpack_offsets,
)
from decoupled.index.store.packing import ENOUGH, pack, unpack
from records import TOKEN_BYTES, record

spans = st.tuples(st.integers(0, 4000), st.integers(0, 300)).map(lambda p: (p[0], p[0] + p[1]))


@given(st.lists(spans | st.just((0, 0)), max_size=40))
def test_any_offsets_come_back(pairs):
    offsets = np.array(pairs, np.int32).reshape(-1, 2)
    back = unpack_offsets(pack_offsets(offsets), len(offsets))
    assert back.dtype == np.int32
    assert np.array_equal(back, offsets)


@given(st.lists(st.tuples(st.sampled_from([2, 16, 200, 256]), st.integers(0, 60)), max_size=12))
def test_any_states_come_back_packed_or_not(kinds):
    """Codes of so few values shrink, random bytes do not; each record is read from its own place."""
    draw = np.random.default_rng(0)
    records = [draw.integers(0, few, (tokens, 12), dtype=np.uint8) for few, tokens in kinds]
    stored = [pack(states) for states in records]
    for (few, tokens), lies in zip(kinds, stored, strict=True):
        whole = 12 * tokens
        assert len(lies) == whole or len(lies) < ENOUGH * whole
        assert (len(lies) < whole) == (few < 200) or tokens < 20
    sizes, wholes = (np.array([r.size for r in of], np.int64) for of in (stored, records))
    back = unpack(np.concatenate([np.empty(0, np.uint8), *stored]), sizes, wholes)
    assert back.tobytes() == b"".join(states.tobytes() for states in records)


def test_ordinary_offsets_take_two_bytes_a_token():
    ends = np.cumsum(np.full(150, 5, np.int32))
    offsets = np.concatenate([[[0, 0]], np.stack([ends - 4, ends], 1), [[0, 0]]]).astype(np.int32)
    assert len(pack_offsets(offsets)) == 2 * len(offsets)


def test_overlapping_and_far_offsets_come_back():
    # Byte-level tokenizers give several tokens the span of one character.
    for pairs in ([(3, 4), (3, 4), (3, 4)], [(0, 0), (70_000, 70_300)], [(9, 10), (2, 3)]):
        offsets = np.array(pairs, np.int32)
        assert np.array_equal(unpack_offsets(pack_offsets(offsets), len(offsets)), offsets)


numbers = st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False)


@given(numbers, numbers)
def test_number_tags_sort_as_the_numbers_do(a, b):
    assert (tag("k", a) < tag("k", b)) == (a < b)
    assert (tag("k", a) == tag("k", b)) == (a == b)


def test_tags_keep_kinds_apart():
    meta = {"a": 1, "b": True, "c": "1", "d": None, "e": ["x", 2], "f": {"nested": 1}}
    assert len(set(tags_of(meta))) == 6
    assert tag("k", 1) == tag("k", 1.0)
    assert tag("k", 1 << 60) == tag("k", float(1 << 60))
    assert tag("k", (1 << 60) - 1) < tag("k", float(1 << 60)) < tag("k", (1 << 60) + 1)
    assert tag("k", 1) != tag("k", True)
    assert tag("k", "1") != tag("k", 1)
    assert tag("k", 0.0) == tag("k", -0.0)


def test_values_without_a_tag_are_named():
    with pytest.raises(InputError, match="'a\\\\x00b' holds a NUL"):
        tag("a\0b", 1)
    with pytest.raises(InputError, match="must fit 64 bits; store it as text"):
        tag("k", 1 << 64)
    with pytest.raises(InputError, match="k=nan: JSON has no such number"):
        tag("k", float("nan"))


def test_keys_are_stable():
    # They are stored: another hash would orphan every index.
    assert keys_of(["p1"]).tolist() == [10_506_498_227_197_777_640]
    assert len(set(keys_of(f"p{i}" for i in range(1000)).tolist())) == 1000


def test_rows_come_back_and_the_part_is_marked():
    given_ = [record("a", "x y", title="T"), record("a", "z", window=1), record("b", meta={"n": 1})]
    schema = schema_of(token_bytes=TOKEN_BYTES, width=8)
    table = to_table(given_, [r.states for r in given_], schema, part="part 7")
    assert table.schema.equals(schema)
    assert table["offset"].to_pylist()[:3] == [0, 32, 56]
    assert table.to_pylist()[3] | {"offset": 0} == {
        **dict.fromkeys(schema.names),
        "id": "part 7",
        "key": 0,
        "window": -1,
        "start": 0,
        "digest": 0,
        "title": "",
        "offset": 0,
        "tokens": 0,
    }
    texts = [(e.id, e.window, e.title, e.text, e.meta) for e in excerpts_of(table.slice(0, 3))]
    assert texts == [("a", 0, "T", "x y", {}), ("a", 1, "", "z", {}), ("b", 0, "", "", {"n": 1})]
    assert json.loads(table["meta"][2].as_py()) == {"n": 1}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("title", "t"),
        ("body", "T\nx z"),
        ("meta", '{"n": 2}'),
        ("start", 1),
        ("offsets", b"12345678"),
    ],
)
def test_a_text_that_changed_on_the_disk_is_refused(column, value):
    schema = schema_of(token_bytes=TOKEN_BYTES, width=8)
    given_ = record("a", "x y", title="T", meta={"n": 1})
    table = to_table([given_], [given_.states], schema, part="0").slice(0, 1)
    assert [e.id for e in excerpts_of(table)] == ["a"]
    changed = pa.array([value], schema.field(column).type)
    table = table.set_column(schema.get_field_index(column), schema.field(column), changed)
    with pytest.raises(DecoupledError, match="stored text of passage 'a' is damaged; delete the"):
        excerpts_of(table)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([record("")], "empty id"),
        ([record("a", window=1)], "'a', window 1: expected window 0"),
        ([record("a"), record("b"), record("a")], "'a', window 0: expected window 1"),
    ],
)
def test_ids_and_windows_are_checked(records, message):
    with pytest.raises(InputError, match=message):
        check_records(records, token_bytes=TOKEN_BYTES, width=8)


def test_shapes_are_checked():
    with pytest.raises(InputError, match=r"states are uint8\[2, 8\]; expected\s+uint8\[T, 9\]"):
        check_records([record("a")], token_bytes=9, width=8)
    with pytest.raises(InputError, match=r"vector is \[8\]; this store expects none"):
        check_records([record("a")], token_bytes=8, width=None)
    with pytest.raises(InputError, match=r"vector is \[8\]; this store expects \[5\]"):
        check_records([record("a")], token_bytes=8, width=5)
