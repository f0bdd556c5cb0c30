"""Compact model folders: little more than a quarter of the bytes, and exactly what was saved."""

from __future__ import annotations

import json

import numpy as np
import pytest
from added_parts import with_late, with_vector
from safetensors.numpy import load_file, save_file

from decoupled.errors import WeightsError
from decoupled.model.model import Model, folder
from decoupled.train.reshape import with_projection


@pytest.fixture
def whole(model) -> Model:
    """Every part that a model can have."""
    split = Model.split(model("bert", "rank"), at=1)
    return with_late(with_vector(with_projection(split, 8), 12, layers=1), 6)


def test_what_was_saved_is_loaded_and_saving_it_again_changes_no_byte(
    whole, model, family, tmp_path
):
    for number, made in enumerate((whole, Model.split(model(family, "span"), at=2))):
        first, second = tmp_path / f"{number}", tmp_path / f"{number} again"
        made.save(first, compact=True)
        loaded = Model.load(first)
        loaded.save(second, compact=True)
        assert (first / folder.WEIGHTS).read_bytes() == (second / folder.WEIGHTS).read_bytes()
        assert Model.load(second).fingerprint == loaded.fingerprint


def test_layers_and_tokens_are_bytes_near_what_they_were(whole, tmp_path):
    whole.save(tmp_path / "m", compact=True)
    held = load_file(tmp_path / "m" / folder.WEIGHTS)
    for name in (
        "embedding.tokens.weight",
        "stack.ffn.2.up.weight",
        "vector.stack.attention.0.attention.out.weight",
    ):
        assert held[name].dtype == np.int8 and np.abs(held[name]).max(1).min() == 127
    assert {t.dtype.name for t in held.values()} == {"int8", "float16", "float32"}
    for name, tensor in Model.load(tmp_path / "m").net.state_dict().items():
        given = whole.net.state_dict()[name]
        row = given.abs().amax(-1, keepdim=True) if given.ndim == 2 else given.abs()
        assert ((tensor - given).abs() <= row * (0.5 / 127 + 1e-3)).all(), name


def test_the_starter_with_every_part_fits_in_34_megabytes(tmp_path):
    starter = Model.load(folder.starter_model())
    made = with_late(with_vector(starter, 384, layers=3), 48)
    made.save(tmp_path / "m", compact=True)
    assert sum(file.stat().st_size for file in (tmp_path / "m").iterdir()) < 34e6


def test_one_tensor_is_read_alone_and_a_damaged_scale_is_noticed(whole, tmp_path):
    whole.save(tmp_path / "m", compact=True)
    loaded = Model.load(tmp_path / "m").net.state_dict()
    name = "stack.ffn.0.up.weight"
    assert np.array_equal(
        folder.read_tensors(tmp_path / "m", lambda n: n == name)[name], loaded[name].numpy()
    )
    file = tmp_path / "m" / folder.WEIGHTS
    held, header = load_file(file), file.read_bytes()
    sums = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]
    held[f"{name}#scale"] = held[f"{name}#scale"] * 2
    (tmp_path / "m" / "sums.json").unlink()
    save_file(held, file, metadata=sums)
    with pytest.raises(WeightsError, match=rf"1 of \d+ tensors, first {name}#scale"):
        Model.load(tmp_path / "m")


def test_folders_with_layers_in_half_precision_still_load(whole, tmp_path):
    """As compact folders were written before the layers were bytes too."""
    state = {n: t.numpy() for n, t in whole.net.state_dict().items()}
    whole.save(tmp_path / "m")
    (tmp_path / "m" / "sums.json").unlink()
    tokens = state.pop("embedding.tokens.weight")
    scale = np.abs(tokens).max(1, keepdims=True) / np.float32(127)
    old = {n: t.astype(np.float16) for n, t in state.items()}
    old |= {"embedding.tokens.weight": np.round(tokens / scale).astype(np.int8)}
    old |= {"embedding.tokens.weight#scale": scale}
    save_file(old, tmp_path / "m" / folder.WEIGHTS, metadata=folder.checksums(old))
    found = Model.load(tmp_path / "m").net.state_dict()
    for name, tensor in state.items():
        assert np.array_equal(found[name].numpy(), tensor.astype(np.float16).astype(np.float32)), (
            name
        )
    expected = old["embedding.tokens.weight"].astype(np.float32) * scale
    assert np.array_equal(found["embedding.tokens.weight"].numpy(), expected)


def test_rows_of_nothing_and_of_extremes(tmp_path):
    rows = np.array([[0, 0], [1e-30, -1e-30], [3e38, -1e38], [1, -1 / 3]], np.float32)
    name = "stack.ffn.0.up.weight"
    held = folder._compacted({name: rows})
    again = folder._widened(name, held)
    assert np.isfinite(again).all() and np.array_equal(again[0], [0, 0])
    assert np.abs(again - rows).max(1)[2:] == pytest.approx([0, 0], abs=3e38 / 127)
    twice = folder._compacted({name: again})
    assert all(np.array_equal(held[n], twice[n]) for n in held)
