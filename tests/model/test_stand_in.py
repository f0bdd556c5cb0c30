"""Rows that stand in for the other text of a pair below the split."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from decoupled.errors import SpecError
from decoupled.model.model import Model
from decoupled.model.nn.encoder import positions
from decoupled.model.nn.frame import Frame
from decoupled.model.split import unsplit
from decoupled.runtime.cuda.runtime import CudaRuntime
from decoupled.runtime.open import open_runtime
from decoupled.runtime.torch import TorchRuntime

ROWS = 5


def batch() -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Random ids of both sides, right-padded with 0, and which are real."""
    draw, sides = torch.Generator().manual_seed(0), []
    for side, lengths in (("query", (5, 7, 3)), ("passage", (9, 4, 21))):
        real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        ids = torch.randint(5, 1000, real.shape, generator=draw)
        sides.append((side, ids.where(real, 0), real))
    return sides


def standing(whole: Model, at: int = 2) -> Model:
    """The model split with random rows, as large as embeddings are."""
    split = Model.split(whole, at=at)
    split = split.rebuild(replace(split.spec, stand_in=ROWS), {"did": "add rows"})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for rows in split.net.stand_in.values():
            rows.copy_(torch.randn(rows.shape, generator=generator))
    return split


@torch.inference_mode()
def masked(model: Model, side: str, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """A stand-in and a text as one sequence of the layers below the split, without the rows in front."""
    net, spec = model.net, model.spec
    place = positions(real) + spec.first_position(side)
    start = spec.stand_in_position(side)
    before = torch.arange(start, start + ROWS).expand(len(ids), -1)
    rows = net.stand_in[side].expand(len(ids), -1, -1)
    x = torch.cat([rows, net.embed(side, ids, place)], 1)
    seen = torch.cat([torch.ones(len(ids), ROWS, dtype=torch.bool), real], 1)
    frame = Frame(torch.cat([before, place], 1), seen)
    frame.passage = None if side == "query" else 0
    return net.stack(x, frame, first=0, last=spec.split)


def test_states_are_those_of_one_sequence_with_the_rows(model, family):
    split = standing(model(family, "rank"))
    for side, ids, real in batch():
        with torch.inference_mode():
            got = split.net.hidden(side, ids, real)
        assert got.shape[1] == ids.shape[1]
        expected = masked(split, side, ids, real)[:, ROWS:]
        assert (got[real] - expected[real]).abs().max() < 1e-6, side
        plain = Model.split(split, at=2).rebuild(replace(split.spec, stand_in=0), {}).net
        with torch.inference_mode():
            assert (plain.hidden(side, ids, real)[real] - got[real]).abs().max() > 1e-3, side


def test_batch_mates_and_padding_change_nothing(model, family):
    net = standing(model(family, "rank")).net
    _, ids, real = batch()[1]
    with torch.inference_mode():
        together, vectors = net.input("passage", ids, real)
        for row, length in enumerate(real.sum(1).tolist()):
            alone, vector = net.input("passage", ids[[row], :length], real[[row], :length])
            assert (together[row, :length] - alone[0]).abs().max() < 2e-5
            assert (vectors[row] - vector[0]).abs().max() < 2e-5


@pytest.mark.parametrize("side", ["query", "passage"])
def test_every_runtime_gives_the_reference(model, side):
    split = standing(model("bert", "rank"))
    draw = np.random.default_rng(0)
    texts = [draw.integers(5, 50, n).astype(np.int32) for n in (3, 9, 17, 30)]
    expected = TorchRuntime(split).encode(side, texts)
    others = open_runtime(split, "openvino"), CudaRuntime(split, device="cpu", dtype=torch.float32)
    for runtime in others:
        got = runtime.encode(side, texts)
        assert np.abs(expected.states.values - got.states.values).max() < 1e-4, runtime
        assert np.abs(expected.vectors - got.vectors).max() < 1e-4, runtime


@pytest.mark.parametrize("family", ["modernbert", "deberta-v2"])
def test_openvino_places_the_rows_where_torch_does(model, family):
    split = standing(model(family, "rank"), at=1)
    texts = [np.arange(5, 5 + n, dtype=np.int32) for n in (4, 12)]
    for side in ("query", "passage"):
        expected = TorchRuntime(split).encode(side, texts).states.values
        assert (
            np.abs(
                expected - open_runtime(split, "openvino").encode(side, texts).states.values
            ).max()
            < 1e-4
        )


def test_rows_are_saved_and_are_part_of_the_fingerprint(model, tmp_path):
    split = standing(model("bert", "rank"))
    split.save(tmp_path / "m")
    loaded = Model.load(tmp_path / "m")
    assert loaded.spec == split.spec and loaded.fingerprint == split.fingerprint
    with torch.no_grad():
        split.net.stand_in["passage"].add_(1)
    assert split.rebuild(split.spec, {}).fingerprint != loaded.fingerprint


def test_another_split_and_the_joint_model_have_none(model):
    split = standing(model("bert", "rank"))
    assert Model.split(split, at=1).spec.stand_in == 0
    assert unsplit(split.spec).stand_in == 0
    with pytest.raises(SpecError, match="read each text alone"):
        replace(unsplit(split.spec), stand_in=4)
    with pytest.raises(SpecError, match=r"choose 1\.\.64"):
        replace(split.spec, stand_in=65)


def test_a_passage_begins_after_a_typical_query_by_default(model):
    split = Model.split(model("bert", "rank"), at=1)
    assert split.spec.positions == "typical" and split.spec.first_position("passage") == 10
    assert split.spec.first_position("query") == 0
