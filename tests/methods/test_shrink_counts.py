"""The tables of the seed, counted from specs: parameters and arithmetic of what the methods make."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from decoupled.methods.count import (
    pair_macs,
    parameters,
    weight_bytes,
)
from decoupled.methods.factorise.part import Factorised
from decoupled.methods.fixed_heads.shrink import SetPatterns
from decoupled.methods.names import parse
from decoupled.methods.theseus.shrink import Theseus
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.attention import SelfAttention
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.feed_forward import FeedForwardSpec
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.spec import EncoderSpec, ModelSpec, TextSpec

TEXT = TextSpec(query_prefix=(1,), query_suffix=(2,), passage_prefix=(), passage_suffix=(2,))


def encoder(
    *,
    vocab: int,
    width: int,
    layers: int,
    heads: int,
    ffn: int,
    narrow: int | None = None,
    bias: bool = True,
) -> ModelSpec:
    attention = SelfAttention(heads=heads, head_width=width // heads, bias=bias)
    made = tuple(
        LayerSpec(
            attention=attention,
            ffn=FeedForwardSpec(width=ffn, bias=bias),
            attention_slot=n,
            ffn_slot=n,
        )
        for n in range(layers)
    )
    table = EmbeddingSpec(
        vocab=vocab,
        width=narrow or width,
        positions=512,
        types=2,
        project="after_norm" if narrow else "none",
    )
    spec = EncoderSpec(width=width, embedding=table, layers=made)
    return ModelSpec(family="bert", encoder=spec, text=TEXT)


def pooler(width: int) -> int:
    return width * width + width


BERT = encoder(vocab=30522, width=768, layers=12, heads=12, ffn=3072)
ALBERT = encoder(vocab=30000, width=768, layers=12, heads=12, ffn=3072, narrow=128)
WIDE = encoder(vocab=30000, width=768, layers=12, heads=12, ffn=3072)


def test_bert_and_the_theseus_successor():
    assert parameters(BERT) + pooler(768) == 109_482_240
    successor = Theseus(layers=6).rewrite(BERT)
    assert parameters(successor) + pooler(768) == 66_955_008
    one = parameters(BERT) - parameters(
        parse("keep-layers:layers=0/1/2/3/4/5/6/7/8/9/10").rewrite(BERT)
    )
    assert one == 7_087_872
    large = encoder(vocab=30522, width=1024, layers=24, heads=16, ffn=4096)
    assert parameters(large) + pooler(1024) == 335_141_888


def test_albert_shares_all_of_its_layers():
    shared = parse("share:scope=global").rewrite(ALBERT)
    assert parameters(shared) + pooler(768) == 11_683_584
    for width, heads, layers, total in (
        (1024, 16, 24, 17_683_968),
        (2048, 16, 24, 58_724_864),
        (4096, 64, 12, 222_595_584),
    ):
        spec = encoder(
            vocab=30000, width=width, layers=layers, heads=heads, ffn=4 * width, narrow=128
        )
        assert parameters(parse("share:scope=global").rewrite(spec)) + pooler(width) == total


@pytest.mark.parametrize(
    ("mode", "narrow", "wide"),
    [
        ("all", 11.68, 31.11),
        ("attention", 63.65, 83.08),
        ("ffn", 37.69, 57.12),
        (None, 89.65, 109.08),
    ],
)
def test_what_sharing_a_part_saves(mode, narrow, wide):
    for spec, millions in ((ALBERT, narrow), (WIDE, wide)):
        shared = parse(f"share:scope=global,mode={mode}").rewrite(spec) if mode else spec
        assert (parameters(shared) + pooler(768)) / 1e6 == pytest.approx(millions, abs=0.005)
        assert pair_macs(shared, 20, 150) == pair_macs(spec, 20, 150), "sharing saves no arithmetic"


@pytest.mark.parametrize(
    ("rank", "millions", "published"), [(64, 87.06, 87), (128, 89.06, 89), (256, 93.06, 93)]
)
def test_factorised_tables(rank, millions, published):
    spec = encoder(vocab=30000, width=768, layers=12, heads=12, ffn=3072, narrow=rank)
    assert parameters(spec) / 1e6 == pytest.approx(millions, abs=0.01)
    assert abs(parameters(spec) / 1e6 - published) < 1
    ours = parse(f"factorise-embedding:rank={rank}").rewrite(WIDE)
    assert isinstance(ours.encoder.embedding.table, Factorised)
    assert parameters(WIDE) - parameters(ours) == 30000 * (768 - rank) - rank * 768


@pytest.mark.parametrize(("learned", "saved"), [(0, 3_145_728), (1, 2_752_512)])
def test_fixed_patterns_save_their_queries_and_keys(learned, saved):
    spec = encoder(vocab=100, width=512, layers=6, heads=8, ffn=2048, bias=False)
    pairs = tuple((h, "current") for h in range(8 - learned))
    given = tuple((n, pairs) for n in range(6))
    fixed = SetPatterns(assigned=given).rewrite(spec)
    assert parameters(spec) - parameters(fixed) == saved
    tokens, heads = 40, 8 - learned
    before, after = (s.layers[0].macs(512, rows=tokens, tokens=tokens) for s in (spec, fixed))
    gone = before - after
    # Our own scores and mixing both vanish; the specification counts a dense pattern product as mixing.
    assert gone == heads * (tokens * 2 * 512 * 64 + 2 * tokens**2 * 64)


def test_macs_are_those_of_the_modules():
    """Against what torch counts while the modules run."""
    spec = encoder(vocab=100, width=64, layers=2, heads=4, ffn=96)
    thin = replace(
        spec,
        encoder=replace(
            spec.encoder,
            layers=tuple(
                replace(layer, ffn_maps=LinearSpec(rank=8), attention_maps=LinearSpec(rank=12))
                for layer in spec.layers
            ),
        ),
    )
    for one in (spec, thin):
        net = PairEncoder(replace(one, split=2, positions="restart")).eval()
        ids = torch.arange(10)[None]
        # Fused attention on a CPU is not counted.
        plain = sdpa_kernel(SDPBackend.MATH)
        with FlopCounterMode(display=False) as counter, torch.no_grad(), plain:
            net.hidden("query", ids, torch.ones_like(ids, dtype=torch.bool))
        assert (
            counter.get_total_flops()
            == 2 * pair_macs(replace(one, split=2, positions="restart"), 10, 10)["query"]
        )


def test_codes_weigh_less():
    coded = parse("quantise").rewrite(BERT)
    assert parameters(coded) == parameters(BERT)
    assert weight_bytes(BERT) == 4 * parameters(BERT)
    assert weight_bytes(coded) < 0.27 * weight_bytes(BERT)
    four = parse("quantise:bits=4,inputs=float").rewrite(BERT)
    assert parameters(four) == parameters(BERT) and weight_bytes(four) < weight_bytes(coded)
