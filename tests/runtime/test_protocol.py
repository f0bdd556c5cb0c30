"""Every runtime is a `Runtime`: one that keeps states on its device scores them from there."""

from __future__ import annotations

import numpy as np
import pytest

from decoupled.index.encode import encode_texts
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model
from decoupled.runtime.base import Cancellable, Runtime
from decoupled.runtime.cuda.runtime import CudaRuntime
from decoupled.runtime.open import open_runtime
from decoupled.runtime.torch import TorchRuntime


def on_cpu(model: Model, codec) -> CudaRuntime:
    return CudaRuntime(model, codec, device="cpu", graphs=False)


RUNTIMES = {
    "torch": (TorchRuntime, False),
    "openvino": (lambda model, codec: open_runtime(model, codec, name="openvino"), False),
    "cuda": (on_cpu, True),
    "cancellable": (lambda model, codec: Cancellable(on_cpu(model, codec), lambda: False), True),
}


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_runtime_keeps_states_or_says_that_it_does_not(name, model):
    split = Model.split(model("bert", "rank"), at=1)
    reference = TorchRuntime(split)
    ids = reference.tokenizer.windows(["the river by the town", "a castle", "the moon"])
    states = encode_texts(reference, "passage", [w.ids for group in ids for w in group]).states
    query = encode_texts(reference, "query", [reference.tokenizer.query("river")]).states
    codec = fit_codec("int8", states)
    make, keeps = RUNTIMES[name]
    runtime, encoded = make(split, codec), codec.encode(states)
    assert isinstance(runtime, Runtime)
    kept = runtime.keep(encoded)
    assert (kept is not None) == keeps
    if kept is not None:
        which = np.array([2, 0])
        chosen = runtime.cross(query, kept.select(which), ("rank",))["rank"].values
        given = runtime.cross(query, encoded.select(which), ("rank",))["rank"].values
        assert np.allclose(chosen, given, atol=1e-5)


def test_texts_are_encoded_without_vectors(model):
    split = Model.split(model("bert", "rank"), at=1)
    ids = [split.tokenizer.query("the river by the town")]
    for name in ("torch", "openvino", "cuda"):
        made = RUNTIMES[name][0](split, None).encode("passage", ids, vectors=False)
        assert len(made.states.lengths) == 1, name


def test_a_model_is_no_runtime(model):
    assert not isinstance(model("bert", "rank"), Runtime)
