"""What a store must do, in a folder and on an object store."""

from __future__ import annotations

import math
import random
from collections import Counter
from datetime import timedelta

import numpy as np
import pytest

from decoupled.errors import IndexBusy, InputError, MissingRecord
from records import TOKEN_BYTES, WIDTH, Kind, ids, record, same

NOW = timedelta(0)


@pytest.fixture(params=["lance", "objects"])
def kind(request, tmp_path):
    if request.param == "objects":
        pytest.importorskip("obstore")
        return Kind("objects", f"memory://{tmp_path.name}")
    return Kind(request.param, tmp_path / "test.idx")


@pytest.fixture
def store(kind):
    with_close = kind.create()
    yield with_close
    with_close.close()


def contents(view):
    """Everything that a store holds, in a form that compares."""
    excerpts = list(view.scan())
    rows = view.locate(list(dict.fromkeys(e.id for e in excerpts)))
    states = view.states(rows)
    return {
        (e.id, e.window): (e.start, e.text, e.title, dict(e.meta), e.offsets.tolist(), s.tolist())
        for e, s in zip(view.texts(rows), states, strict=True)
    }


def test_passages_that_were_cut_from_one_document_are_one_document(store):
    cut = [record(f"d#{n}", meta={"document": "d"}) for n in (1, 2)]
    store.append([*cut, record("whole", meta={"about": "a document"}), record("plain")], part="0")
    assert (store.snapshot.passages, store.snapshot.documents) == (4, 3)


def test_empty(store):
    view = store.snapshot
    assert (len(view), view.passages, view.documents, view.parts) == (0, 0, 0, frozenset())
    assert list(view.scan()) == []
    assert len(view.lexical("anything", 5)) == 0
    assert len(view.dense(np.ones(WIDTH, np.float32), 5)) == 0
    assert len(view.lexical("anything", 5, {"lang": "en"})) == 0
    nothing = np.zeros(0, np.int64)
    assert view.states(nothing).values.shape == (0, TOKEN_BYTES)
    assert view.texts(nothing) == []
    assert store.delete(["a"]) == 0
    store.optimise()
    store.compact(older_than=NOW)
    assert len(store.snapshot) == 0


def test_records_come_back(store):
    given = [
        record(
            "a", "the first passage", title="One", meta={"n": 1, "s": "x", "b": True, "z": None}
        ),
        record("long", "window one of it"),
        record("long", "window two", window=1),
        record("bare", "", tokens=0, vector=False),
    ]
    assert store.append(given, part="0") == 0
    view = store.snapshot
    assert (len(view), view.passages, view.parts) == (4, 3, frozenset({"0"}))
    rows = view.locate(["long", "bare", "a"])
    expected = [given[1], given[2], given[3], given[0]]
    assert all(same(e, g) for e, g in zip(view.texts(rows), expected, strict=True))
    states = view.states(rows)
    assert states.values.dtype == np.uint8
    for stored, original in zip(states, expected, strict=True):
        assert np.array_equal(stored, original.states)
    assert len(view.states(rows[[1, 1, 0]])) == 3
    assert sorted((e.id, e.window) for e in view.scan()) == [
        ("a", 0), ("bare", 0), ("long", 0), ("long", 1),
    ]  # fmt: skip


def test_records_without_tokens(store):
    for part in range(3):
        store.append([record(f"p{part}", tokens=0)], part=str(part))
    assert store.snapshot.states(store.snapshot.locate(["p0", "p2"])).lengths.tolist() == [0, 0]


def test_an_id_is_replaced_with_all_its_windows(store):
    store.append([record("a", "w1"), record("a", "w2", window=1), record("b", "w3")], part="0")
    store.optimise()
    before = store.snapshot
    assert store.append([record("a", "w4"), record("c", "w5")], part="1") == 1
    view = store.snapshot
    assert (len(view), view.passages) == (3, 3)
    assert [e.text for e in view.texts(view.locate(["a"]))] == ["w4"]
    assert ids(view, view.lexical("w2", 9)) == []
    assert ids(view, view.lexical("w4", 9)) == ["a"]
    assert sorted(ids(view, view.dense(np.ones(WIDTH, np.float32), 9))) == ["a", "b", "c"]
    # A snapshot stays what it was.
    assert before.version < view.version
    assert len(before) == 3
    assert [e.text for e in before.texts(before.locate(["a"]))] == ["w1", "w2"]
    assert np.array_equal(before.states(before.locate(["b"])).values, record("b", "w3").states)


def test_delete(store):
    store.append([record("a", "w1"), record("a", "w2", window=1), record("b", "w1")], part="0")
    assert store.delete(["a", "a", "nowhere"]) == 1
    assert store.delete(["a"]) == 0
    view = store.snapshot
    assert (len(view), view.passages, view.parts) == (1, 1, frozenset({"0"}))
    assert ids(view, view.lexical("w1 w2", 9)) == ["b"]
    assert store.delete(["b"]) == 1
    assert len(store.snapshot) == 0
    assert len(store.snapshot.lexical("w1", 9)) == 0


def test_unknown_ids_are_named(store):
    store.append([record("a")], part="0")
    with pytest.raises(MissingRecord, match="the index has no passage 'x', 'y'; check"):
        store.snapshot.locate(["x", "a", "y"])
    with pytest.raises(MissingRecord, match="'1', '2', '3' and 2 more; check the ids"):
        store.snapshot.locate(list("12345"))


def test_digests_tell_what_is_there_unchanged(store):
    store.append([record("a", "w1"), record("a", "w1", window=1), record("b", "w3")], part="0")
    store.append([record("b", "w4"), record("c", "w5")], part="1")
    store.delete(["c"])
    wanted = [record("b", "w4").digest, None, record("a", "w1").digest]
    assert store.snapshot.digests(["b", "c", "a"]) == wanted
    assert store.snapshot.digests([]) == []


def test_parts_outlive_their_records(store):
    store.append([record("a")], part="first")
    store.append([record("a")], part="second")
    store.append([], part="empty")
    store.append([record("b")], part="first")
    store.delete(["a", "b"])
    expected = frozenset({"first", "second", "empty"})
    assert store.snapshot.parts == expected
    store.compact(older_than=NOW)
    assert store.snapshot.parts == expected
    assert len(store.snapshot) == 0


def bm25(texts: dict[str, str], query: str) -> dict[str, float]:
    """The textbook formula, written apart from the stores."""
    words = {i: Counter(t.split()) for i, t in texts.items()}
    mean = sum(c.total() if hasattr(c, "total") else sum(c.values()) for c in words.values()) / len(
        texts
    )
    scores: dict[str, float] = {}
    for term in query.split():
        df = sum(term in c for c in words.values())
        idf = math.log((len(texts) - df + 0.5) / (df + 0.5) + 1)
        for i, count in words.items():
            if tf := count[term]:
                norm = 1.2 * (0.25 + 0.75 * sum(count.values()) / mean)
                scores[i] = scores.get(i, 0.0) + idf * tf * 2.2 / (tf + norm)
    return scores


def zipf_texts(count: int, seed: int = 0) -> dict[str, str]:
    rng = random.Random(seed)
    words = [f"w{i}" for i in range(50)]
    weights = [1 / (i + 1) for i in range(50)]
    return {
        f"p{n}": " ".join(rng.choices(words, weights, k=rng.randint(3, 25))) for n in range(count)
    }


def test_lexical_is_exact_bm25_over_title_and_text(store):
    texts = zipf_texts(120)
    records = []
    for i, text in texts.items():
        title, _, rest = text.partition(" ")
        records.append(record(i, rest, title=title) if int(i[1:]) % 3 else record(i, text))
    for part in range(4):
        store.append(records[30 * part : 30 * part + 30], part=str(part))
        store.optimise()
    view = store.snapshot
    for query in ("w3 w7 w20", "w1", "w49 w2 w30 w11"):
        expected = bm25(texts, query)
        found = view.lexical(query, 500)
        names = ids(view, found)
        assert set(names) == set(expected)
        assert np.allclose(found.scores, [expected[i] for i in names], rtol=1e-4)
        assert (np.diff(found.scores) <= 0).all()
        top = view.lexical(query, 7)
        assert len(top) == min(7, len(expected))
        assert np.allclose(top.scores, found.scores[:7], rtol=1e-5)


def test_lexical_finds_records_that_no_index_covers(store):
    store.append([record("a", "w1 w2")], part="0")
    store.optimise()
    store.append([record("b", "w2 w3"), record("c", "w3")], part="1")
    view = store.snapshot
    assert set(ids(view, view.lexical("w2", 9))) == {"a", "b"}
    assert set(ids(view, view.lexical("w3", 9, {"id": ["a", "c"]}))) == {"c"}


@pytest.mark.parametrize(
    "query",
    [
        'w1"',
        "w1' OR 1=1 --",
        "+w1 -w2 AND NOT (",
        "body:w1^3~2*",
        "w1\0",
        "\\w1\\",
        "w1 \ud800",
        "*w1?",
    ],
)
def test_a_query_is_never_a_language(store, query):
    store.append([record("a", "w1 w2"), record("b", "w2")], part="0")
    store.optimise()
    view = store.snapshot
    assert "a" in ids(view, view.lexical(query, 9))


@pytest.mark.parametrize("query", ["", " ", "?!", "\0", "(", "absent"])
def test_a_query_without_known_words_finds_nothing(store, query):
    store.append([record("a", "w1 w2")], part="0")
    assert len(store.snapshot.lexical(query, 9)) == 0
    assert len(store.snapshot.lexical("w1", 0)) == 0


def test_dense_is_the_inner_product(store):
    given = [record(f"p{i}", vector=i % 5 > 0) for i in range(60)]
    store.append(given, part="0")
    query = np.linspace(-1, 2, WIDTH, dtype=np.float32)
    expected = {r.id: float(r.vector @ query) for r in given if r.vector is not None}
    view = store.snapshot
    found = view.dense(query, 10)
    best = sorted(expected, key=lambda i: -expected[i])[:10]
    assert ids(view, found) == best
    # Held in memory as bytes: a product of these lengths is off by a few thousandths of it.
    assert np.allclose(found.scores, [expected[i] for i in best], atol=2e-2)
    assert len(view.dense(query, 500)) == len(expected)
    with pytest.raises(InputError, match=r"query vector is \[3\]; this index expects \[8\]"):
        view.dense(query[:3], 1)


def test_vectors_come_in_the_order_of_their_rows(store):
    given = {f"p{i}": record(f"p{i}", vector=i != 1) for i in range(3)}
    store.append([*given.values()], part="0")
    view = store.snapshot
    last, none, first = view.vectors(view.locate(["p2", "p1", "p0"]))
    assert np.allclose(last, given["p2"].vector, atol=1e-2) and not none.any()
    assert np.allclose(first, given["p0"].vector, atol=1e-2) and not np.allclose(first, last)


def test_a_reader_sees_commits_when_it_is_refreshed(kind, store):
    store.append([record("a", "w1")], part="0")
    reader = kind.reader(store)
    store.append([record("b", "w1"), record("a", "w2")], part="1")
    store.delete(["b"])
    assert [e.text for e in reader.snapshot.scan()] == ["w1"]
    assert reader.refresh() is reader.snapshot
    assert [e.text for e in reader.snapshot.scan()] == ["w2"]
    assert reader.snapshot.version == store.snapshot.version
    assert np.array_equal(
        reader.snapshot.states(reader.snapshot.locate(["a"])).values, record("a", "w2").states
    )
    with pytest.raises(IndexBusy, match="opened for reading"):
        reader.append([record("c")], part="2")


def test_compaction_changes_nothing(store):
    texts = zipf_texts(60)
    for part in range(6):
        names = list(texts)[10 * part : 10 * part + 10]
        store.append([record(i, texts[i], meta={"n": int(i[1:])}) for i in names], part=str(part))
    store.append([record("long", f"w{i}", window=i) for i in range(3)], part="long")
    store.delete([f"p{i}" for i in range(0, 60, 2)])
    store.append([record("p1", "changed w9")], part="again")
    before = contents(store.snapshot)
    store.compact(older_than=NOW)
    view = store.snapshot
    assert contents(view) == before
    assert view.parts == {"long", "again", *map(str, range(6))}
    live = {i: t for i, t in texts.items() if int(i[1:]) % 2} | {"p1": "changed w9"}
    live |= {f"long{i}": f"w{i}" for i in range(3)}
    found = view.lexical("w9 w3", 100)
    expected = sorted(bm25(live, "w9 w3").values(), reverse=True)
    assert np.allclose(found.scores, expected, rtol=1e-4)
    assert ids(view, view.lexical("w9", 1, {"id": "p1"})) == ["p1"]


def test_text_of_any_kind_comes_back(store):
    texts = {
        "nul": "a\0b\0",
        "emoji": "👩‍👩‍👧 naïve café 你好世界 שלום",
        "huge": "word " * 200_000,
        "line": "one\ntwo\r\n\tthree",
        "ünï\0'id\"": "odd id",
    }
    given = [record(i, t, title=t[:3], meta={"t": t[:9]}, tokens=3) for i, t in texts.items()]
    store.append(given, part="0\0'")
    store.optimise()
    view = store.snapshot
    assert all(same(e, g) for e, g in zip(view.texts(view.locate(list(texts))), given, strict=True))
    assert view.parts == {"0\0'"}
    assert ids(view, view.lexical("café", 5)) == ["emoji"]
    assert store.delete(["ünï\0'id\""]) == 1


def test_what_cannot_be_stored_is_refused_and_leaves_nothing(store):
    store.append([record("a")], part="0")
    with pytest.raises(InputError, match="expected window 0"):
        store.append([record("b", window=1)], part="1")
    with pytest.raises(InputError, match="must fit 64 bits"):
        store.append([record("b", meta={"n": 1 << 70})], part="1")
    with pytest.raises(InputError, match="expected numbers up to 65504"):
        big = record("b")
        big.vector[0] = 1e6
        store.append([big], part="1")
    assert (len(store.snapshot), store.snapshot.parts) == (1, {"0"})
    assert store.append([record("b")], part="1") == 0
    assert len(store.snapshot) == 2


def test_scores_of_named_rows_are_those_among_all(store):
    draw = random.Random(3)
    words = [f"w{n}" for n in range(30)]
    store.append([record(f"p{n}", " ".join(draw.choices(words, k=9))) for n in range(60)], part="0")
    view, vector = store.snapshot, np.arange(WIDTH, dtype=np.float32)
    words = "w1 w2 w3"
    for whole, named, gap in (
        (view.lexical(words, 60), lambda rows: view.lexical(words, 60, rows=rows), 1e-4),
        # Vectors are searched as bytes; those that are named are read as they were stored.
        (view.dense(vector, 60), lambda rows: view.dense(vector, 60, rows=rows), 0.2),
    ):
        some = whole.rows[::-3]
        found = named(some)
        assert set(found.rows.tolist()) == set(some.tolist())
        scores = dict(zip(whole.rows.tolist(), whole.scores.tolist(), strict=True))
        among_all = [scores[row] for row in found.rows.tolist()]
        assert among_all == pytest.approx(found.scores.tolist(), abs=gap)
    without = np.setdiff1d(view.rows(), view.lexical("w1", 60).rows)
    assert len(without) and len(view.lexical("w1", 60, rows=without)) == 0
