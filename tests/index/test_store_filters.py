"""Metadata filters give exactly the records that pass, from every store."""

from __future__ import annotations

import numpy as np
import pytest

from decoupled.errors import InputError
from records import WIDTH, Kind, ids, record

FILTERS = [
    {"lang": "de"},
    {"lang": ["de", "fr"], "even": True},
    {"year": {"gte": 2003, "lt": 2010}},
    {"year": {"gt": 2003.5, "lte": 2010}, "lang": "en"},
    {"date": {"gte": "2020-02", "lt": "2020-04"}},
    {"year": 2004},
    {"year": 2004.0},
    {"even": 1},
    {"year": "2004"},
    {"tags": "b"},
    {"none": None},
    {"lang": []},
    {"quote": 'it\'s \\ a "test" \0 ü'},
    {"id": ["p3", "p4", "missing"]},
    {"id": "p3", "lang": "en"},
    {"id": {"gte": "p3", "lt": "p5"}},
    {"title": "T1"},
    {"title": {"gt": "T1"}, "year": {"lt": 2020}},
    {"absent": 1},
    {},
]


def filtered_records():
    langs = ["en", "de", "fr"]
    return [
        record(
            f"p{i}",
            "w1 " + "w2 " * (i % 4),
            title=f"T{i % 3}",
            meta={
                "lang": langs[i % 3],
                "year": 2000 + i if i % 2 else 2000.0 + i,
                "even": i % 2 == 0,
                "date": f"2020-0{1 + i % 6}-15",
                "tags": ["a", "b"] if i % 4 == 0 else ["c"],
                "quote": 'it\'s \\ a "test" \0 ü' if i == 7 else "plain",
            }
            | ({"none": None} if i == 5 else {}),
        )
        for i in range(40)
    ]


def passes(item, where) -> bool:
    """The meaning of a filter, written apart from the stores."""

    def equal(a, b):
        return isinstance(a, bool) == isinstance(b, bool) and a == b

    for key, wanted in where.items():
        held = {"id": item.id, "title": item.title, **item.meta}.get(key, ...)
        values = held if isinstance(held, list) else [held]
        if isinstance(wanted, dict):
            ok = any(
                all(
                    isinstance(v, str) == isinstance(bound, str)
                    and not isinstance(v, bool)
                    and {"gte": v >= bound, "gt": v > bound, "lt": v < bound, "lte": v <= bound}[op]
                    for op, bound in wanted.items()
                )
                for v in values
                if v is not ... and v is not None
            )
        else:
            options = wanted if isinstance(wanted, list) else [wanted]
            ok = any(equal(v, o) for v in values for o in options if v is not ...)
        if not ok:
            return False
    return True


@pytest.mark.parametrize("where", FILTERS, ids=repr)
def test_filters_give_exactly_what_passes(filled, where):
    view, given = filled
    expected = {r.id for r in given if passes(r, where)}
    assert set(ids(view, view.lexical("w1", 100, where))) == expected
    query = np.ones(WIDTH, np.float32)
    assert set(ids(view, view.dense(query, 100, where))) == expected
    for k in (1, 3):
        assert len(view.lexical("w1", k, where)) == min(k, len(expected))
        assert len(view.dense(query, k, where)) == min(k, len(expected))


@pytest.fixture(scope="module", params=["lance"])
def filled(request, tmp_path_factory):
    """Records with metadata: some indexed, some not, some replaced, some deleted."""
    kind = Kind(request.param, tmp_path_factory.mktemp("filled") / "test.idx")
    store, given = kind.create(), filtered_records()
    store.append([record("gone", "w1", meta={"lang": "de"}), *given[:25]], part="0")
    store.optimise()
    store.append([record("p3", "w1", meta={"lang": "zz"})], part="1")
    store.append([given[3], *given[25:]], part="2")
    store.delete(["gone"])
    yield store.snapshot, given
    store.close()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"year": {"ge": 1}}, "filter on 'year' has 'ge'; use gte, gt, lt, lte"),
        ({"year": {}}, "filter on 'year' has no bounds"),
        ({"year": {"gte": 1, "lt": "z"}}, "expected all numbers or all text"),
        ({"year": {"gte": None}}, "expected all numbers or all text"),
        ({"id": 3}, "the filter wants id=3; expected text"),
        ({"k": object()}, "a filter compares text, numbers"),
        ({"k": "\ud800"}, "leave out lone surrogates"),
        ("lang=en", "expected an object of fields and values"),
    ],
)
def test_filters_that_mean_nothing_are_refused(where, message, tmp_path):
    store = Kind("lance", tmp_path).create()
    store.append([record("a", "w1", meta={"year": 1})], part="0")
    with pytest.raises(InputError, match=message):
        store.snapshot.lexical("w1", 5, where)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({f"k{n}": 1 for n in range(40_000)}, "40,000 fields; give at most 64"),
        ({"k": list(range(1001))}, "1,001 values; give at most 1,000"),
        ({f"k{n}": ["x"] * 20 for n in range(60)}, "1,200 values"),
        ({"k": "x" * 5000}, "5,000 characters in a name or a value"),
        ({"k" * 5000: 1}, "5,000 characters in a name or a value"),
        ({"k": {f"b{n}": 1 for n in range(9)}}, "'b0', 'b1', 'b2', 'b3'; use gte"),
    ],
)
def test_filters_are_bounded(where, message, tmp_path):
    """A chain of 40,000 conditions overflowed the stack of the query planner, and took the process along."""
    store = Kind("lance", tmp_path).create()
    store.append([record("a", "w1", meta={"year": 1})], part="0")
    with pytest.raises(InputError, match=message):
        store.snapshot.lexical("w1", 5, where)


def test_the_largest_filter_works(tmp_path):
    store = Kind("lance", tmp_path).create()
    meta = {f"k{n}": "x" for n in range(64)}
    store.append([record("a", "w1", meta=meta), record("b", "w1", meta={"k0": "x"})], part="0")
    where = {f"k{n}": [f"{n}-{v}" for v in range(14)] + ["x"] for n in range(64)}
    assert ids(store.snapshot, store.snapshot.lexical("w1", 5, where)) == ["a"]
