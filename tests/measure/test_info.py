"""What `info` says of a model and of an index."""

from __future__ import annotations

import pytest

from decoupled.errors import InputError
from decoupled.index.index import Index
from decoupled.measure.info import info
from decoupled.model.model import Model
from decoupled.model.tokens import Passage


def test_a_model_and_an_index_are_described(model, tmp_path):
    split = Model.split(model("bert", "rank"), at=1)
    split.save(tmp_path / "m")
    found = info(tmp_path / "m")
    assert (found["kind"], found["layers"], found["split"]) == ("model", 3, 1)
    assert found["heads"] == ["rank"] and found["fingerprint"] == split.fingerprint
    assert found["parameters"] == sum(p.numel() for p in split.net.parameters())
    with Index.create(tmp_path / "i", split, codec="fp16") as index:
        index.add([Passage(id="p", text="the river")])
    told = info(tmp_path / "i")
    assert (told["passages"], told["codec"]) == (1, "fp16")
    assert told["fingerprint"] == found["fingerprint"]
    with pytest.raises(InputError, match="nowhere is neither an index nor a model folder"):
        info(tmp_path / "nowhere")
