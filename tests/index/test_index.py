"""The write path and the read path: stored equals direct, nothing is encoded twice, nothing is lost."""

from __future__ import annotations

import errno
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from decoupled.errors import (
    DecoupledError,
    IndexBusy,
    IndexMismatch,
    InputError,
    MissingRecord,
    SpecError,
    in_words,
)
from decoupled.index import ingest, manifest
from decoupled.index.index import Index
from decoupled.model.model import Model
from decoupled.model.spec import ProjectionSpec
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine

QUERY = "which river runs past the town"


def passages(count: int = 40) -> list[Passage]:
    draw = np.random.default_rng(0)
    words = [
        "river",
        "town",
        "Dracula",
        "wrote",
        "spring",
        "floods",
        "novel",
        "count",
        "house",
        "of",
        "the",
    ]
    made = []
    for number in range(count):
        text = " ".join(draw.choice(words, size=int(draw.integers(3, 14))))
        made.append(
            Passage(id=f"p{number}", text=text, title=f"part {number % 3}", meta={"n": number})
        )
    return made


@pytest.fixture(scope="module")
def both(model):
    """A tiny model with rank and span heads, split at 2."""
    rank = model("bert", "rank").spec.head("rank")
    return Model.split(model("bert", "span").with_heads(rank, seed=1), at=2)


@pytest.fixture
def index(both, tmp_path):
    with Index.create(tmp_path / "i", both, codec="fp32") as made:
        made.add(passages())
        yield made


def close(hits, others, tolerance):
    a, b = ({h.id: h.score for h in x} for x in (hits, others))
    assert a.keys() == b.keys()
    assert max(abs(a[i] - b[i]) for i in a) <= tolerance


def test_stored_equals_direct_for_every_family(model, family, tmp_path):
    split = Model.split(model(family, "rank"), at=1)
    with Index.create(tmp_path / "i", split, codec="fp32") as index:
        index.add(passages(12))
        engine = Engine(index)
        stored = engine.rerank(QUERY, ids=[f"p{i}" for i in range(12)], raw=True)
        direct = Engine(split).rerank(QUERY, texts=passages(12), raw=True)
        close(stored, direct, 1e-5)


@pytest.mark.parametrize(
    ("codec", "gap"), [("fp32", 1e-5), ("fp16", 0.01), ("int8", 0.1), ("project:32+int8", 0.1)]
)
def test_the_gap_of_a_codec_is_small(both, tmp_path, codec, gap):
    with Index.create(tmp_path / "i", both, codec=codec) as index:
        index.add(passages())
        stored = Engine(index).rerank(QUERY, ids=[p.id for p in passages()], raw=True)
    close(stored, Engine(both).rerank(QUERY, texts=passages(), raw=True), gap)


def test_codes_are_those_that_the_model_was_trained_with(both, tmp_path):
    squeezed = replace(both.spec, projection=ProjectionSpec(width=16, bits=4))
    trained = both.rebuild(squeezed, {"did": "squeeze"}, seed=1)
    for model, told, stored in (
        (both, None, "int8"),
        (trained, None, "int4"),
        (trained, "fp16", "fp16"),
    ):
        with Index.create(tmp_path / stored, model, codec=told) as index:
            assert index.manifest.codec == stored
    with pytest.raises(SpecError, match="bits=3; choose 4, 8 or none"):
        replace(squeezed, projection=ProjectionSpec(width=16, bits=3))


def test_ids_and_texts_are_ranked_together(index, both):
    engine = Engine(index)
    extra = "the river floods the town in spring"
    hits = engine.rerank(QUERY, ids=["p1", "p2"], texts=[extra], raw=True)
    assert {h.id for h in hits} == {"p1", "p2", "0"}
    alone = {h.id: h.score for h in engine.rerank(QUERY, texts=[extra], raw=True)}
    assert next(h.score for h in hits if h.id == "0") == pytest.approx(alone["0"], abs=1e-5)
    assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)


def test_search_is_the_rerank_of_its_candidates(index):
    engine = Engine(index)
    for stage in ("lexical", "dense", "hybrid"):
        hits = engine.search(QUERY, k=15, first_stage=stage, candidates=15, raw=True)
        found = [p.id for p in engine.candidates(QUERY, 15, first_stage=stage)]
        assert {h.id for h in hits} == set(found) and len(found) == 15
        close(hits, engine.rerank(QUERY, ids=found, raw=True), 1e-5)


def test_filters_hold(index):
    hits = Engine(index).search(QUERY, k=50, where={"n": {"gte": 10, "lt": 20}})
    assert hits and all(10 <= h.meta["n"] < 20 for h in hits)


def test_answers_are_exact_substrings_with_comparable_scores(index):
    engine = Engine(index)
    answers = engine.ask(QUERY, k=8)
    texts = {p.id: p.text for p in passages()}
    assert len(answers) == 8
    for a in answers:
        assert a.passage[a.start : a.end] == a.text
        assert texts[a.passage_id][a.offset + a.start : a.offset + a.end] == a.text
    assert 0 < sum(a.score for a in answers) <= 1 + 1e-9
    again = engine.ask(QUERY, k=8, ids=[p.id for p in engine.candidates(QUERY)])
    assert [a.score for a in again] == pytest.approx([a.score for a in answers], rel=1e-3)
    assert (again[0].text, again[0].passage_id) == (answers[0].text, answers[0].passage_id)
    assert not engine.ask(QUERY, threshold=1)


def test_an_index_whose_last_passage_went_still_has_its_version(index):
    before = index.info()["version"]
    index.delete([p.id for p in passages()])
    info = index.info()
    assert info["passages"] == info["records"] == 0 and info["version"] > before


def test_a_long_document_is_several_records_and_one_hit(both, tmp_path):
    long = Passage(id="long", text="The river of the town. " * 200)
    with Index.create(tmp_path / "i", both, codec="fp32") as index:
        index.add([*passages(5), long])
        info = index.info()
        assert info["passages"] == 6 and info["records"] > 10
        engine = Engine(index)
        hits = engine.search("river town", k=10)
        assert [h.id for h in hits].count("long") == 1
        hit = next(h for h in hits if h.id == "long")
        assert long.text[hit.offset : hit.offset + len(hit.text)] == hit.text
        close(
            engine.rerank(QUERY, ids=["long", "p1"], raw=True),
            Engine(both).rerank(QUERY, texts=[long, passages(2)[1]], raw=True),
            1e-5,
        )
        for a in engine.ask("river town", k=5, ids=["long"]):
            assert long.text[a.offset + a.start : a.offset + a.end] == a.text


def test_the_same_build_again_encodes_nothing(index, monkeypatch):
    monkeypatch.setattr(Index, "_encode", lambda self, part: pytest.fail("encoded again"))
    done = index.add(passages())
    assert (done.added, done.unchanged) == (0, 40)


def test_changed_passages_are_replaced_and_only_those(index):
    changed = [*passages()]
    changed[3] = Passage(id="p3", text="entirely new words about Dracula")
    done = index.add(changed)
    assert (done.added, done.unchanged, done.replaced) == (1, 39, 1)
    assert len(index) == 40
    (hit,) = Engine(index).rerank(QUERY, ids=["p3"])
    assert hit.text == changed[3].text and hit.title == ""


def test_duplicates_are_reported_and_the_last_one_stays(both, tmp_path):
    with Index.create(tmp_path / "i", both) as index:
        twice = [
            Passage(id="a", text="first"),
            Passage(id="b", text="x"),
            Passage(id="a", text="second"),
        ]
        done = index.add(twice)
        assert done.duplicates == ("a",) and len(index) == 2
        assert Engine(index).rerank("q", ids=["a"])[0].text == "second"


def test_delete_and_add_again(index):
    assert index.delete(["p1", "p2", "nobody"]) == 2
    assert len(index) == 38
    with pytest.raises(MissingRecord, match="'p1'"):
        Engine(index).rerank(QUERY, ids=["p1"])
    assert index.add(passages()).added == 2 and len(index) == 40


def test_compaction_changes_no_answer(index):
    engine = Engine(index)
    index.delete([f"p{i}" for i in range(0, 40, 2)])
    before = engine.search(QUERY, k=40, raw=True)
    index.compact()
    close(before, engine.search(QUERY, k=40, raw=True), 1e-6)


def test_readers_see_new_passages_without_reopening(index):
    reader = Engine(index.path)
    assert len(reader.search("xylophone", k=3)) == 0
    index.add([Passage(id="new", text="a xylophone in the town")])
    assert [h.id for h in reader.search("xylophone", k=3)] == ["new"]


def test_a_second_writer_is_refused(index):
    with pytest.raises(IndexBusy):
        Index.open(index.path, write=True)
    with pytest.raises(DecoupledError, match="opened for reading"):
        Index.open(index.path).add(passages(1))


def test_a_writer_that_comes_late_keeps_the_codec_of_the_first(both, tmp_path):
    path, others = tmp_path / "i", [Passage(id=f"q{n}", text="count " * n) for n in range(1, 20)]
    Index.create(path, both, codec="project:8+int8").close()
    with Index.open(path, write=True) as first, Index.open(path, write=True) as second:
        first.add(passages())
        fitted = (path / "codec.safetensors").read_bytes()
        with pytest.raises(IndexBusy, match="is being written by process"):
            second.add(others)
        assert (path / "codec.safetensors").read_bytes() == fitted
        first.close()
        second.add(others)
    assert (path / "codec.safetensors").read_bytes() == fitted
    with Index.open(path) as index:
        assert len(index) == 59


def test_two_processes_that_make_one_index_do_not_mix(both, tmp_path, monkeypatch):
    path = tmp_path / "i"
    real = manifest.copy_model

    def slow(source, target):
        with pytest.raises(IndexBusy, match="is being written by process"):
            Index.create(path, both, codec="int4")
        real(source, target)

    monkeypatch.setattr(manifest, "copy_model", slow)
    with Index.create(path, both, codec="fp32") as index:
        assert index.info()["codec"] == "fp32"
    assert Index.open(path).info()["codec"] == "fp32"


def test_a_disk_that_has_no_room_for_the_model(both, tmp_path, monkeypatch):
    both.save(tmp_path / "m")

    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device", source, None, target)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copy2", full)
        with pytest.raises(OSError, match="No space left") as raised:
            Index.create(tmp_path / "i", tmp_path / "m")
    assert re.fullmatch(r".*json: No space left on device; free some space", in_words(raised.value))
    with Index.create(tmp_path / "i", tmp_path / "m") as made:
        assert made.add([Passage(id="a", text="the river")]).added == 1


def test_another_model_is_refused_by_name(index, model, both):
    other = Model.split(both, at=1)
    with pytest.raises(
        IndexMismatch, match=rf"fingerprint {both.fingerprint}.*not by {other.fingerprint}"
    ):
        Index.open(index.path, model=other)
    assert len(Index.open(index.path, model=both)) == 40


@pytest.mark.parametrize("file", ["weights.safetensors", "tokenizer.json", "spec.json"])
def test_a_model_that_changed_inside_its_index_is_refused(index, file):
    target = index.path / "model" / file
    target.write_bytes(target.read_bytes() + b" ")
    with pytest.raises(DecoupledError, match=f"{file} in .* was damaged or replaced"):
        Engine(index.path).search(QUERY)


def test_an_older_index_compares_the_fingerprint_of_its_model(index, both, model, tmp_path):
    found = json.loads((index.path / "manifest.json").read_text())
    del found["model_crc32"], found["crc32"]
    (index.path / "manifest.json").write_text(json.dumps(found))
    assert Engine(index.path).search(QUERY)
    Model.split(model("bert", "span", seed=5), at=2).save(index.path / "model")
    with pytest.raises(IndexMismatch, match=found["fingerprint"]):
        Engine(index.path).search(QUERY)


def test_a_codec_that_changed_on_the_disk_is_refused(both, tmp_path):
    with Index.create(tmp_path / "i", both, codec="project:8+int8") as index:
        index.add(passages())
    file = tmp_path / "i" / "codec.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DecoupledError, match=r"codec.safetensors of .* \(.* not what was saved\)"):
        Index.open(tmp_path / "i")


def test_an_empty_index_answers_nothing(both, tmp_path):
    with Index.create(tmp_path / "i", both, codec="project:8+int8") as index:
        engine = Engine(index)
        assert len(engine.search("x")) == 0 and len(engine.ask("x")) == 0
        assert index.add([]).added == 0
        index.add(passages(3))
        assert len(engine.search("town river", k=3, first_stage="dense")) == 3


@pytest.mark.parametrize("codec", ["int8", "project:8+int8"])
def test_an_empty_index_has_its_codec_and_a_snapshot(both, tmp_path, codec):
    text = "the river floods the town"
    plain = Engine(both).rerank(QUERY, texts=[text], raw=True)
    with Index.create(tmp_path / "i", both, codec=codec) as index:
        reader = Index.open(tmp_path / "i")
        for each in (index, reader):
            empty = each.refresh()
            assert (len(empty), empty.passages, each.info()["version"]) == (0, 0, 0)
            with pytest.raises(MissingRecord, match="'p1'"):
                empty.locate(["p1"])
            close(Engine(each).rerank(QUERY, texts=[text], raw=True), plain, 0.1)
        runtime = index.runtime
        index.add(passages(12))
        assert len(reader.refresh()) == 12 and reader.codec.name == codec
        assert (index.runtime is runtime) == (codec == "int8"), (
            "another one must know what was fitted"
        )


def test_a_joint_model_cannot_be_indexed(model, tmp_path):
    with pytest.raises(SpecError, match=r"nothing to store; split it first"):
        Index.create(tmp_path / "i", model("bert", "rank"))
    assert not (tmp_path / "i").exists()


def test_other_folders_are_left_alone(both, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    with pytest.raises(InputError, match="exists and is not an index"):
        Index.create(tmp_path / "mine", both)
    with pytest.raises(InputError, match="does not exist, so it is not an index"):
        Index.open(tmp_path / "none")
    with pytest.raises(InputError, match="index CORPUS -o INDEX"):
        Index.open(tmp_path / "mine")
    Index.create(tmp_path / "twice", both)
    with pytest.raises(InputError, match="already holds an index"):
        Index.create(tmp_path / "twice", both)


def test_building_streams(both, tmp_path, monkeypatch):
    """No more than a part and the sample are ever held."""
    monkeypatch.setattr(ingest, "PART", 10)
    waiting: set[int] = set()
    most = 0

    def stream():
        nonlocal most
        for number, passage in enumerate(passages(100)):
            waiting.add(number)
            most = max(most, len(waiting))
            yield passage

    def progress(done):
        for number in range(done.added):
            waiting.discard(number)

    with Index.create(tmp_path / "i", both) as index:
        index.add(stream(), progress=progress)
        assert len(index) == 100
    assert most <= 31


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["a text"],
            r"a passage is 'a text'; expected Passage\(id=…, text=…\), or what read_passages",
        ),
        ([{"id": "a", "text": "b"}], r"a passage is \{'id': 'a'.*; expected Passage"),
        ("docs.jsonl", r"add was given 'docs.jsonl'; give it a list of passages, or read_passages"),
        (Passage(id="a", text="b"), "add was given .*; give it a list"),
        ([Passage(id=7, text="b")], "the id of a passage is 7; expected a string"),
    ],
)
def test_what_is_no_passage_is_explained(index, given, message):
    with pytest.raises(InputError, match=message):
        index.add(given)
    assert len(index) == 40


def test_an_unknown_runtime_is_told_at_once(index, both, tmp_path):
    with pytest.raises(InputError, match="runtime 'fast' is unknown; choose one of auto"):
        Engine(index.path, runtime="fast")
    with pytest.raises(InputError, match="runtime 'fast' is unknown"):
        Index.create(tmp_path / "new", both, runtime="fast")
    assert not (tmp_path / "new").exists()


def test_a_prompt_shows_what_a_thing_is(index, both):
    model = "bert width 32, split 2 of 3"
    assert repr(both) == "Model(bert, split 2 of 3, span+rank)"
    assert repr(index) == f"Index('{index.path}', 40 passages, fp32, {model})"
    assert repr(Engine(index)) == f"Engine({index})" and repr(Engine(both)) == f"Engine({model})"


def test_senseless_requests_are_explained(index):
    engine = Engine(index)
    with pytest.raises(InputError, match=r"ids is one string \('p1'\); give a list of ids"):
        engine.rerank(QUERY, ids="p1")
    with pytest.raises(InputError, match=r"a text must be a string or a Passage, not dict \(\{'te"):
        engine.rerank(QUERY, texts=[{"text": "a river"}])
    for ask in (engine.search, engine.ask):
        with pytest.raises(InputError, match="k=0; choose 1 or more"):
            ask(QUERY, 0)
    with pytest.raises(InputError, match="candidates=0; choose 1 or more"):
        engine.ask(QUERY, candidates=0)


def test_engine_without_index_says_so(both):
    with pytest.raises(InputError, match="model but no index"):
        Engine(both).search("x")
    with pytest.raises(InputError, match="texts is one string"):
        Engine(both).rerank("x", texts="one string")


def test_timing_adds_up(index):
    timing = Engine(index).search(QUERY).timing
    parts = timing.retrieve_ms + timing.fetch_ms + timing.encode_ms + timing.cross_ms
    assert 0 < parts <= timing.total_ms


def test_an_index_is_reopened_with_its_loaded_model(index, both, tmp_path):
    index.close()
    reader = Index.open(index.path)
    runtime = reader.runtime
    with reader.reopen(write=True) as writer:
        assert writer.runtime is runtime
        writer.add([Passage(id="new", text="a xylophone")])
    assert len(reader.refresh().locate(["new"])) == 1
    index.path.rename(tmp_path / "old")
    with pytest.raises(InputError, match="does not exist"):
        reader.reopen()
    Index.create(index.path, both, codec="int8").close()
    other = reader.reopen()
    assert len(other) == 0 and other.runtime is not runtime


def test_parts_are_a_few_seconds_of_work_however_long_the_passages_are(both, tmp_path, monkeypatch):
    """What a kill costs is bounded by time, and progress counts the tokens that were encoded."""
    monkeypatch.setattr(ingest, "FIRST_CHARS", 200)
    monkeypatch.setattr(ingest, "PART_SECONDS", 0.0)
    seen, sizes = [], []
    with Index.create(tmp_path / "i", both, codec="fp32") as index:
        encode = index._encode
        monkeypatch.setattr(index, "_encode", lambda part: sizes.append(len(part)) or encode(part))
        made = index.add(passages(30), progress=seen.append)
    assert made.added == sum(sizes) == 30
    assert 1 < sizes[0] < 20 and sizes[-1] == 1  # no time at all: as little as can be
    tokens = [done.tokens for done in seen]
    assert tokens == sorted(tokens) and tokens[-1] == made.tokens > 30 * 5


def test_passages_that_only_moved_are_not_encoded_again(both, tmp_path, monkeypatch):
    given = passages(12)
    with Index.create(tmp_path / "i", both, codec="int8") as index:
        index.add(given)
        before = [h.score for h in Engine(index).rerank(QUERY, ids=["p3"], raw=True)]
        moved = [Passage(id=p.id, text=p.text, title=p.title, meta={"n": -1}) for p in given]
        moved[5] = Passage(id="p5", text="another river", title=given[5].title)
        parts = []
        encode = index._encode
        monkeypatch.setattr(index, "_encode", lambda part: parts.extend(part) or encode(part))
        done = index.add(moved)
        assert [p.id for p in parts] == ["p5"]
        assert (done.added, done.unchanged, len(index)) == (1, 11, 12)
        assert [h.score for h in Engine(index).rerank(QUERY, ids=["p3"], raw=True)] == before
        hits = Engine(index).search("river", 12, first_stage="lexical", where={"n": -1})
        assert hits and all(hit.meta == {"n": -1} for hit in hits)
        assert index.add(moved).unchanged == 12
    with Index.open(tmp_path / "i") as index:
        assert {e.id: e.meta for e in index.store.snapshot.scan()}["p3"] == {"n": -1}
