"""Many requests in one pass: each gets what it would get alone, whatever its batch mates are."""

from __future__ import annotations

import os
import select
import time
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from decoupled.errors import DecoupledError, InputError, MissingRecord
from decoupled.index.index import Index
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.runtime.base import Cancelled
from decoupled.runtime.torch import TorchRuntime
from decoupled.search import request as requested
from decoupled.search.engine import Engine
from decoupled.search.request import Request, SearchRun, timed

TEXTS = (
    "the river floods the town in spring",
    "count Dracula",
    "a novel of the house " * 40,
    "the moon over the sea",
)


@pytest.fixture(scope="module")
def both(model):
    """A tiny model with rank and span heads, split at 2."""
    rank = model("bert", "rank").spec.head("rank")
    return Model.split(model("bert", "span").with_heads(rank, seed=1), at=2)


@pytest.fixture(scope="module")
def index(both, tmp_path_factory):
    with Index.create(tmp_path_factory.mktemp("batch") / "i", both, codec="fp32") as made:
        made.add(Passage(id=f"p{n}", text=TEXTS[n % 4] + f" {n}") for n in range(20))
        yield made


def requests() -> list[Request]:
    return [
        Request(query="river", head="rank", texts=TEXTS, raw=True),
        Request(query="who wrote the novel of the house", head="rank", ids=("p1", "p2"), k=1),
        Request(query="town", head="span", texts=TEXTS[:2], k=3),
        Request(query="the town", head="rank", retrieve=True, k=4, raw=True),
        Request(query="the sea and the moon", head="span", retrieve=True, k=2),
        Request(query="river", head="rank", ids=("p3",), texts=("the moon over the sea",)),
        Request(query="nothing to read", head="rank"),
        Request(query="x", head="rank", texts=("", "x")),
    ]


@pytest.mark.parametrize("query", [None, b"river", ["river"]])
def test_a_query_is_a_text(query):
    with pytest.raises(InputError, match=r"the query is .*; expected a text"):
        Request(query=query, head="rank", retrieve=True)


def same(found, alone):
    assert type(found) is type(alone) and len(found) == len(alone)
    for a, b in zip(found, alone, strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-5)
        assert a.text == b.text


@pytest.mark.parametrize("budget", [None, 64])
def test_together_as_alone(index, budget):
    engine = Engine(index)
    together = engine.run(requests(), budget=budget)
    for request, found in zip(requests(), together, strict=True):
        same(found, engine.run([request])[0])
        assert found.query == request.query and found.timing.total_ms > 0


def test_the_joint_model_reads_several_queries_at_once_too(both):
    joint = Engine(Model.split(both, at=0))
    given = [r for r in requests() if r.texts and not r.ids]
    for request, found in zip(given, joint.run(given), strict=True):
        same(found, joint.run([request])[0])


def test_queries_share_batches(index, monkeypatch):
    engine = Engine(index)
    small = [Request(query=f"river {n}", head="rank", texts=(TEXTS[n % 2],)) for n in range(12)]
    passes = []
    real = type(engine.runtime).cross
    monkeypatch.setattr(
        type(engine.runtime), "cross", lambda *a, **n: (passes.append(len(a[2])), real(*a, **n))[1]
    )
    engine.run(small)
    assert passes == [12]


def test_what_nobody_wants_any_more_stops_at_the_next_batch(index, monkeypatch):
    engine = Engine(index)
    asked, done = count(), []

    def counted(method):
        def run(*arguments, **named):
            done.append(method)
            return method(*arguments, **named)

        return run

    for name in ("encode", "cross"):
        monkeypatch.setattr(engine.runtime, name, counted(getattr(engine.runtime, name)))
    with pytest.raises(Cancelled):
        engine.run(requests(), budget=64, cancelled=lambda: next(asked) >= 2)
    assert len(done) == 2, "batches that run side by side ask as well, and do no work"
    monkeypatch.undo()
    watched = engine.run(requests(), cancelled=lambda: False)
    for found, plain in zip(watched, engine.run(requests()), strict=True):
        same(found, plain)


def test_a_text_and_a_stored_passage_of_one_name_keep_their_answers(both, tmp_path):
    with Index.create(tmp_path / "i", both, codec="fp32") as index:
        index.add([Passage(id="0", text="count Dracula of the old town")])
    engine, texts = Engine(tmp_path / "i"), ["count Dracula of the old house"]
    named = engine.ask("who", 50, ids=["0"], texts=[Passage(id="other", text=texts[0])])
    plain = engine.ask("who", 50, ids=["0"], texts=texts)
    assert [(a.text, a.start) for a in plain] == [(a.text, a.start) for a in named]
    assert len({a.passage_id for a in named}) == 2


def test_an_error_stays_with_its_request(index):
    found = Engine(index).run(
        [
            Request(query="river", head="rank", texts=("a town",)),
            Request(query="river", head="rank", ids=("p1", "nobody")),
            Request(query="river", head="rank", retrieve=True, where={"x": {"near": 1}}),
            Request(query="river", head="rank", ids=("p1",)),
        ]
    )
    assert [type(f).__name__ for f in found] == ["Hits", "MissingRecord", "InputError", "Hits"]
    assert isinstance(found[1], MissingRecord) and "'nobody'" in str(found[1])
    assert isinstance(found[2], InputError)


def test_a_text_that_comes_again_is_not_encoded_again(index, monkeypatch):
    engine = Engine(index, remember=1 << 20)
    first = engine.rerank("river", texts=TEXTS, raw=True)
    assert engine.text_cache.misses == 4 and engine.text_cache.hits == 0
    sides = []
    real = type(engine.runtime).encode
    monkeypatch.setattr(
        type(engine.runtime),
        "encode",
        lambda s, side, *a, **k: (sides.append(side), real(s, side, *a, **k))[1],
    )
    again = engine.rerank("the town", texts=TEXTS, raw=True)
    assert sides == ["query"] and engine.text_cache.hits == 4
    same(again, Engine(index).rerank("the town", texts=TEXTS, raw=True))
    assert len(first) == 4


def test_memory_is_bounded_and_the_oldest_text_goes(index):
    engine = Engine(index, remember=20_000)
    for n in range(40):
        engine.rerank("river", texts=[f"the river of the town {n}"])
        assert engine.text_cache.bytes <= 20_000
    engine.rerank("river", texts=["the river of the town 39"])
    engine.rerank("river", texts=["the river of the town 0"])
    assert (engine.text_cache.hits, engine.text_cache.misses) == (1, 41)
    engine.rerank("river", texts=["the house " * 2000])
    assert engine.text_cache.bytes <= 20_000


def test_the_joint_model_remembers_a_text_for_each_length_of_query(both):
    joint = Engine(Model.split(both, at=0), remember=1 << 20)
    joint.rerank("river", texts=TEXTS)
    found = joint.rerank("river of the old town", texts=TEXTS, raw=True)
    same(
        found,
        Engine(Model.split(both, at=0)).rerank("river of the old town", texts=TEXTS, raw=True),
    )
    assert joint.text_cache.hits == 0


def test_an_engine_is_made_of_a_model_a_runtime_or_an_index(both, index, tmp_path):
    both.save(tmp_path / "model")
    given = {"texts": TEXTS, "raw": True}
    expected = Engine(both).rerank("river", **given)
    for source in (TorchRuntime(both), tmp_path / "model", index, index.path):
        same(Engine(source, runtime="torch").rerank("river", **given), expected)
    assert Engine(TorchRuntime(both)).index is None


def test_a_pair_has_the_label_that_transformers_gives_it(checkpoint):
    folder = checkpoint("bert", "classes")
    theirs = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pairs = [(query, text) for query in ("river", "who wrote it") for text in TEXTS[:2]]
    for pair, label in zip(pairs, Engine(Model.open(folder)).classify(pairs), strict=True):
        with torch.no_grad():
            shares = theirs(**tokenizer(*pair, return_tensors="pt")).logits.softmax(-1)[0].tolist()
        expected = {theirs.config.id2label[n]: share for n, share in enumerate(shares)}
        assert label.scores == pytest.approx(expected, abs=1e-5)
        assert (label.label, label.score) == max(label.scores.items(), key=lambda item: item[1])


def test_every_head_goes_through_the_same_stages(model, index):
    classes = Engine(Model.split(model("bert", "classes"), at=1))
    request = Request(query="river", head="classes", texts=TEXTS, raw=True)
    (labels,) = classes.run([request])
    assert list(labels) == classes.classify([("river", text) for text in TEXTS], raw=True)
    (search,) = classes.score([request])
    assert len(search.logits["classes"].values) == len(search.windows) >= len(TEXTS)
    (refused,) = Engine(index).run([request])
    assert "no 'classes' head" in str(refused)


def test_a_block_counts_its_own_milliseconds_once(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 10.0, 12.0, 20.0, 20.5])
    monkeypatch.setattr(requested, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    search = SearchRun(Request(query="q", head="rank"))
    with timed("cross_ms", search), timed("fetch_ms", search):
        pass
    with timed("cross_ms", search):
        pass
    assert search.spent == {"fetch_ms": 7000.0, "cross_ms": 4500.0}


def test_times_are_counted_under_their_own_stage(index, monkeypatch):
    """What takes long is made to: reading states and texts is fetching, whatever stage asks for it."""
    engine, snapshot = Engine(index), type(index.refresh())

    def slow(owner, name, seconds):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: (time.sleep(seconds), real(*a, **k))[1])

    slow(snapshot, "states", 0.05)
    slow(snapshot, "texts", 0.05)
    slow(snapshot, "lexical", 0.2)
    for hits in (engine.search("river"), engine.ask("river")):
        timing = hits.timing
        assert timing.fetch_ms >= 100 and timing.retrieve_ms >= 200
        stages = timing.retrieve_ms + timing.fetch_ms + timing.encode_ms + timing.cross_ms
        assert stages <= timing.total_ms
        assert timing.cross_ms < timing.total_ms - 300


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_engine_of_before_a_fork_says_so(index):
    engine = Engine(index)
    engine.search("river")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # nothing of pytest may run here
        try:
            for use in (lambda: engine.search("river"), lambda: engine.candidates("river")):
                try:
                    use()
                    os.write(writing, b"answered ")
                except DecoupledError as error:
                    os.write(writing, str(error).encode() + b" ")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert select.select([pipe], [], [], 30)[0]
        assert pipe.read().count(b"open it in each process, after that") == 2
    os.waitpid(child, 0)
