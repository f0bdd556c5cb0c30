"""The Triton kernels against the plain torch forms: on a GPU, or else in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from decoupled.model.codec import fit_codec
from decoupled.model.states import States
from decoupled.runtime.cuda import block as blocks
from decoupled.runtime.cuda import ops
from decoupled.runtime.cuda.batch import Joined, Pairs, pairs_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPE = ops.ProductShape(heads=2, width=24)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).half()


def batch(lengths: tuple[int, ...], *, asks: int, query: int, rows: int = 0) -> Pairs:
    """Pairs of three queries, with `rows` rows of room, and as much room for pairs, after those there."""
    length = np.asarray([*lengths, *[0] * (rows > 0)])
    start = np.cumsum(length) - length
    tokens = sum(lengths) + rows
    start[len(lengths) :] = tokens
    asker = np.arange(len(length))[::-1] % 3
    asked = np.maximum(asks - asker, min(asks, 1))
    numbers = np.stack([asker, asked, np.zeros_like(length), start, length])
    given = torch.from_numpy(numbers)
    return pairs_of(given, query=query, tokens=tokens, longest=max(lengths) + 3)


def on_device(x):
    """The same rows or pairs where the kernels run."""
    if isinstance(x, torch.Tensor):
        return x.to(DEVICE)
    if isinstance(x, Joined):
        fields = {n: getattr(x, n) for n in ("query", "passage", "whole")}
        moved = {n: on_device(value) for n, value in fields.items() if value is not None}
        return Joined(**{"passage": None, **moved}, pair_rows=x.pair_rows, shared=x.shared)
    names = ("asker", "asks", "source", "start", "length")
    moved = {n: on_device(getattr(x, n)) for n in names}
    return Pairs(count=x.count, query=x.query, tokens=x.tokens, longest=x.longest, **moved)


def joined(
    pairs: Pairs, rows: int, width: int, *, shared: bool, passages: bool, seed: int
) -> Joined:
    query = rows * (3 if shared else pairs.count)
    whole = draw(query + (pairs.tokens if passages else 0), width + 8, seed=seed)[:, :width]
    return Joined.of(whole, query, pair_rows=rows, shared=shared)


@pytest.mark.parametrize("room", [0, 5])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("moved", "passages"), [(8, True), (8, False), (1, True), (1, False)])
def test_attention_reads_its_pair_and_nothing_else(room, shared, moved, passages):
    pairs = batch((9, 1, 70), asks=7, query=8, rows=room)
    k, v = (joined(pairs, 8, 48, shared=shared, passages=True, seed=s) for s in (1, 2))
    q = joined(pairs, moved, 48, shared=shared, passages=passages, seed=3)
    expected = ops.attend(q, k, v, moved, pairs, SHAPE).float()
    given = [on_device(x) for x in (q, k, v)]
    got = ops._attend_cuda(*given, moved, on_device(pairs), SHAPE).float().cpu()
    real = slice(None, -room if room and passages else None)
    assert (expected[real] - got[real]).abs().max() < 2e-3


def test_attention_of_texts_alone():
    pairs = batch((9, 33), asks=0, query=0)
    q, k, v = (Joined.of(draw(42, 48, seed=s), 0, pair_rows=1) for s in (1, 2, 3))
    expected = ops.attend(q, k, v, 0, pairs, SHAPE).float()
    given = [on_device(x) for x in (q, k, v)]
    got = ops._attend_cuda(*given, 0, on_device(pairs), SHAPE).float().cpu()
    assert (expected - got).abs().max() < 2e-3


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("moved", "passages"), [(8, True), (8, False), (1, True), (1, False)])
@pytest.mark.parametrize("bias", [True, False])
def test_norm_adds_the_row_that_moved(shared, moved, passages, bias):
    pairs = batch((4, 1, 5), asks=8, query=8)
    x = Joined(
        query=draw(24, 40, seed=1),
        passage=draw(10, 40, seed=2),
        pair_rows=8,
        shared=shared,
    )
    change = draw(3 * moved + (10 if passages else 0), 40, seed=3)
    norm = ops.Norm(weight=draw(40), bias=draw(40, seed=9) if bias else None, eps=1e-12)
    expected = ops.add_norm(change, x, moved, pairs, norm)
    moved_norm = ops.Norm(
        weight=on_device(norm.weight),
        bias=None if norm.bias is None else on_device(norm.bias),
        eps=norm.eps,
    )
    given = on_device(change), on_device(x), moved, on_device(pairs), moved_norm
    got = ops._add_norm_cuda(*given)
    assert (expected.whole - got.cpu()).abs().max() < 1e-2


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("width", [48, 33])
@pytest.mark.parametrize("apart", [True, False])
def test_codes_are_decoded_exactly(name, width, apart):
    values = np.random.default_rng(0).standard_normal((60, width)).astype(np.float32)
    states = States(values, np.asarray([20, 1, 39]))
    codec = fit_codec(name, states)
    encoded, layout = codec.encode(states), codec.layout
    block = blocks.StateBlock.of(torch.from_numpy(encoded.values).to(DEVICE), layout)
    if apart:
        block = blocks.keep(encoded, layout, DEVICE).block
    length = torch.tensor([39, 20, 0, 1, 0])
    pairs = Pairs(
        count=5,
        query=0,
        tokens=60,
        longest=50,
        asker=torch.zeros(5, dtype=torch.int64),
        asks=torch.zeros(5, dtype=torch.int64),
        source=torch.tensor([21, 0, 0, 20, 0]),
        start=length.cumsum(0) - length,
        length=length,
    )
    out = torch.empty(60, width, device=DEVICE)
    got = blocks._dequantise_cuda(block, on_device(pairs), blocks.KERNEL_BITS[name], out).cpu()
    expected = codec.decode(encoded).select([2, 0, 1]).values
    assert np.array_equal(got.numpy(), expected)


def test_the_mean_is_over_real_rows():
    pairs = batch((9, 1, 20), asks=0, query=0, rows=6)
    x = draw(36, 40).float()
    got = ops._segment_mean_cuda(on_device(x), on_device(pairs)).cpu()
    assert (got - ops.segment_mean(x, pairs)).abs().max() < 1e-5
