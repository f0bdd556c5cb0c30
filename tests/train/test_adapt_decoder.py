"""A decoder that was split learns the texts of an index, and one that lost nothing says so."""

from __future__ import annotations

from pathlib import Path

import pytest

import decoupled as dc
from decoders import AFTER, BEFORE, save_decoder
from decoupled.errors import InputError
from decoupled.measure.certify import certify
from decoupled.train.imitate import adapt_recipe
from toy import word_passages

RECIPE = {"optimiser.batch": 8, "optimiser.lr": 1e-3, "drawing.passages": 4}


def test_a_query_first_decoder_wins_agreement(tmp_path: Path) -> None:
    save_decoder(tmp_path / "theirs", "qwen3", BEFORE)
    model = dc.Model.split(dc.Model.open(tmp_path / "theirs"), at=2)
    with dc.Index.create(tmp_path / "docs.idx", model, codec="fp32") as index:
        index.add(word_passages(40, words=8))
    recipe = adapt_recipe({**RECIPE, "optimiser.epochs": 5.0})
    made = dc.adapt(tmp_path / "docs.idx", out=tmp_path / "own", limit=40, recipe=recipe)
    assert made.teachers == ("joint",) and made.after.tau > made.before.tau
    assert made.after.ndcg_at_10 > made.before.ndcg_at_10


def test_keys_and_values_leave_nothing_to_learn(tmp_path: Path) -> None:
    """Said before anything is computed, and `certify` needs no template to see that nothing is lost."""
    save_decoder(tmp_path / "theirs", "llama", AFTER)
    (tmp_path / "theirs/template.json").rename(tmp_path / "prompt.json")
    joint = dc.Model.open(tmp_path / "theirs", str(tmp_path / "prompt.json"))
    model = dc.Model.split(joint, at=2, store="kv")
    model.save(tmp_path / "model")
    with dc.Index.create(tmp_path / "docs.idx", model) as index:
        index.add(word_passages(30, words=8))
    with pytest.raises(InputError, match="there is nothing to learn; split it with store='state'"):
        dc.adapt(tmp_path / "docs.idx", out=tmp_path / "own")
    assert not list(tmp_path.glob("own*/**/*.npz"))
    pairs = tmp_path / "pairs.jsonl"
    rows = [
        f'{{"query": "castle {n}", "passage": "{p.text}"}}\n'
        for n in (1, 2)
        for p in word_passages(6)
    ]
    pairs.write_text("".join(rows))
    for codec, least in (("fp32", 0.999), ("int8", 0.3)):
        made = certify(tmp_path / "model", data=pairs, codec=codec, runtime="torch")
        assert made.teacher == "the same weights unsplit" and made.tau >= least
