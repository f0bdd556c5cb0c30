"""A classifier of two labels ranks by the odds of one; what cannot rank is refused before it is indexed."""

from __future__ import annotations

import json

import numpy as np
import pytest

import decoupled as dc
from commands import Commands
from decoupled.model.parts.head import rank_label_of
from decoupled.model.spec import SpecError
from served import TEXTS as PASSAGES
from tiny import edit_config, save_tiny

TEXTS = list(PASSAGES.values())[:3]  # of one window each
LABELS = {
    "relevant": ("irrelevant", "relevant"),
    "reversed": ("entailment", "not_entailment"),
    "dull": ("cat", "dog"),
}


@pytest.fixture
def two(tmp_path):
    def make(labels):
        folder = tmp_path / "-".join(labels)
        save_tiny(folder, "bert", "classes", tokenizer=True, num_labels=2)
        edit_config(
            folder, id2label=dict(enumerate(labels)), label2id={n: i for i, n in enumerate(labels)}
        )
        return folder

    return make


@pytest.fixture
def cli(monkeypatch, capsys):
    return Commands(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (("irrelevant", "relevant"), "relevant"),
        (("LABEL_0", "LABEL_1"), "LABEL_1"),
        (("entailment", "not_entailment"), "entailment"),
        (("not_duplicate", "duplicate"), "duplicate"),
        (("NEGATIVE", "POSITIVE"), "POSITIVE"),
        (("cat", "dog"), ""),
        (("contradiction", "entailment", "neutral"), ""),
        (("positive", "relevant"), ""),
    ],
)
def test_the_name_of_a_label_tells(labels, expected):
    assert rank_label_of(labels) == expected


@pytest.mark.parametrize("labels", [LABELS["relevant"], LABELS["reversed"]])
def test_its_ranking_is_the_probability_of_the_label(two, labels, tmp_path):
    model = dc.Model.split(two(labels), at=2)
    label = rank_label_of(labels)
    with dc.Index.create(tmp_path / "i", model, codec="fp32") as index:
        index.add(dc.Passage(id=str(n), text=text) for n, text in enumerate(TEXTS))
        engine = dc.Engine(index)
        hits = engine.search("the river", 3, first_stage="dense")
        assert len(hits) == 3 and [h.score for h in hits] == sorted(
            (h.score for h in hits), reverse=True
        )
        shares = engine.classify([("the river", hit.text) for hit in hits])
        expected = [share.scores[label] for share in shares]
        np.testing.assert_allclose([h.score for h in hits], expected, atol=1e-5)
        other = next(name for name in labels if name != label)
        turned = dc.Engine(model.rank_by(other)).rerank("the river", texts=TEXTS)
        straight = dc.Engine(model).rerank("the river", texts=TEXTS)
        assert [h.id for h in turned] == [h.id for h in straight][::-1]


def test_split_says_by_which_label(cli, two, tmp_path):
    done = cli("split", two(LABELS["relevant"]), "-o", tmp_path / "a", "--at", 2)
    assert "ranks by the odds of 'relevant' (--rank-label)" in done.err
    done = cli("split", two(LABELS["dull"]), "-o", tmp_path / "b", "--at", 2)
    assert "classifies (cat, dog) and does not rank; to rank with it, give --rank-label" in done.err
    done = cli(
        "split", tmp_path / "b", "-o", tmp_path / "c", "--at", 2, "--rank-label", "dog", "--json"
    )
    assert done.json["rank_label"] == "dog"
    assert dc.Model.load(tmp_path / "c").spec.head("classes").rank_label == "dog"
    wrong = cli(
        "split", two(LABELS["dull"]), "-o", tmp_path / "d", "--at", 2, "--rank-label", "cow"
    )
    assert (
        "rank label 'cow', but the model's labels are cat, dog; choose one of two" in wrong.failure
    )


def test_what_cannot_rank_is_refused_at_index_and_still_classifies(cli, two, checkpoint, tmp_path):
    (corpus := tmp_path / "c.jsonl").write_text(json.dumps({"id": "a", "text": "a town"}) + "\n")
    cli("split", two(LABELS["dull"]), "-o", tmp_path / "two", "--at", 2)
    cli("split", checkpoint("bert", "classes"), "-o", tmp_path / "three", "--at", 2)
    said = cli("index", corpus, "-o", tmp_path / "i", "--model", tmp_path / "two").failure
    assert "a classifier of cat, dog does not rank passages; name the label" in said
    assert "split --rank-label dog" in said
    said = cli("index", corpus, "-o", tmp_path / "i", "--model", tmp_path / "three").failure
    assert "neutral does not rank passages; only models of one value or of two labels do" in said
    assert not (tmp_path / "i").exists()
    with pytest.raises(SpecError, match="does not rank"):
        dc.Engine(tmp_path / "two").rerank("x", texts=["y"])
    labels = cli("classify", "--model", tmp_path / "two", "a town", "the river", "--json").json[
        "labels"
    ]
    assert set(labels[0]["scores"]) == {"cat", "dog"}


def test_a_model_of_one_value_ranks_by_it(checkpoint, tmp_path):
    model = dc.Model.split(checkpoint("bert", "rank", problem_type="regression"), at=2)
    assert [h.kind for h in model.spec.heads] == ["rank"]
    raw = [h.score for h in dc.Engine(model).rerank("the river", texts=TEXTS, raw=True)]
    assert raw == sorted(raw, reverse=True) and len(set(raw)) > 1
