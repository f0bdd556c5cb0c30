"""Small parts of the modules, each against a few lines that say the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from decoupled.methods.places import order
from decoupled.methods.quantise import module as linear
from decoupled.methods.quantise.module import integer_product
from decoupled.model.codec.project import principal
from decoupled.model.model import Model
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import ALL, Frame
from decoupled.model.parts.attention.disentangled import log_bucket


@pytest.mark.parametrize(("buckets", "far"), [(6, 20), (32, 128), (256, 512)])
def test_far_tokens_fall_into_logarithmic_buckets(buckets, far):
    distance = torch.arange(-far + 1, far)[None]
    theirs = make_log_bucket_position(distance, buckets, far)
    assert torch.equal(log_bucket(distance, buckets, far, torch), theirs.long())


def test_the_place_of_a_token_is_counted_within_its_block():
    real = torch.tensor([[True, True, False, True, True]])
    blocks = torch.tensor([[0, 1, 0, 0, 1]])
    frame = Frame(torch.arange(5)[None], real, block_BT=blocks)
    place, count = order(frame)
    assert place[real].tolist() == [0, 0, 1, 1] and count[real].tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
@pytest.mark.parametrize("kind", ["add", "add_ln"])
def test_tables_at_the_split_start_as_the_input_tables(model, family, kind):
    split = Model.split(model(family, "rank"), at=1, cross_embed=kind)
    lower, upper = split.net.embedding, split.net.cross_embedding
    assert (upper.norm is not None) == (kind == "add_ln")
    assert torch.equal(upper.positions.weight, lower.positions.weight)
    if lower.types is None:
        assert not upper.segments.weight.any()
    start = split.spec.encoder.embedding.position_start
    assert start == (2 if family == "roberta" else 0)
    x, place = torch.randn(1, 3, split.spec.encoder.width), torch.tensor([[0, 1, 5]])
    side = torch.tensor([[0, 1, 1]])
    with torch.no_grad():
        expected = x + upper.positions.weight[place + start] + upper.segments.weight[side]
        expected = upper.norm(expected) if upper.norm is not None else expected
        torch.testing.assert_close(upper(x, place, side), expected)


def test_attention_weights_leave_padding_out(model):
    net = model("bert", "rank").net
    real = torch.tensor([[True, True, True, False, False]])
    frame = Frame(torch.arange(5)[None], real)
    context = Context(number=0, layer=net.spec.layers[0], frame=frame, rows=ALL)
    block = net.stack.attention["0"]
    with torch.no_grad():
        weights = block.weights(torch.randn(1, 5, net.spec.encoder.width), context)
    assert torch.allclose(weights.sum(-1), torch.ones(1, block.attention.heads, 5))
    assert weights[:, :, :3, 3:].max() == 0 < weights[:, :, :3, :3].min()


def test_principal_axes_are_those_of_every_row():
    draw = np.random.default_rng(0)
    x = draw.standard_normal((40, 6)).astype(np.float32)
    x[0] = [0, 0, 0, 0, 0, 1000]  # only the first row has something along the last axis
    x[1:, 5] = 0
    centred = x - x.mean(0)
    found = principal(x, 1)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    assert abs(found.down_weight[0] @ axis) == pytest.approx(1, abs=1e-4)


def test_the_relative_table_has_a_row_for_every_bucket_and_no_other(model):
    spec = model("deberta-v2", "rank").spec
    assert spec.encoder.relative.rows == 2 * spec.layers[0].attention.buckets


# What runs on a GPU, with tensors that say they are there -------------------------------------------


class Elsewhere(torch.Tensor):
    """A tensor that takes the ways of a GPU."""

    is_cuda = True


@pytest.mark.parametrize("shape", [(3, 24, 16), (40, 24, 16), (5, 24, 10), (5, 23, 16)])
def test_integer_products_of_every_shape_are_exact(shape, monkeypatch):
    kernel = torch._int_mm

    def picky(a_NI, b_IO):
        """Takes the shapes that the kernel of a GPU takes."""
        there = isinstance(a_NI, Elsewhere)
        assert not there or (len(a_NI) > 16 and not any(n % 8 for n in b_IO.shape))
        return kernel(a_NI, b_IO)

    monkeypatch.setattr(torch, "_int_mm", picky)
    draw, (rows, inputs, outputs) = torch.Generator().manual_seed(0), shape
    a = torch.randint(-127, 128, (rows, inputs), generator=draw).to(torch.int8)
    b = torch.randint(-127, 128, (outputs, inputs), generator=draw).to(torch.int8)
    expected = (a.long() @ b.long().T).float()
    for given in (a, a.as_subclass(Elsewhere)):
        assert torch.equal(integer_product(given, b).as_subclass(torch.Tensor), expected)


def test_a_processor_whose_bytes_overflow_multiplies_floats(monkeypatch):
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: (a.int() @ b.int()).clamp(max=1 << 15))
    monkeypatch.setattr(linear, "adds_whole", linear.adds_whole.__wrapped__)
    assert not linear.adds_whole()
    most = torch.full((3, 64), 127, dtype=torch.int8)
    assert (integer_product(most, most) == 64 * 127**2).all()
