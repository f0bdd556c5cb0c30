"""The steps of the CUDA runtime one by one, and the choices there are for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from decoupled.model.codec import Layout
from decoupled.runtime.cuda import ops
from decoupled.runtime.cuda.batch import Joined, Pairs, pairs_of
from decoupled.runtime.cuda.block import Block, Decoder
from gpu_clock import Clock
from gpu_setup import PASSAGE_TOKENS, QUERY_TOKENS, Shape

TILES = (
    ops.Tile(rows=64, keys=64, warps=4, stages=2),
    ops.Tile(rows=64, keys=64, warps=4, stages=3),
    ops.Tile(rows=64, keys=32, warps=4, stages=3),
    ops.Tile(rows=64, keys=128, warps=4, stages=2),
    ops.Tile(rows=128, keys=64, warps=8, stages=2),
    ops.Tile(rows=128, keys=64, warps=4, stages=2),
)
NARROW = (
    ops.Tile(rows=32, keys=64, warps=2, stages=3),
    ops.Tile(rows=32, keys=64, warps=4, stages=3),
    ops.Tile(rows=32, keys=32, warps=2, stages=3),
    ops.Tile(rows=32, keys=128, warps=4, stages=2),
    ops.Tile(rows=64, keys=64, warps=4, stages=2),
)


def measure(clock: Clock, shape: Shape, rounds: int) -> dict[str, Any]:
    """Attention by tile and against `varlen_attn`, products with and without what rides on them, norms."""
    count = 200 if clock.cuda else 4
    pairs = _pairs(count, clock.device)
    found: dict[str, Any] = {"pairs": count}
    for name, work in (("full attention", _full), ("query rows", _few), ("products", _products)):
        found[name] = clock.compare(work(clock, shape, pairs), rounds=rounds)
    return found


def _pairs(count: int, device: torch.device) -> Pairs:
    length = np.full(count, PASSAGE_TOKENS)
    start = np.cumsum(length) - length
    numbers = torch.tensor([QUERY_TOKENS, *start, *start, *length]).to(device)
    tokens = int(length.sum())
    return pairs_of(numbers, query=QUERY_TOKENS, tokens=tokens, longest=PASSAGE_TOKENS)


def _full(clock: Clock, shape: Shape, pairs: Pairs) -> dict[str, Callable[[], Any]]:
    heads = ops.Shape(heads=shape.heads, width=shape.width // shape.heads)
    first = pairs.count * pairs.query
    whole = _random(clock, first + pairs.tokens, 3 * heads.inner)
    q, k, v = (
        Joined.of(part, first, pair_rows=pairs.query) for part in whole.split(heads.inner, dim=1)
    )
    works: dict[str, Callable[[], Any]] = {
        "chosen": lambda: ops.attend(q, k, v, pairs.query, pairs, heads)
    }
    if not clock.cuda:
        return works
    for tile in TILES:
        works[str(tile)] = lambda t=tile: ops._attend_cuda(q, k, v, pairs.query, pairs, heads, t)
    return works | _varlen(clock, pairs, heads)


def _varlen(clock: Clock, pairs: Pairs, heads: ops.Shape) -> dict[str, Callable[[], Any]]:
    """The attention of torch on the same rows, pair after pair."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return {}
    each = pairs.query + pairs.longest
    whole = _random(clock, pairs.count * each, 3 * heads.inner)
    q, k, v = (x.view(-1, heads.heads, heads.width) for x in whole.split(heads.inner, dim=1))
    steps = torch.arange(pairs.count + 1, device=clock.device, dtype=torch.int32) * each
    return {"varlen_attn of torch": lambda: varlen_attn(q, k, v, steps, steps, each, each)}


def _few(clock: Clock, shape: Shape, pairs: Pairs) -> dict[str, Callable[[], Any]]:
    heads = ops.Shape(heads=shape.heads, width=shape.width // shape.heads)
    first = pairs.count * pairs.query
    whole = _random(clock, first + pairs.tokens, 2 * heads.inner)
    k, v = (Joined.of(x, first, pair_rows=pairs.query) for x in whole.split(heads.inner, dim=1))
    q = Joined.of(_random(clock, first, heads.inner), first, pair_rows=pairs.query)
    one = Joined.of(_random(clock, pairs.count, heads.inner), pairs.count, pair_rows=1)
    rows = Joined.of(
        _random(clock, first + pairs.tokens, shape.width), first, pair_rows=pairs.query
    )
    asking = _random(clock, heads.heads, pairs.count, shape.width)
    layout = Layout(kind="int8", width=shape.width, codes_at=0, scale_at=shape.width, restore=None)
    decode = Decoder(layout, device=clock.device, dtype=torch.bfloat16)
    block = Block(
        codes=torch.randint(0, 256, (pairs.tokens, shape.width), dtype=torch.uint8).to(
            clock.device
        ),
        tail=torch.full((pairs.tokens, 2), 40, dtype=torch.uint8).to(clock.device),
    )
    codes = _random(clock, pairs.tokens, shape.width)
    works: dict[str, Callable[[], Any]] = {
        "chosen, query rows": lambda: ops.attend(q, k, v, pairs.query, pairs, heads),
        "first rows over keys and values": lambda: ops.attend(one, k, v, 1, pairs, heads),
        "first rows over rows": lambda: ops.attend_rows(asking, rows, pairs, 0.125),
        "codes of int8": lambda: decode(block, pairs, codes),
    }
    for tile in NARROW if clock.cuda else ():
        works[str(tile)] = lambda t=tile: ops._attend_cuda(q, k, v, pairs.query, pairs, heads, t)
    return works


def _products(clock: Clock, shape: Shape, pairs: Pairs) -> dict[str, Callable[[], Any]]:
    rows = pairs.count * pairs.query + pairs.tokens
    x, hidden = _random(clock, rows, shape.width), _random(clock, rows, shape.inner)
    qkv, up, down = (
        ops.Linear(weight=_random(clock, outs, ins), bias=_random(clock, outs))
        for outs, ins in (
            (3 * shape.width, shape.width),
            (shape.inner, shape.width),
            (shape.width, shape.inner),
        )
    )
    norm = ops.Norm(weight=_random(clock, shape.width), bias=_random(clock, shape.width), eps=1e-12)
    joined = Joined.of(x, pairs.count * pairs.query, pair_rows=pairs.query)
    return {
        "qkv": lambda: ops.linear(x, qkv),
        "up": lambda: ops.linear(x, up),
        "up and gelu": lambda: ops.linear_active(x, up, "gelu"),
        "up, then gelu": lambda: F.gelu(ops.linear(x, up)),
        "down": lambda: ops.linear(hidden, down),
        "add and norm": lambda: ops.add_norm(x, joined, pairs.query, pairs.count, norm),
    }


def _random(clock: Clock, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=clock.device, dtype=torch.bfloat16)
