"""Every public reranker of docs/rerankers.md as a random checkpoint of its configuration, only less wide."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from decoupled.errors import DecoupledError
from decoupled.model.hf.convert import family_of
from decoupled.model.model import Model
from decoupled.model.prompts import TEMPLATES, template_of
from decoupled.search.engine import Engine
from tiny import FAMILIES, TOKENIZER_OF, VOCAB, randomise, tiny_tokenizer

ROOT = Path(__file__).parents[2]
KNOWN = json.loads((ROOT / "docs" / "tables" / "rerankers.json").read_text(encoding="utf-8"))
SPLIT = [one for one in KNOWN if "why" not in one and "template" not in one]
DECODERS = [one for one in KNOWN if "template" in one]
REFUSED = [one for one in KNOWN if "why" in one and "auto_map" not in one["config"]]
"""Those with code of their own under a known name have weights that do not fit, which any loading tells."""
PASSAGES = ["the old castle by the river", "a ship", "rain and wind in the north of the country"]
SPECIAL = {"pad": 0, "bos": 2, "cls": 2, "eos": 3, "sep": 3}
"""Ids of a tiny tokenizer."""


def thin(config: dict[str, Any]) -> dict[str, Any]:
    """The same configuration with narrow heads and few words; layers, heads and positions are its own."""
    width = 8 * config["num_attention_heads"]
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "vocab_size": VOCAB}
    if "embedding_size" in config:
        sizes["embedding_size"] = width
    if config["model_type"] == "modernbert":
        sizes |= {f"{name}_token_id": number for name, number in SPECIAL.items()}
    return {**config, **sizes}


def written(folder: Path, config: dict[str, Any]) -> transformers.PreTrainedModel:
    title = FAMILIES[config["model_type"]]
    made = getattr(transformers, f"{title}Config")(**thin(config))
    model = getattr(transformers, config["architectures"][0])(made).eval()
    randomise(model, 0)
    # Dozens of layers with weights as large as those of a shallow model would leave nothing to compare.
    scale = 0.3 if config["num_hidden_layers"] > 2 else 1.0
    for parameter in model.parameters():
        parameter.data *= scale if parameter.ndim > 1 else 1.0
    model.save_pretrained(folder)
    tiny_tokenizer(folder, TOKENIZER_OF[config["model_type"]])
    return model


@torch.no_grad()
def theirs(reference: transformers.PreTrainedModel, model: Model, query: str) -> list[float]:
    """What `transformers` says of each passage; of two labels, how far the second is above the first."""
    found = []
    for passage in PASSAGES:
        first = model.tokenizer.query(query)
        second = model.tokenizer.windows([passage])[0][0].ids
        ids = torch.from_numpy(np.concatenate([first, second]).astype(np.int64))[None]
        given = {"input_ids": ids}
        if model.spec.encoder.embedding.types > 1:
            given["token_type_ids"] = torch.tensor([[0] * len(first) + [1] * len(second)])
        logits = reference(**given).logits[0]
        found.append(float(logits[-1] - logits[0] if len(logits) == 2 else logits[0]))
    return found


@pytest.mark.parametrize("one", SPLIT, ids=[one["name"] for one in SPLIT])
def test_it_says_what_transformers_says_and_splits(tmp_path, one):
    reference = written(tmp_path, one["config"])
    model = Model.open(tmp_path)
    if model.spec.heads[0].kind == "classes":
        model = model.rank_by(model.spec.heads[0].labels[1])
    expected = theirs(reference, model, "old stone bridge")
    hits = Engine(model, runtime="torch").rerank("old stone bridge", texts=PASSAGES, raw=True)
    said = [hit.score for hit in sorted(hits, key=lambda hit: int(hit.id))]
    assert said == pytest.approx(expected, abs=1e-3) and np.ptp(expected) > 1e-3
    split = Model.split(model, at=len(model.spec.layers) // 2)
    assert len(Engine(split, runtime="torch").rerank("old stone bridge", texts=PASSAGES)) == 3


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_head_in_modules_of_sentence_transformers(tmp_path, checkpoint, pooling):
    """As the Ettin rerankers are saved."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling

    encoder = Transformer(str(checkpoint("modernbert", "bare")), max_seq_length=64)
    width, act = 32, torch.nn.GELU()
    modules = [encoder, Pooling(width, pooling)]
    modules += [Dense(width, width, bias=False, activation_function=act), LayerNorm(width)]
    last = {"activation_function": torch.nn.Identity(), "module_output_name": "scores"}
    theirs = CrossEncoder(modules=[*modules, Dense(width, 1, **last)], device="cpu")
    for module in list(theirs)[2:]:
        randomise(module, 3)
    theirs.save_pretrained(str(tmp_path / "saved"))
    expected = theirs.predict(
        [("old stone bridge", p) for p in PASSAGES], activation_fn=torch.nn.Identity()
    )
    model = Model.open(tmp_path / "saved")
    assert [head.kind for head in model.spec.heads] == ["rank"]
    hits = Engine(model, runtime="torch").rerank("old stone bridge", texts=PASSAGES, raw=True)
    said = [hit.score for hit in sorted(hits, key=lambda hit: int(hit.id))]
    assert said == pytest.approx(np.ravel(expected).tolist(), abs=1e-3)


@pytest.mark.parametrize("one", REFUSED, ids=[one["name"] for one in REFUSED])
def test_what_cannot_be_split_is_refused_by_its_configuration(one):
    with pytest.raises(DecoupledError, match=r"no known family|does not support"):
        family_of(one["config"]["model_type"]).encoder(one["config"])


@pytest.mark.parametrize("one", DECODERS, ids=[one["name"] for one in DECODERS])
def test_a_decoder_is_known_by_its_configuration_and_its_name(one, tmp_path):
    family = family_of(one["config"]["model_type"])
    encoder = family.encoder(one["config"])
    (head,) = family.head(one["config"], one["config"]["architectures"][0])
    assert len(encoder.layers) == one["config"]["num_hidden_layers"]
    assert head.kind == "rank" and head.pooling in ("last", "mean")
    assert template_of(None, one["name"], tmp_path) is TEMPLATES[one["template"]]


def test_the_recipes_split_where_the_table_does():
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    table = (ROOT / "docs" / "rerankers.md").read_text(encoding="utf-8")
    told = re.findall(r"decoupled split (\S+) -o split --at (\d+)", page)
    assert len(told) == 5
    for name, at in told:
        row = next(line for line in table.splitlines() if f"`{name}`" in line).split("|")
        # The one that was measured with its real weights is split where it keeps its quality.
        expected = "4" if name == "cross-encoder/ms-marco-MiniLM-L12-v2" else row[6].strip()
        assert at == expected, name
