"""Datasets → mixture → mined negatives → groups: what a reader is trained on."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from blocks import in_blocks
from groups import FORMS, Pool
from mining import mine
from mixture import Dataset, Kind, Mixture
from reader_recipe import Sampling

from decoupled.errors import InputError
from decoupled.measure.pairs import Pair, Span
from decoupled.model.tokens import Passage
from decoupled.train.data.cache import Cache
from decoupled.train.losses import UNLABELLED
from toy import reader_sets

DRAWING = Sampling(read=4, passages=4, tokens=64, steps=50)


@pytest.fixture(scope="module")
def mixture() -> Mixture:
    return Mixture.of(reader_sets(), held=0.2, seed=1)


@pytest.fixture(scope="module")
def pool(model, mixture) -> Pool:
    made = Pool(mixture, model("bert", "bare").tokenizer, DRAWING, seed=1)
    made.negatives = mine(mixture, None, Cache(), count=6)
    return made


# Datasets -----------------------------------------------------------------------------------------


def test_datasets_are_read_by_what_they_hold(tmp_path):
    squad = {"title": "A", "paragraphs": [{"context": "Ann met Bob.", "qas": []}]}
    squad["paragraphs"][0]["qas"] = [
        {"id": "1", "question": "Who?", "answers": [{"text": "Bob", "answer_start": 8}]},
        {"id": "2", "question": "Why?", "answers": []},
    ]
    files = {
        "squad.json": json.dumps({"version": "2", "data": [squad]}),
        "pairs.jsonl": '{"query": "what", "passage": "a text", "title": "T"}',
        "docs.jsonl": '{"id": "x", "text": "a passage alone"}',
        "odd=name.jsonl": '{"query": "q", "passage": "p"}',
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    read = Dataset.read(f"{tmp_path}/squad.json=0.5")
    assert (len(read.pairs), read.weight) == (2, 0.5)
    assert [len(Dataset.read(tmp_path / n).pairs) for n in ("pairs.jsonl", "docs.jsonl")] == [1, 0]
    assert Dataset.read(tmp_path / "docs.jsonl").passages[0].text == "a passage alone"
    assert Dataset.read(tmp_path / "odd=name.jsonl").weight == 1.0
    made = Mixture.of([read, Dataset.read(tmp_path / "pairs.jsonl")], held=0, synthetic=False)
    assert [asked.kind for asked in made.asked] == [Kind.LABELLED, Kind.UNANSWERABLE, Kind.LABELLED]
    assert [asked.weight for asked in made.asked] == [0.5, 0.5, 1.0]
    assert [asked.reads for asked in made.asked] == [True, True, False]
    with pytest.raises(InputError, match=r"the weight is -1; choose a number from 0"):
        Dataset.read(f"{tmp_path}/squad.json=-1")


def test_what_cannot_be_learned_from_is_refused():
    pair = Pair(query="q", passage="p", label="entailment", id="x")
    with pytest.raises(InputError, match=r"nli: the pair 'x' has the label 'entailment'; a reader"):
        Mixture.of([Dataset(name="nli", pairs=[pair])])
    with pytest.raises(InputError, match=r"the datasets hold no texts"):
        Mixture.of([Dataset(name="empty")])
    with pytest.raises(InputError, match=r"1 texts give no query to train on"):
        Mixture.of([Dataset(name="short", passages=[Passage(id="1", text="too short")])])


def test_a_mixture_holds_each_text_once_and_asks_of_every_one(mixture):
    real = [n for n, origin in enumerate(mixture.origin) if n == origin]
    texts = [mixture.texts[n].text for n in real]
    assert len(set(texts)) == len(texts)
    made = [asked for asked in mixture.asked if asked.kind == Kind.SYNTHETIC]
    asked_of = {mixture.origin[asked.own[0]] for asked in made}
    assert asked_of == set(real), "passages without queries are asked about too"
    for asked in made:
        own = asked.own[0]
        if mixture.origin[own] != own:
            assert asked.query not in mixture.texts[own].text
    assert 0 < sum(asked.held for asked in mixture.asked) < len(mixture.asked) / 2
    assert not any(asked.held for asked in made)
    assert Mixture.of(reader_sets(), held=0.2, seed=1).digest() == mixture.digest()
    assert Mixture.of(reader_sets(), held=0.2, seed=2).digest() != mixture.digest()


# Negatives ----------------------------------------------------------------------------------------


def test_what_may_answer_is_no_negative(tmp_path):
    long = "the king of the northern castle built seven bridges over the river in one summer"
    texts = {
        "own": f"{long} and then he slept",
        "copy": f"{long} and then he slept well",
        "answer": "some say the king never built bridges but a tower for the moon",
        "other": "the queen of the castle built no bridges and the king knew",
        "also": "bridges were built by the king for the castle and its people long ago",
        "given": "nothing about it",
    }
    asked = "who built the bridges of the king"
    own = Pair(
        query=asked, passage=texts["own"], answers=(Span(text="he slept", start=85),), id="1"
    )
    own = replace(own, answers=(Span(text="then he slept", start=texts["own"].index("then he")),))
    rest = [
        Pair(query=asked, passage=texts["given"], label=0, id="1", group="g"),
        replace(own, group="g"),
    ]
    also = Dataset(name="b", pairs=[Pair(query=asked.upper(), passage=texts["also"], id="2")])
    plain = [Passage(id=name, text=texts[name]) for name in ("copy", "answer", "other")]
    plain[1] = replace(plain[1], text=texts["answer"] + " and then he slept")
    sets = [Dataset(name="a", pairs=rest), also, Dataset(name="c", passages=plain)]
    made = Mixture.of(sets, held=0, synthetic=False)
    found = mine(made, None, Cache(tmp_path), count=6)[0]
    kept = [made.texts[n].text for n in found if n >= 0]
    assert kept == [texts["given"], texts["other"]], (
        "judged ones first; no copy, answer or positive"
    )
    vectors = torch.nn.functional.one_hot(torch.zeros(2, dtype=torch.long), 3).float()
    near = torch.eye(3)[[1, 1, 0, 1, 1, 0]][: len(made.texts)]
    both = mine(made, (vectors, near), Cache(tmp_path / "b"), count=1)
    assert both.shape == (2, 2), "half by words, half by vectors"


def test_mining_goes_on_and_is_done_once(mixture, tmp_path, monkeypatch):
    found = mine(mixture, None, Cache(tmp_path), count=4)
    monkeypatch.setattr("mining.Bm25", None)
    assert np.array_equal(mine(mixture, None, Cache(tmp_path), count=4), found)


# Groups -------------------------------------------------------------------------------------------


def test_groups_begin_with_the_answer_and_go_on_without_it(pool, mixture):
    examples, soft = pool.draw("read", 4, 0, 1)
    assert examples.per_group == 2 and examples.groups == pool.steps(4) * 4 == len(soft)
    owner = {}
    for title in (0, 1):
        sizes = zip(pool.texts.first[title], pool.texts.count[title], strict=True)
        for text, (first, count) in enumerate(sizes):
            owner |= dict.fromkeys(range(first, first + count), text)
    seen = set()
    for row in range(0, len(examples), 2):
        asked = mixture.asked[examples.query_of[row] // FORMS]
        assert not asked.held and asked.reads
        seen.add(asked.kind)
        window = pool.texts.windows[examples.passage_of[row]]
        assert owner[int(examples.passage_of[row])] in asked.own
        start, end = examples.label[row]
        if asked.kind == Kind.UNANSWERABLE:
            assert (start, end) == (0, 0) and soft[row // 2] == 1
        else:
            first, last = window.offsets[start - 1, 0], window.offsets[end - 1, 1]
            assert window.text[first:last] == asked.spans[0].text
        other = mixture.origin[owner[int(examples.passage_of[row + 1])]]
        assert other not in mixture.barred(asked)
        holds = any(answer in mixture.lowered[other] for answer in asked.answers)
        assert examples.label[row + 1].tolist() == ([UNLABELLED] * 2 if holds else [0, 0])
    assert seen == {Kind.LABELLED, Kind.UNANSWERABLE}


def test_a_round_is_the_numbers_own_and_mixes_kinds_titles_and_noise(pool, mixture):
    one, again, other = (pool.draw("rank", 4, n, 1)[0] for n in (0, 0, 1))
    assert np.array_equal(one.passage_of, again.passage_of)
    assert not np.array_equal(one.passage_of, other.passage_of)
    queries = np.concatenate([pool.draw("rank", 4, n, 1)[0].query_of[::4] for n in range(6)])
    kinds = pool.kind[queries // FORMS]
    assert np.mean(kinds == Kind.SYNTHETIC) == pytest.approx(DRAWING.synthetic, abs=0.05)
    assert np.mean(queries % FORMS > 0) == pytest.approx(DRAWING.noise, abs=0.1)
    own = np.concatenate([pool.draw("rank", 4, n, 1)[0].passage_of[::4] for n in range(6)])
    titled = own >= pool.texts.count[0].sum()
    named = [bool(mixture.texts[mixture.asked[q // FORMS].own[0]].title) for q in queries]
    assert titled.sum() == pytest.approx(np.sum(named) / 2, rel=0.35), "half of those that have one"
    one = int(own[titled][0])
    window, title = pool.texts.windows[one], pool.texts.shown[one].split(".")[0]
    assert title in {passage.title for passage in mixture.texts} and title not in window.text


def test_weights_say_how_often_a_query_comes(model):
    heavy, light = reader_sets()[0], reader_sets()[1]
    sets = [replace(heavy, weight=3.0), replace(light, weight=0.5)]
    made = Mixture.of(sets, held=0, synthetic=False)
    pool = Pool(made, model("bert", "bare").tokenizer, replace(DRAWING, synthetic=0.0), seed=0)
    rows = pool._passes(pool.parts["rank"], 4000, np.random.default_rng(0))
    times = np.bincount(rows, minlength=len(made.asked))
    mean = [times[pool.weight == weight].mean() for weight in (3.0, 0.5)]
    assert mean[0] / mean[1] == pytest.approx(6.0, rel=0.15)


def test_an_answer_of_several_words_is_labelled_from_its_first_to_its_last(model):
    pairs = [
        replace(pair, answers=(Span(text=" ".join(pair.passage.split()[1:4]), start=at),))
        for pair in reader_sets()[0].pairs
        if pair.answers and (at := pair.passage.index(" ") + 1)
    ]
    made = Mixture.of([Dataset(name="a", pairs=pairs)], held=0, synthetic=False)
    pool = Pool(made, model("bert", "bare").tokenizer, DRAWING, seed=1)
    pool.negatives = mine(made, None, Cache(), count=6)
    examples, _ = pool.draw("read", 4, 0, 1)
    for row in range(0, len(examples), 2):
        window = pool.texts.windows[examples.passage_of[row]]
        start, end = examples.label[row]
        first, last = window.offsets[start - 1, 0], window.offsets[end - 1, 1]
        asked = made.asked[examples.query_of[row] // FORMS]
        assert start < end and window.text[first:last] == asked.spans[0].text


def test_blocks_go_on_where_they_stopped(tmp_path):
    made, lines = [], []

    def make(part):
        made.append(part.start)
        if part.start == 4 and len(made) == 3:
            raise KeyboardInterrupt
        return np.arange(part.start, part.stop)

    cache = Cache(tmp_path / "c", lines.append)
    with pytest.raises(KeyboardInterrupt):
        in_blocks(cache, "v", 7, 2, make)
    assert in_blocks(cache, "v", 7, 2, make).tolist() == list(range(7))
    assert made == [0, 2, 4, 4, 6], "what was there is not made again"
    assert {**lines[-1], "seconds": 0} == {"phase": "v", "step": 7, "total": 7, "seconds": 0}
    assert (
        in_blocks(Cache(), "v", 3, 2, lambda part: np.ones(part.stop - part.start)).tolist()
        == [1] * 3
    )
