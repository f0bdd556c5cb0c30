"""Models from a description alone: the spec files of the documentation, and a student at random."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import decoupled as dc
from decoupled.errors import SpecError
from decoupled.index.documents.passages import starter_tokenizer
from decoupled.methods.pretrain.scratch import random_model, read_spec
from decoupled.model.split import with_split
from decoupled.train.recipe import Distillation, Optimiser, Recipe, Weights
from toy import span_pairs

PAGE = Path(__file__).parents[2] / "docs/methods/README.md"


def examples() -> list[dict]:
    """Every JSON object that the page shows."""
    found, decoder = [], json.JSONDecoder()
    for block in re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S):
        text = block.strip()
        while text:
            data, end = decoder.raw_decode(text)
            found.append(data)
            text = text[end:].strip()
    return found


def kinds(data: dict) -> set[str]:
    return {one["kind"] for one in [data.get("table"), *data.get("attention", ())] if one}


@pytest.fixture(scope="module")
def tokenizer():
    return starter_tokenizer()


@pytest.mark.parametrize(
    "data", examples(), ids=lambda data: "-".join(sorted(kinds(data))) or "plain"
)
def test_a_spec_file_of_the_page_is_built_split_and_run(data, tokenizer, tmp_path):
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(data))
    model = random_model(with_split(read_spec(file, tokenizer), 1), tokenizer)
    assert len(model.spec.layers) == data["layers"]
    built = {n: tuple(t.shape) for n, t in model.net.state_dict().items()}
    assert {n: t.shape for n, t in model.spec.tensors().items()} == built
    ids, real = torch.arange(1000, 1006)[None], torch.ones(1, 6, dtype=torch.bool)
    with torch.no_grad():
        states = [model.net.input(side, ids, real)[0] for side in ("query", "passage")]
        x_BTD, frame = model.net.join(states[0], real, states[1], real)
        assert model.net.stack(x_BTD, frame, first=1).isfinite().all()


def test_kinds_must_be_one_or_as_many_as_layers(tokenizer, tmp_path):
    file = tmp_path / "spec.json"
    each = {"kind": "lsra", "heads": 2, "head_width": 16}
    file.write_text(json.dumps({"layers": 3, "width": 64, "heads": 4, "attention": [each] * 2}))
    with pytest.raises(SpecError, match="2 kinds of attention for 3 layers; give one for all"):
        read_spec(file, tokenizer)
    file.write_text(json.dumps({"layers": 3, "width": 63, "heads": 3, "attention": [each]}))
    with pytest.raises(SpecError, match="4 kernels for half of 63 columns"):
        read_spec(file, tokenizer)


def test_a_described_student_begins_at_random_and_learns_from_the_model(model, tmp_path):
    whole, file = model("bert", "span"), tmp_path / "light.json"
    each = {"kind": "lsra", "heads": 2, "head_width": 4, "kernel": 3}
    file.write_text(json.dumps({"layers": 2, "width": 16, "heads": 2, "attention": [each]}))
    recipe = Recipe(
        optimiser=Optimiser(epochs=1, batch=8),
        settings=Distillation(weights=Weights(kd=1, lrs=0)),
        precision="fp32",
    )
    made = dc.distill(whole, data=span_pairs(8), task="squad", spec=file, at=1, recipe=recipe)
    assert (made.spec.encoder.width, made.spec.split, len(made.spec.layers)) == (16, 1, 2)
    assert made.spec.layers[0].attention.kind == "lsra"
    assert made.tokenizer.json == whole.tokenizer.json and made.spec.heads == whole.spec.heads
    assert [row["did"] for row in made.history][:2] == ["begin at random", "split"]
