"""Pruning: sentences that matter are kept, ranks stay as they are, any text has units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import decoupled as dc
from decoders import save_decoder
from decoupled.model.folder import starter_model
from decoupled.model.spec import ProjectionSpec
from decoupled.search.prune import joined, units

TEXT = (
    "The moon is far away. Dracula was written by Bram Stoker in 1897. Otters eat fish.\n"
    "- first item of a list\n- second item\n\ndef f(x):\n    return x;\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("これは本です。あれは月です。", ["これは本です。", "あれは月です。"]),
        ("यह पहला है। यह दूसरा है।", ["यह पहला है।", "यह दूसरा है।"]),
        ("هل هذا كتاب؟ نعم هو كتاب۔", ["هل هذا كتاب؟", "نعم هو كتاب۔"]),
        ("Steps:\n- one\n- two\n1. three", ["Steps:", "- one", "- two", "1. three"]),
        ("int a = 1;\nint b = 2;\n", ["int a = 1;", "int b = 2;"]),
        ("A line that was\nwrapped is one.", ["A line that was\nwrapped is one."]),
        ("  \n ", []),
        ("", []),
    ],
)
def test_units_of_a_text(text, expected):
    assert [text[a:b] for a, b in units(text)] == expected


def test_what_is_left_out_is_marked():
    text = "One is here. Two is here. Three is here."
    one, two, three = units(text)
    assert joined(text, [one, two, three]) == text
    assert joined(text, [two]) == "… Two is here. …"
    assert joined(text, [one, three]) == "One is here. … Three is here."
    assert joined(text, []) == ""


@pytest.fixture(scope="module")
def starter() -> dc.Engine:
    return dc.Engine(starter_model())


def test_the_sentence_with_the_answer_is_kept_and_the_ranks_stay(starter):
    texts = [TEXT, "Otters swim in rivers. They eat fish."]
    plain = starter.rerank("Who wrote Dracula?", texts=texts)
    pruned = starter.rerank("Who wrote Dracula?", texts=texts, prune="auto", highlight=True)
    assert [(h.id, h.score) for h in plain] == [(h.id, h.score) for h in pruned]
    best, other = pruned
    assert best.pruned_text == "… Dracula was written by Bram Stoker in 1897. …"
    assert [best.text[a:b] for a, b in best.kept] == [best.text[slice(*best.highlight)]]
    assert best.text == TEXT and other.pruned_text == "" and other.kept == ()
    assert plain[0].pruned_text is None and "pruned_text" not in plain[0].to_json()
    assert len(best.sentences) == len(units(TEXT)) and max(p for *_, p in best.sentences) > 0.5


def test_answers_come_with_pruned_passages(starter):
    (answer, *_) = starter.ask("Who wrote Dracula?", texts=[TEXT], prune=0.5)
    assert answer.text == "Bram Stoker" and answer.pruned_text.count("Dracula") == 1
    assert answer.evidence[0].pruned_text == answer.pruned_text


def test_a_model_without_span_head_prunes_by_matches(model, tmp_path):
    with dc.Index.create(
        tmp_path / "docs.idx", dc.Model.split(model("bert", "rank"), at=2)
    ) as index:
        index.add([dc.Passage(id="a", text="the moon is far. a town by a river. the moon again.")])
    engine = dc.Engine(tmp_path / "docs.idx")
    assert not any(head.kind == "span" for head in engine.spec.heads)
    (hit,) = engine.search("the moon", prune=0.0, highlight=True)
    assert hit.kept == tuple(units(hit.text)) and hit.pruned_text == hit.text
    assert hit.highlight in hit.kept
    (none,) = engine.search("the moon", prune=1.0)
    assert none.pruned_text == ""


@pytest.mark.parametrize("texts", [False, True], ids=["stored", "texts"])
def test_a_decoder_with_keys_and_values_prunes_by_words(tmp_path, texts):
    save_decoder(tmp_path / "theirs", "qwen3")
    decoder = dc.Model.split(dc.Model.open(tmp_path / "theirs"), at=2, store="kv")
    text = "Rain falls on the sea. A king wrote Dracula!\nNobody asks who."
    with dc.Index.create(tmp_path / "docs.idx", decoder) as index:
        index.add([dc.Passage(id="a", text=text)])
    source = {"texts": [text]} if texts else {"ids": ["a"]}
    engine = dc.Engine(tmp_path / "docs.idx")
    plain = engine.rerank("Who wrote Dracula?", **source)
    (hit,) = engine.rerank("Who wrote Dracula?", **source, prune="auto", highlight=True)
    assert hit.score == plain[0].score and [n[:2] for n in hit.sentences] == units(text)
    rain, king, nobody = (chance for *_, chance in hit.sentences)
    assert king > nobody > rain and text[slice(*hit.highlight)] == "A king wrote Dracula!"


def test_a_projection_of_passages_alone_prunes_by_words(model):
    split = dc.Model.split(model("bert", "rank"), at=2)
    narrow = replace(split.spec, projection=ProjectionSpec(width=8, query=False))
    shape = {
        name: tensor.shape for name, tensor in narrow.tensors().items() if "projection" in name
    }
    fresh = {name: np.ones(own, np.float32) for name, own in shape.items()}
    (hit,) = dc.Engine(split.rebuild(narrow, fresh)).rerank(
        "the moon", texts=["A town by a river. The moon again."], prune=0.0
    )
    assert hit.sentences[1][2] > hit.sentences[0][2]


@pytest.mark.parametrize("share", [1.5, -0.1, "most", True])
def test_a_threshold_that_is_no_probability(starter, share):
    with pytest.raises(dc.InputError, match="choose a probability from 0 to 1, or 'auto'"):
        starter.rerank("who", texts=["a text"], prune=share)
    with pytest.raises(dc.InputError, match=r"threshold=[^;]*; choose a probability"):
        starter.ask("who", texts=["a text"], threshold=share)


def test_a_long_guess_is_cut_at_a_word(starter):
    (guess,) = starter.ask("Who wrote Dracula?", texts=[TEXT], k=1, threshold=0)
    long = replace(guess, text="river " * 40)
    shown = dc.Answers(query="q", items=(), rejected=(long,)).verdict
    assert "river …” at" in shown and len(shown) < 200


def test_embeddings_are_of_length_one(starter):
    vectors = starter.embed(["Who wrote Dracula?", TEXT])
    query = starter.embed(["the author of Dracula"], side="query")
    assert vectors.shape == (2, 256) and abs((vectors**2).sum(1) - 1).max() < 1e-5
    assert (query @ vectors.T).argmax() in (0, 1)
