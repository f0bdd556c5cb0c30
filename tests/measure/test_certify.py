"""A split model beside its joint model, in one run."""

import json

import numpy as np
import pytest

from decoupled.errors import InputError
from decoupled.measure.certify import JudgedList, certify
from decoupled.model.model import Model


@pytest.fixture
def lists(tmp_path):
    draw = np.random.default_rng(0)
    words = [f"word{n}" for n in range(40)]
    rows = [
        {"query": f"query {n}", "passage": " ".join(draw.choice(words, 12)), "label": int(grade)}
        for n in range(4)
        for grade in (0, 1, 2, 0, 1, 0)
    ]
    path = tmp_path / "lists.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_a_split_at_the_bottom_is_the_joint_model(checkpoint, lists, tmp_path):
    folder = checkpoint("bert", "rank")
    Model.split(folder, at=0).save(tmp_path / "joint")
    Model.split(folder, at=2).save(tmp_path / "split")
    made = certify(tmp_path / "split", data=lists, runtime="torch")
    assert (made.split, made.layers, made.queries, made.candidates) == (2, 3, 4, 6.0)
    assert made.teacher == folder.name, "the checkpoint that it was split from"
    assert made.ndcg is not None and 0 < min(made.ndcg) <= max(made.ndcg) <= 1
    assert made.joint_ms > 0 and made.split_ms > 0 and made.bytes_per_token > 0
    itself = certify(tmp_path / "split", teacher=tmp_path / "joint", data=lists, runtime="torch")
    assert itself.ndcg == pytest.approx(made.ndcg) and itself.tau == pytest.approx(made.tau)
    plain = made.to_json()
    assert plain["share"] == pytest.approx(made.ndcg[1] / made.ndcg[0], abs=1e-4)
    assert plain["bytes_of_150_tokens"] == round(150 * made.bytes_per_token)
    assert json.loads(json.dumps(plain))["kind"] == "certificate"
    assert made.card().startswith("# split: split at 2 of 3") and "| nDCG@10 |" in made.card()


def test_gains_are_of_the_first_ten_by_score():
    one = JudgedList(query="q", texts=("a", "b", "c"), grades=(0, 3, 1))
    assert one.gain([0.1, 0.9, 0.5]) == pytest.approx(1.0)
    ideal = 7 + 1 / np.log2(3)
    assert one.gain([0.9, 0.5, 0.1]) == pytest.approx((7 / np.log2(3) + 1 / 2) / ideal)


def test_a_split_teacher_and_lone_passages_are_refused(checkpoint, lists, tmp_path):
    Model.split(checkpoint("bert", "rank"), at=1).save(tmp_path / "split")
    with pytest.raises(InputError, match="name the joint model"):
        certify(tmp_path / "split", teacher=tmp_path / "split", data=lists, runtime="torch")
    alone = tmp_path / "alone.jsonl"
    alone.write_text('{"query": "q", "passage": "p"}\n', encoding="utf-8")
    with pytest.raises(InputError, match="at least two passages"):
        certify(tmp_path / "split", data=alone, runtime="torch")
