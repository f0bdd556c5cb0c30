"""The first-stage vector: layers of its own change it alone, in every runtime and form of the model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from added_parts import with_vector

from decoupled.errors import SpecError
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.model import Model, folder
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.spec import VECTOR, ModelSpec, VectorSpec
from decoupled.runtime.cuda.runtime import CudaRuntime
from decoupled.runtime.open import open_runtime
from decoupled.runtime.openvino.calibrate import calibrate
from decoupled.runtime.openvino.runtime import OpenVinoRuntime
from decoupled.runtime.torch import TorchRuntime
from decoupled.search.engine import Engine
from decoupled.train.reshape import with_projection
from tiny import FAMILIES, TORCH_ONLY

LENGTHS = (9, 1, 21, 14)
FAST = ("bert", "roberta", "electra", "albert")


def deep(model: Model, layers: int = 1, at: int = 1) -> Model:
    """Split, squeezed to 8 numbers and with a vector of 12, after so many layers of its own."""
    return with_vector(with_projection(Model.split(model, at=at), 8), 12, layers=layers)


def texts(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.integers(5, 500, n).astype(np.int32) for n in lengths]


def vectors(model: Model, ids: list[np.ndarray] | None = None) -> np.ndarray:
    return TorchRuntime(model).encode("passage", ids or texts()).vectors


def tensors(model: Model) -> dict[str, np.ndarray]:
    return {name: t.numpy() for name, t in model.net.state_dict().items()}


def test_it_is_the_mean_after_more_layers_of_the_unprojected_states(model):
    whole = model("bert", "rank")
    made = deep(whole, layers=2)
    # Copies of the layers above the split: together, the whole encoder on one text alone.
    mean = np.stack(
        [TorchRuntime(Model.split(whole, at=3)).encode("passage", [ids]).states.values.mean(0)
         for ids in texts()]
    )  # fmt: skip
    expected = F.normalize(torch.from_numpy(mean) @ made.net.vector.weight.detach().T, dim=-1)
    assert np.abs(vectors(made) - expected.numpy()).max() < 1e-5
    states = torch.randn(2, 3, whole.spec.encoder.width)
    found = whole.net.mean(states, torch.tensor([[True, False, False], [True, True, False]]))
    torch.testing.assert_close(found, torch.stack([states[0, 0], states[1, :2].mean(0)]))


def test_states_stay_and_neither_mates_nor_padding_matter(model, family):
    plain, made = deep(model(family, "rank"), layers=0), deep(model(family, "rank"))
    both = [TorchRuntime(m).encode("passage", texts()) for m in (plain, made)]
    assert np.array_equal(both[0].states.values, both[1].states.values)
    assert np.abs(both[0].vectors - both[1].vectors).max() > 1e-3
    alone = np.concatenate([vectors(made, [ids]) for ids in texts()])
    assert np.abs(both[1].vectors - alone).max() < 1e-5


def test_its_tensors_are_named_saved_loaded_and_fingerprinted(model, family, tmp_path):
    made = deep(model(family, "rank"))
    described = {n: t.shape for n, t in made.spec.tensors().items()}
    assert described == {n: tuple(t.shape) for n, t in made.net.state_dict().items()}
    assert any(name.startswith("vector.stack.attention.0.") for name in described)
    assert from_json(ModelSpec, json.loads(json.dumps(to_json(made.spec)))) == made.spec
    made.save(tmp_path / "m")
    first = Model.load(tmp_path / "m")
    assert np.array_equal(vectors(first), vectors(made))
    assert Model.load(tmp_path / "m").fingerprint == made.fingerprint
    with torch.no_grad():
        first.net.get_parameter("vector.stack.ffn.0.up.weight").add_(0.01)
    assert first.fingerprint != made.fingerprint


def test_a_model_without_them_is_written_as_ever(model):
    spec = deep(model("bert", "rank"), layers=0).spec
    assert to_json(spec)["vector"] == {"width": 12}


@pytest.mark.parametrize(
    ("family", "compact"),
    [("bert", True), *((family, False) for family in sorted(FAMILIES.keys() - {*TORCH_ONLY}))],
)
def test_every_runtime_agrees(model, family, tmp_path, compact):
    deep(model(family, "rank")).save(tmp_path / "m", compact=compact)
    made = Model.load(tmp_path / "m")
    runtimes = [open_runtime(tmp_path / "m", name="openvino-fp32")]
    if family in FAST:
        runtimes.append(CudaRuntime(made, device="cpu", dtype=torch.float32))
    for runtime in runtimes:
        for side in ("query", "passage"):
            expected, found = (r.encode(side, texts()) for r in (TorchRuntime(made), runtime))
            assert np.abs(expected.vectors - found.vectors).max() < 1e-4
            assert np.abs(expected.states.values - found.states.values).max() < 1e-3
    for runtime in (TorchRuntime(made), *runtimes):
        both = [
            runtime.encode("passage", texts(), vectors=with_them) for with_them in (True, False)
        ]
        assert both[0].vectors.shape[1] == 12
        assert both[1].vectors.shape == (len(LENGTHS), 0)
        assert np.abs(both[0].states.values - both[1].states.values).max() < 1e-4


def test_texts_that_are_only_read_are_not_pooled(model, monkeypatch):
    engine = Engine(deep(model("bert", "rank")))
    expected = engine.rerank("river", texts=["a river", "the town"], raw=True)
    monkeypatch.setattr(PairEncoder, "pool", None)
    again = engine.rerank("river", texts=["a river", "the town"], raw=True)
    assert [(h.id, h.score) for h in again] == [(h.id, h.score) for h in expected]


@pytest.mark.parametrize("how", ["ranges", "rounds"])
def test_in_int8_it_points_the_same_way(model, how):
    made = deep(model("bert", "rank", hidden_size=128, intermediate_size=256), layers=2)
    arrays = tensors(made)
    pairs = list(zip(texts((7,) * 20, 1), texts((30,) * 20, 2), strict=True))
    ranges = calibrate(made.spec, arrays, pairs) if how == "ranges" else None
    if ranges is not None:
        assert {
            f"{VECTOR}{n}.{tap}" for n in (0, 1) for tap in ("in", "out", "ffn", "down")
        } <= set(ranges)
    rounds = True if how == "rounds" else None
    runtime = OpenVinoRuntime(made.spec, arrays, made.tokenizer, ranges=ranges, rounds=rounds)
    found = runtime.encode("passage", texts()).vectors
    assert (found * vectors(made)).sum(1).min() > 0.9
    assert np.abs(found - vectors(made)).max() > 1e-5, "nothing was rounded"


SMALLER = ("quantise:bits=8,inputs=float", "student:width=16", "keep-layers:layers=0/2")


@pytest.mark.parametrize("method", SMALLER)
def test_smaller_models_keep_it(model, method):
    made = deep(model("bert", "rank"))
    small = apply(made, parse(method))
    assert small.spec.vector.layers
    if method.startswith("quantise"):
        assert "vector.stack.ffn.0.up.codes" in small.net.state_dict()
        assert (vectors(small) * vectors(made)).sum(1).min() > 0.999
        runtime = OpenVinoRuntime(small.spec, tensors(small), small.tokenizer)
        assert np.abs(runtime.encode("passage", texts()).vectors - vectors(small)).max() < 1e-3
    assert vectors(small).shape == (len(LENGTHS), 12)


def test_another_split_leaves_them_behind(model):
    made = deep(model("bert", "rank"))
    assert Model.split(made, at=1).spec.vector == made.spec.vector
    for at in (0, 2):
        assert Model.split(made, at=at).spec.vector is None
    shallow = deep(model("bert", "rank"), layers=0)
    assert Model.split(shallow, at=2).spec.vector == shallow.spec.vector


def test_what_cannot_be_is_said(model):
    split = Model.split(model("bert", "rank"), at=1)
    with pytest.raises(SpecError, match=r"layers=3, but 2 stand above the split; choose 0\.\.2"):
        with_vector(split, 12, layers=3)
    one, other = split.spec.layers[0].in_slot(0), split.spec.layers[1].in_slot(0)
    other = replace(other, ffn=replace(other.ffn, width=5))
    with pytest.raises(SpecError, match=r"vector\.layer 1 shares ffn slot 0"):
        replace(split.spec, vector=VectorSpec(width=4, layers=(one, other)))


def test_a_folder_without_its_layers_is_an_error(model, tmp_path):
    made = deep(model("bert", "rank"))
    kept = {n: t for n, t in tensors(made).items() if not n.startswith("vector.stack.ffn")}
    folder.write(tmp_path / "m", spec=made.spec, tensors=kept, tokenizer_json=made.tokenizer.json)
    with pytest.raises(Exception, match=r"the weights lack vector\.stack\.ffn"):
        Model.load(tmp_path / "m")
