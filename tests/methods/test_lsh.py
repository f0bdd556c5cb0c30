"""Attention within hashed buckets: the definition, the fast path, and what a stored passage needs of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from added_parts import with_vector
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import decoupled as dc
from decoupled.errors import InputError, SpecError
from decoupled.measure.counts import parameters, work
from decoupled.methods.lsh.module import LSHAttention, dense_bias, hash_rounds, rotation
from decoupled.methods.lsh.part import LSH
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.model import Model
from decoupled.model.nn.attention import build_attention
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import ALL, FIRST, Frame
from decoupled.model.parts.feed_forward import FeedForwardSpec
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.linear import WHOLE
from decoupled.model.spec import ModelSpec
from decoupled.runtime.open import open_runtime
from decoupled.runtime.torch import TorchRuntime
from decoupled.train.recipe import Distillation, Optimiser, Recipe, Weights
from toy import span_pairs

WIDTH, HEADS = 12, 3


def built(**options: int) -> tuple[LSH, LSHAttention]:
    kind = LSH(heads=HEADS, head_width=WIDTH // HEADS, **options)
    torch.manual_seed(0)
    module = build_attention(kind, width=WIDTH, dropout=0.0, linear=WHOLE)
    return kind, module.double().eval()


def context_of(kind: LSH, real: torch.Tensor, rows=ALL, block=None) -> Context:
    layer = LayerSpec(attention=kind, ffn=FeedForwardSpec(width=4), attention_slot=0, ffn_slot=0)
    position = (real.long().cumsum(1) - 1).clamp(min=0)
    return Context(number=0, layer=layer, frame=Frame(position, real, block), rows=rows)


def all_real(batch: int, tokens: int) -> torch.Tensor:
    return torch.ones(batch, tokens, dtype=torch.bool)


def in_rounds(module, kind, x, context) -> torch.Tensor:
    """The definition, round by round: softmax of each over what it sees, minus log of how many rounds do."""
    q, v = (module.split_heads(part(x)) for part in (module.query, module.value))
    rounds = hash_rounds(q, context.frame, kind)
    tokens = x.shape[1]
    seen = torch.stack([(c[..., :, None] - c[..., None, :]).abs().le(1) for _, c in rounds])
    unit = q / q.norm(dim=-1, keepdim=True)
    scores = q @ unit.mT - seen.sum(0).clamp(min=1).double().log()
    scores = torch.where(torch.eye(tokens, dtype=torch.bool), scores - 1e5, scores)
    scores = scores.masked_fill(~seen, -torch.inf)
    z = scores.logsumexp(-1)
    each = scores.softmax(-1).nan_to_num() @ v
    return module.join(((z - z.logsumexp(0)).exp()[..., None] * each).sum(0))


@pytest.mark.parametrize("rounds", [1, 3])
def test_rounds_are_one_softmax_over_their_union(rounds):
    kind, module = built(rounds=rounds, chunk=4, buckets=6)
    x = torch.randn(2, 40, WIDTH, dtype=torch.float64)
    context = context_of(kind, all_real(2, 40))
    expected = in_rounds(module, kind, x, context)
    q, v = (module.split_heads(part(x)) for part in (module.query, module.value))
    found = hash_rounds(q, context.frame, kind)
    fast = module.join(module.chunked(q, v, found, kind.chunk))
    bias = dense_bias(found, context, q.dtype)
    unit = torch.nn.functional.normalize(q, dim=-1)
    dense = module.join(module.attend(q, unit, v, bias, 1.0))
    assert (fast - expected).abs().max() < 1e-12
    assert (dense - expected).abs().max() < 1e-12
    plain = (q @ unit.mT).masked_fill(torch.eye(40, dtype=torch.bool), -1e5).softmax(-1) @ v
    assert (module.join(plain) - dense).abs().max() > 1e-3, "hashing hides nothing here"


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("tokens", [12, 16])
def test_one_bucket_in_one_chunk_is_full_attention(rounds, tokens):
    kind, module = built(rounds=rounds, chunk=16, buckets=1)
    x = torch.randn(1, tokens, WIDTH, dtype=torch.float64)
    q, v = (module.split_heads(part(x)) for part in (module.query, module.value))
    unit = q / q.norm(dim=-1, keepdim=True)
    scores = (q @ unit.mT).masked_fill(torch.eye(tokens, dtype=torch.bool), -1e5)
    full = module.join(scores.softmax(-1) @ v)
    context = context_of(kind, all_real(1, tokens))
    assert (module(x, context) - full).abs().max() < 1e-12
    found = hash_rounds(q, context.frame, kind)
    fast = module.join(module.chunked(q, v, found, 16))
    assert (fast - full).abs().max() < 1e-12


def test_hashes_know_directions_and_their_opposites():
    kind, _ = built(rounds=2, buckets=8, chunk=9)  # one chunk: a code is twice its bucket
    q = torch.randn(1, HEADS, 9, WIDTH // HEADS, dtype=torch.float64)
    frame = Frame(torch.arange(9)[None], all_real(1, 9))
    for one, scaled, turned in zip(
        hash_rounds(q, frame, kind),
        hash_rounds(3.7 * q, frame, kind),
        hash_rounds(-q, frame, kind),
        strict=True,
    ):
        assert torch.equal(one.code, scaled.code)
        assert torch.equal((one.code - turned.code).abs(), torch.full_like(one.code, 2 * 4))
        assert torch.equal(one.rank.sort(-1).values, torch.arange(9).expand_as(one.rank))
    # The stream behind the rotations is part of every index that was made with them.
    assert rotation(0, 0, 2, 2).flatten().tolist() == pytest.approx(
        [1.7640524, 0.978738, 0.4001572, 2.2408931]
    )
    assert torch.equal(rotation(3, 1, 4, 2), rotation(3, 1, 4, 5)[:, :2])


def test_a_token_looks_at_itself_only_where_it_is_alone():
    kind, _ = built(rounds=1, chunk=8, buckets=2)
    q = torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0], [1.0, 0, 0, 0]]).double()
    q = q.expand(1, HEADS, 3, 4)
    context = context_of(kind, all_real(1, 3))
    bias = dense_bias(hash_rounds(q, context.frame, kind), context, q.dtype)
    share = (q @ q.mT + bias).softmax(-1)[0, 0]
    assert share.round(decimals=6).tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_is_hidden_stays_a_number_in_a_kernel_that_works_with_powers_of_two(dtype):
    kind, _ = built(rounds=1, chunk=8, buckets=4)
    q = torch.randn(1, HEADS, 24, 4, generator=torch.Generator().manual_seed(0))
    context = context_of(kind, all_real(1, 24))
    bias = dense_bias(hash_rounds(q, context.frame, kind), context, dtype).float()
    tile = bias[..., :2]
    assert (tile == bias.min()).all(-1).any()
    scores = ((q @ q.mT)[..., :2] + tile) * math.log2(math.e)
    assert torch.exp2(scores - scores.amax(-1, keepdim=True)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_lone_token_of_padding_has_a_gradient_in_a_kernel_that_fills_its_last_tile(dtype):
    kind, _ = built(rounds=2)
    q = torch.randn(1, HEADS, 64, 4, generator=torch.Generator().manual_seed(0))
    context = context_of(kind, torch.arange(64)[None] < 63)
    bias = dense_bias(hash_rounds(q, context.frame, kind), context, dtype).float()
    assert (bias == 0).sum(-1).unique().tolist() == [1, 62]
    sums = (q @ torch.nn.functional.normalize(q, dim=-1).mT + bias).logsumexp(-1)
    # Such a kernel scores what it fills in as 0, and multiplies the share of that by 0.
    assert torch.exp(-sums).isfinite().all()


def test_tokens_in_another_order_give_the_same_rows_where_chunks_hold_buckets():
    kind, module = built(rounds=2, chunk=32, buckets=4)
    x = torch.randn(1, 32, WIDTH, dtype=torch.float64)
    order, context = torch.randperm(32), context_of(kind, all_real(1, 32))
    assert (module(x[:, order], context) - module(x, context)[:, order]).abs().max() < 1e-12


@pytest.mark.parametrize("chunk", [2, 64], ids=["chunked", "dense"])
def test_padding_and_batch_mates_change_nothing(chunk):
    kind, module = built(rounds=2, chunk=chunk)
    lengths, tokens = (29, 13), 34
    assert kind.dense(tokens) == (chunk == 64)
    real = torch.arange(tokens)[None] < torch.tensor(lengths)[:, None]
    x = torch.randn(2, tokens, WIDTH, dtype=torch.float64)
    together = module(x, context_of(kind, real))
    for n, length in enumerate(lengths):
        alone = module(x[n : n + 1, :length], context_of(kind, all_real(1, length)))
        assert (together[n, :length] - alone[0]).abs().max() < 1e-12
    # A gap of padding between two texts of one sequence.
    gap = torch.cat([all_real(1, 10), ~all_real(1, 5), all_real(1, 19)], 1)
    apart = module(x[:1], context_of(kind, gap))[:, gap[0]]
    joined = module(x[:1, gap[0]], context_of(kind, all_real(1, 29)))
    assert (apart - joined).abs().max() < 1e-12


def test_blocks_of_a_joint_sequence_are_hashed_apart():
    kind, module = built(rounds=2, chunk=4)
    x = torch.randn(1, 40, WIDTH, dtype=torch.float64)
    block = (torch.arange(40) >= 17).long()[None]
    joint = module(x, context_of(kind, all_real(1, 40), block=block))
    for part in (slice(0, 17), slice(17, 40)):
        size = x[:, part].shape[1]
        alone = module(x[:, part], context_of(kind, all_real(1, size)))
        assert (joint[:, part] - alone).abs().max() < 1e-12


def test_rows_are_those_of_the_whole():
    kind, module = built(rounds=2, chunk=2)
    x, real = torch.randn(2, 31, WIDTH, dtype=torch.float64), all_real(2, 31)
    whole = module(x, context_of(kind, real))
    some = (slice(0, 1), slice(20, None))
    assert (module(x, context_of(kind, real, FIRST)) - whole[:, :1]).abs().max() < 1e-12
    picked = module(x, context_of(kind, real, some))
    assert (picked - torch.cat([whole[:, :1], whole[:, 20:]], 1)).abs().max() < 1e-12


def test_gradients_of_both_paths_agree():
    kind, module = built(rounds=2, chunk=2)
    x = torch.randn(1, 30, WIDTH, dtype=torch.float64, requires_grad=True)
    context = context_of(kind, all_real(1, 30))
    expected = torch.autograd.grad(in_rounds(module, kind, x, context).square().sum(), x)[0]
    found = torch.autograd.grad(module(x, context).square().sum(), x)[0]
    assert (found - expected).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"buckets": 7}, r"buckets=7 do not divide .*even number"),
        ({"rounds": 0}, "rounds=0 .*choose 1 or more"),
        ({"chunk": 0}, "chunk=0; choose 1 or more"),
        ({"seed": -1}, "seed=-1 of lsh attention"),
    ],
)
def test_what_cannot_be_hashed_is_refused(options, why):
    with pytest.raises(SpecError, match=why):
        LSH(heads=1, head_width=4, **options)


# In a model ---------------------------------------------------------------------------------------

LONG = [np.arange(5, 5 + n) % 40 + 5 for n in (150, 131, 20)]


@pytest.fixture(scope="module")
def hashed(model) -> Model:
    """A tiny model at split 2 with windows of 200 tokens, hashed in chunks of 4 by 2 rounds."""
    whole = Model.split(model("bert", "span"), at=2)
    longer = apply(whole, parse("lengthen:tokens=200"))
    return apply(longer, parse("lsh:rounds=2,chunk=4"))


def test_states_know_nothing_of_batch_mates_and_stored_is_direct(hashed):
    runtime = TorchRuntime(hashed)
    asked = runtime.encode("query", [np.array([5, 6, 7])]).states
    together = runtime.encode("passage", LONG).states
    logits = runtime.cross(asked, together, ("span",))["span"]
    for ids, states, both in zip(LONG, together, logits, strict=True):
        alone = runtime.encode("passage", [ids]).states
        assert np.abs(alone.values - states).max() < 1e-5
        direct = runtime.cross(asked, alone, ("span",))["span"]
        assert np.abs(direct.values - both).max() < 1e-4


def test_a_seed_joins_the_fingerprint_and_keeps_the_tensors(hashed, tmp_path):
    assert from_json(ModelSpec, to_json(hashed.spec)) == hashed.spec
    first = hashed.spec.layers[0]
    other = replace(first, attention=replace(first.attention, seed=9))
    encoder = replace(hashed.spec.encoder, layers=(other, *hashed.spec.layers[1:]))
    reseeded = hashed.rebuild(replace(hashed.spec, encoder=encoder), {})
    assert reseeded.fingerprint != hashed.fingerprint
    assert set(reseeded.tensors()) == set(hashed.tensors())
    hashed.save(tmp_path / "lsh")
    again = Model.load(tmp_path / "lsh")
    assert again.fingerprint == hashed.fingerprint
    states = [TorchRuntime(m).encode("passage", LONG[:1]).states.values for m in (hashed, again)]
    assert np.array_equal(*states)
    with pytest.raises(InputError, match=r"openvino runtime \(it lacks lsh attention\)"):
        open_runtime(tmp_path / "lsh", name="openvino")


def test_it_has_no_keys_and_its_multiplications_are_those_that_torch_counts(model, hashed):
    plain = apply(Model.split(model("bert", "span"), at=2), parse("lengthen:tokens=200"))
    width, layers = plain.spec.encoder.width, len(plain.spec.layers)
    saved = layers * (width**2 + width)
    assert parameters(plain.spec).total - parameters(hashed.spec).total == saved
    built = {n: tuple(t.shape) for n, t in hashed.net.state_dict().items()}
    assert {n: t.shape for n, t in hashed.spec.tensors().items()} == built
    for tokens in (11, 150):  # all rows scored, and chunk by chunk
        ids, real = torch.full((1, tokens), 5), torch.ones(1, tokens, dtype=torch.bool)
        math = sdpa_kernel(SDPBackend.MATH)
        with torch.no_grad(), math, FlopCounterMode(display=False) as counter:
            hashed.net.input("passage", ids, real)
        expected = work(hashed.spec, query=3, passage=tokens).passage
        assert counter.get_total_flops() == 2 * expected
    costs = [
        work(spec, query=8, passage=8192).passage / work(spec, query=8, passage=1024).passage
        for spec in (plain.spec, apply(plain, parse("lsh")).spec)
    ]
    assert costs[0] > 30 > 11 > costs[1] > 8


def test_positions_of_longer_windows_repeat(model, family):
    whole = model(family, "rank")
    text = whole.spec.text
    longer = apply(whole, parse(f"lengthen:tokens={text.passage_tokens + 100}"))
    overlap = [m.spec.text.passage_tokens - m.spec.text.stride for m in (whole, longer)]
    assert overlap[0] == overlap[1]
    if (name := "embedding.positions.weight") in whole.tensors():
        start = whole.spec.encoder.embedding.position_start
        old, new = whole.tensors()[name], longer.tensors()[name]
        assert np.array_equal(new[: len(old)], old)
        assert np.array_equal(new[len(old)], old[start])
    with pytest.raises(SpecError, match=r"windows have .* already; choose more"):
        apply(whole, parse("lengthen:tokens=8"))
    # Without it, windows beyond the table are refused.
    if whole.spec.encoder.embedding.positions:
        with pytest.raises(SpecError, match=r"positions, but the table has .*lower passage_tokens"):
            Model.split(whole, at=1, passage_tokens=5000)


def test_every_family_hashes_or_says_why_not(model, family):
    whole = model(family, "rank")
    kinds = {"deberta-v2": "disentangled", "mpnet": "bucketed", "xlnet": "segmented"}
    if kind := kinds.get(family):
        with pytest.raises(SpecError, match=f"part=all has {kind} attention"):
            apply(whole, parse("lsh"))
        return
    made = Model.split(apply(whole, parse("lsh:chunk=2,rounds=1")), at=1)
    kinds = {layer.attention.kind for layer in made.spec.layers}
    assert kinds == ({"lsh", "self"} if family == "modernbert" else {"lsh"})
    runtime = TorchRuntime(made)
    together = runtime.encode("passage", [ids[:30] for ids in LONG]).states
    alone = runtime.encode("passage", [LONG[2]]).states
    assert np.abs(list(together)[2] - alone.values).max() < 1e-5


def test_layers_of_the_vector_hash_too(model):
    whole = with_vector(Model.split(model("bert", "rank"), at=1), 8, layers=1)
    for part, hashes in (("all", True), ("below", True), ("above", False)):
        made = apply(whole, parse(f"lsh:chunk=2,part={part}"))
        (layer,) = made.spec.vector.layers
        assert (layer.attention.kind == "lsh") == hashes
        vectors = TorchRuntime(made).encode("passage", [ids[:30] for ids in LONG]).vectors
        alone = TorchRuntime(made).encode("passage", [LONG[2]]).vectors
        assert np.abs(vectors[2] - alone[0]).max() < 1e-5


def test_it_learns_from_the_model_that_it_came_from(model):
    whole = apply(Model.split(model("bert", "span"), at=2), parse("lsh:chunk=2,rounds=1"))
    name = "stack.attention.0.attention.query.weight"
    recipe = Recipe(
        optimiser=Optimiser(epochs=1, batch=8),
        settings=Distillation(weights=Weights(kd=1, lrs=1)),
        precision="fp32",
    )
    after = dc.distill(whole, data=span_pairs(16), task="squad", recipe=recipe)
    assert not np.array_equal(after.tensors()[name], whole.tensors()[name])
