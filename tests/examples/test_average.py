"""The average of two models above their split."""

import pytest
import torch
from average import averaged

from decoupled.errors import InputError
from decoupled.model.model import Model


def test_states_are_those_of_the_old_model_and_the_rest_lies_between(model):
    old = Model.split(model("bert", "rank"), at=2)
    new = old.rebuild(old.spec, {"did": "train"})
    with torch.no_grad():
        for tensor in new.net.parameters():
            tensor.add_(1.0)
    made, changed = averaged(old, new, 0.25), set()
    before = old.net.state_dict()
    for name, tensor in made.net.state_dict().items():
        moved = tensor - before[name]
        expected = 0.0 if old.spec.is_input(name) else 0.25
        torch.testing.assert_close(moved, torch.full_like(moved, expected))
        changed.add(expected)
    assert changed == {0.0, 0.25}
    assert made.history[-1] == {"did": "average", "share": 0.25, "with": {"did": "train"}}
    with pytest.raises(InputError, match="differ in their specs"):
        averaged(old, Model.split(model("bert", "rank"), at=1), 0.25)
