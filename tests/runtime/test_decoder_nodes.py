"""Decoders on OpenVINO say what torch says: every family, order of the texts, split and what is stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoders import AFTER, BEFORE, PASSAGES, QUERIES, VARIANTS, save_variant
from decoupled.index.index import Index
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.runtime.base import Runtime
from decoupled.runtime.open import open_runtime
from decoupled.runtime.openvino.calibrate import calibrate
from decoupled.runtime.openvino.runtime import OpenVinoRuntime
from decoupled.runtime.torch import TorchRuntime
from decoupled.search.engine import Engine

FORMS: list[tuple[int, dict[str, Any]]] = [
    (0, {}),
    (2, {}),
    (4, {}),
    (1, {"store": "kv"}),
    (4, {"store": "kv"}),
    (2, {"one_way": "auto"}),
]
"""Layers of the split, and how."""


def joint(folder: Path, name: str, order: Any = AFTER) -> Model:
    save_variant(folder, name, order)
    return Model.open(folder)


def outputs(runtime: Runtime, model: Model) -> list[np.ndarray]:
    """States, vectors and scores of every query with every passage."""
    found: list[np.ndarray] = []
    read = [w[0].ids for w in model.tokenizer.windows(list(PASSAGES))]
    for text in QUERIES:
        ids = model.tokenizer.query(text)
        query = runtime.encode("query", [ids])
        passages = runtime.encode("passage", read, query_length=len(ids))
        logits = runtime.cross(query.states, passages.states, ("rank",))["rank"].values
        found += [query.states.values, passages.states.values, passages.vectors, logits]
    return found


def far(model: Model, **how: Any) -> list[float]:
    """The largest differences from torch: of states and vectors, and of scores."""
    ours = outputs(OpenVinoRuntime(model.spec, model.tensors(), model.tokenizer, **how), model)
    gaps = [
        np.abs(a - b).max() for a, b in zip(ours, outputs(TorchRuntime(model), model), strict=True)
    ]
    scores = gaps[3::4]
    return [max(g for n, g in enumerate(gaps) if n % 4 != 3), max(scores)]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_family_equals_torch(tmp_path: Path, name: str) -> None:
    whole = joint(tmp_path, name)
    for at, how in FORMS:
        states, scores = far(Model.split(whole, at=at, **how) if at else whole)
        # Gemma's states reach a hundred, since its token vectors are multiplied.
        assert states < (1e-3 if name == "gemma" else 1e-4) and scores < 1e-4, (at, how)


@pytest.mark.parametrize("name", ["llama3", "qwen3"])
def test_a_query_before_its_passage_equals_torch(tmp_path: Path, name: str) -> None:
    whole = joint(tmp_path, name, BEFORE)
    for at in (0, 2, 4):
        assert max(far(Model.split(whole, at=at) if at else whole)) < 1e-4


def test_a_bidirectional_llama_equals_torch(tmp_path: Path) -> None:
    whole = joint(tmp_path, "llama")
    layers = tuple(
        replace(layer, attention=replace(layer.attention, causal=False))
        for layer in whole.spec.layers
    )
    heads = tuple(replace(head, pooling="mean") for head in whole.spec.heads)
    spec = replace(whole.spec, encoder=replace(whole.spec.encoder, layers=layers), heads=heads)
    model = whole.rebuild(spec, {})
    for at in (0, 2):
        assert max(far(Model.split(model, at=at) if at else model)) < 1e-4


@pytest.mark.parametrize("how", ["rounds", "ranges"])
@pytest.mark.parametrize("store", ["state", "kv"])
def test_int8_keeps_the_order(tmp_path: Path, store: Any, how: str) -> None:
    model = Model.split(joint(tmp_path, "qwen3"), at=2, store=store)
    own: dict[str, Any] = {"rounds": True}
    if how == "ranges":
        pairs = [
            (model.tokenizer.query(query), model.tokenizer.windows([text])[0][0].ids)
            for query in QUERIES
            for text in PASSAGES
        ]
        own = {"ranges": calibrate(model.spec, model.tensors(), pairs)}
    runtime = OpenVinoRuntime(model.spec, model.tensors(), model.tokenizer, **own)
    assert runtime.precision == "int8"
    found = np.concatenate(outputs(runtime, model)[3::4])[:, 0]
    expected = np.concatenate(outputs(TorchRuntime(model), model)[3::4])[:, 0]
    assert np.abs(found - expected).max() < 0.3 * expected.std()
    assert np.corrcoef(found, expected)[0, 1] > 0.97


def test_a_folder_of_a_decoder_opens_without_torch_and_stores_what_torch_reads(
    tmp_path: Path,
) -> None:
    model = Model.split(joint(tmp_path / "theirs", "qwen2"), at=4, store="kv")
    model.save(tmp_path / "model")
    assert open_runtime(tmp_path / "model").name == "openvino"
    passages = [Passage(id=str(n), text=text) for n, text in enumerate(PASSAGES)]
    index = Index.create(tmp_path / "docs.idx", tmp_path / "model", codec="fp32")
    index.add(passages)
    direct = Engine(model).rerank(QUERIES[0], texts=passages, raw=True)
    expected = {hit.id: hit.score for hit in direct}
    for name in ("openvino-fp32", "torch"):
        engine = Engine(tmp_path / "docs.idx", runtime=name)
        hits = engine.rerank(QUERIES[0], ids=list(expected), raw=True)
        assert engine.runtime.name == name.partition("-")[0]
        assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-4)


def test_keys_and_values_in_int8_have_a_scale_for_64_values(tmp_path: Path) -> None:
    """Many scales a token, the last for a part of them: as torch decodes, and closer than one scale."""
    model = Model.split(joint(tmp_path, "qwen3"), at=4, store="kv")
    pairs = [w[0].ids for w in model.tokenizer.windows(list(PASSAGES))]
    query = TorchRuntime(model).encode("query", [model.tokenizer.query(QUERIES[0])]).states
    exact = TorchRuntime(model).encode("passage", pairs).states
    # One layer's keys and values are far larger than all others, as in a real decoder.
    exact.values[:, 64:160] *= 50
    expected = TorchRuntime(model).cross(query, exact, ("rank",))["rank"].values
    far = {}
    for name in ("int8", "int8:64"):
        codec = fit_codec(name, exact)
        encoded = codec.encode(exact)
        by_torch = TorchRuntime(model, codec).cross(query, encoded, ("rank",))["rank"].values
        ours = OpenVinoRuntime(model.spec, model.tensors(), model.tokenizer, codec)
        found = ours.cross(query, encoded, ("rank",))["rank"].values
        np.testing.assert_allclose(found, by_torch, atol=1e-4)
        far[name] = np.abs(found - expected).max()
    assert codec.bytes_per_token == codec.width + 2 * -(-codec.width // 64) and codec.width % 64
    assert far["int8:64"] < 0.5 * far["int8"]
