"""The steps of the CUDA runtime. Each is given in plain torch; on a GPU some run as Triton kernels.

The plain forms are the definition, and what runs in tests on a CPU. Shapes: M rows that move (query rows
of all pairs, then passage rows), P pairs, N passage rows, C columns, H heads, K head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.model.nn.feed_forward import ACTIVATIONS
from decoupled.model.parts.feed_forward import Activation
from decoupled.runtime.cuda.batch import Joined, Pairs


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """A linear layer `x @ weight.T + bias`."""

    weight: Tensor
    bias: Tensor | None

    def rows(self, first: int, last: int) -> Linear:
        """The layer with some of its outputs; a view."""
        bias = None if self.bias is None else self.bias[first:last]
        return Linear(weight=self.weight[first:last], bias=bias)


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm:
    """Layer normalisation."""

    weight: Tensor
    bias: Tensor | None
    eps: float


NORM_ROWS, NORM_WARPS = 4, 4
"""Rows that a program of `add_norm` reads at a time, and its warps."""
RIDES = True
"""Let activations ride on matrix products? Both ways: `steps` of benchmarks/results/gpu_rerank.json."""


def linear(x_MC: Tensor, by: Linear, out: Tensor | None = None) -> Tensor:
    """The linear layer of each row, into `out` where it is given; one fused call adds the bias."""
    if by.bias is None:
        return torch.mm(x_MC, by.weight.T, out=out)
    return torch.addmm(by.bias, x_MC, by.weight.T, out=out)


def linear_active(x_MC: Tensor, by: Linear, activation: Activation) -> Tensor:
    """The linear layer followed by an activation.

    On a GPU, GELU and ReLU ride on the matrix product too. That GELU is the tanh form: at most 5e-4 from
    the exact one, where bf16 itself rounds by up to 4e-3 of a value.
    """
    # cuBLAS applies these activations as it writes the product, which saves a pass over memory.
    rides = RIDES and activation in ("gelu", "gelu_tanh", "relu")
    if x_MC.is_cuda and by.bias is not None and rides:
        gelu = activation != "relu"
        return torch._addmm_activation(by.bias, x_MC, by.weight.T, use_gelu=gelu)
    return ACTIVATIONS[activation](linear(x_MC, by))


def add_norm(change_MC: Tensor, x: Joined, moved: int, pairs: Pairs, norm: Norm) -> Joined:
    """`norm(x + change)` of `moved` query rows of each pair, then of passage rows if there are more."""
    add = _add_norm_cuda if change_MC.is_cuda else _add_norm
    whole = add(change_MC, x, moved, pairs, norm)
    return Joined.of(whole, pairs.count * moved, pair_rows=max(moved, 1))


def _add_norm(change_MC: Tensor, x: Joined, moved: int, pairs: Pairs, norm: Norm) -> Tensor:
    border = pairs.count * moved
    parts = [x.query[query_rows(x, moved, pairs).flatten()]] if border else []
    if len(change_MC) > border:
        assert x.passage is not None
        parts.append(x.passage)
    # The norm is computed in fp32, as in the kernel.
    total = (torch.cat(parts) + change_MC).float()
    weight, bias = norm.weight.float(), None if norm.bias is None else norm.bias.float()
    return F.layer_norm(total, weight.shape, weight, bias, norm.eps).to(change_MC.dtype)


def query_rows(x: Joined, rows: int, pairs: Pairs) -> Tensor:
    """`[P,rows]`: where the first query rows of each pair are."""
    group = pairs.asker if x.shared else torch.arange(pairs.count)
    return torch.arange(rows) + x.pair_rows * group[:, None]


def _add_norm_cuda(change_MC: Tensor, x: Joined, moved: int, pairs: Pairs, norm: Norm) -> Tensor:
    import triton

    from decoupled.runtime.cuda.kernels import add_norm_kernel

    rows, width = change_MC.shape
    out = torch.empty_like(change_MC)
    block = triton.next_power_of_2(width)
    add_norm_kernel[(-(-rows // NORM_ROWS),)](
        change_MC,
        x.query,
        # The kernel takes no missing pointers; what stands in is masked and never read.
        x.query if x.passage is None else x.passage,
        norm.weight,
        norm.weight if norm.bias is None else norm.bias,
        out,
        pairs.asker,
        rows,
        pairs.count * moved,
        max(moved, 1),
        x.pair_rows,
        norm.eps,
        WIDTH=width,
        BLOCK=block,
        BM=NORM_ROWS,
        BIAS=norm.bias is not None,
        SHARED=x.shared,
        num_warps=NORM_WARPS if block <= 1024 else 8,
    )
    return out


@dataclass(frozen=True, kw_only=True)
class ProductShape:
    """The number of heads and their width."""

    heads: int
    width: int

    @property
    def inner(self) -> int:
        """Columns of all heads together."""
        return self.heads * self.width


def attend(
    q: Joined, k: Joined, v: Joined, moved: int, pairs: Pairs, shape: ProductShape
) -> Tensor:
    """`[M,H·K]`: each moving row attends to the real rows of its pair, those of both sides.

    `q` holds `moved` query rows a pair, and passage rows where they move.
    """
    if q.query.is_cuda or (q.passage is not None and q.passage.is_cuda):
        return _attend_cuda(q, k, v, moved, pairs, shape)
    q_index, q_real = _pair_rows(q, pairs, moved, torch.tensor(moved))
    k_index, k_real = _pair_rows(k, pairs, pairs.query, pairs.asks[:, None])

    def heads_of(x: Joined, index_PT: Tensor) -> Tensor:
        rows = torch.cat([x.query] if x.passage is None else [x.query, x.passage])
        # Padding may point past the buffer; the mask hides what it reads.
        flat = rows[index_PT.clamp(max=len(rows) - 1)]
        return flat.view(*index_PT.shape, shape.heads, shape.width).transpose(1, 2)

    y_PHTK = F.scaled_dot_product_attention(
        heads_of(q, q_index), heads_of(k, k_index), heads_of(v, k_index), k_real[:, None, None]
    )
    rows = pairs.count * moved + (pairs.tokens if q.passage is not None else 0)
    out = y_PHTK.new_zeros(rows, shape.inner)
    own = Joined(query=out[: pairs.count * moved], passage=q.passage, pair_rows=moved)
    to, _ = _pair_rows(own, pairs, moved, torch.tensor(moved))
    # Only real rows are written, since passages of several pairs share one buffer without gaps.
    out[to[q_real]] = y_PHTK.transpose(1, 2).flatten(2)[q_real]
    return out


def _pair_rows(x: Joined, pairs: Pairs, rows: int, asks: Tensor) -> tuple[Tensor, Tensor]:
    """`[P,T]` rows of each pair in a joined buffer, `rows` of its query, and which of them are real."""
    longest = pairs.longest if x.passage is not None else 0
    passage_PL = len(x.query) + pairs.start[:, None] + torch.arange(longest)
    real_PQ = (torch.arange(rows) < asks).expand(pairs.count, -1)
    real_PL = torch.arange(longest) < pairs.length[:, None]
    index_PT = torch.cat([query_rows(x, rows, pairs), passage_PL], 1)
    return index_PT, torch.cat([real_PQ, real_PL], 1)


@dataclass(frozen=True, kw_only=True)
class KernelTile:
    """How much of one pair and head a program of the attention kernel computes at a time."""

    rows: int
    keys: int
    warps: int
    stages: int


FULL = KernelTile(rows=64, keys=64, warps=4, stages=3)
"""The tile for layers that move every row: three of them cover a query and a passage of ordinary length."""
FEW = KernelTile(rows=32, keys=64, warps=2, stages=3)
"""The tile for layers that move query rows alone."""
ONE = KernelTile(rows=16, keys=64, warps=2, stages=3)
"""The tile for first rows alone; the tensor cores take no fewer than 16."""


def tile_for(rows: int) -> KernelTile:
    """The tile for so many rows per pair."""
    return ONE if rows <= 16 else FEW if rows <= 32 else FULL


def _attend_cuda(
    q: Joined, k: Joined, v: Joined, moved: int, pairs: Pairs, shape: ProductShape
) -> Tensor:
    import triton

    from decoupled.runtime.cuda.kernels import LOG2_E, attend_kernel

    passages = q.passage is not None
    longest = moved + (pairs.longest if passages else 0)
    tile = tile_for(longest)
    blocks = max(1, -(-longest // tile.rows))
    q_all, k_all, v_all = _buffer(q), _buffer(k), _buffer(v)
    rows = pairs.count * moved + (pairs.tokens if passages else 0)
    out = q_all.new_empty(rows, shape.inner)
    attend_kernel[(pairs.count * shape.heads * blocks,)](
        q_all,
        k_all,
        v_all,
        out,
        pairs.asker,
        pairs.asks,
        pairs.start,
        pairs.length,
        q_all.stride(0),
        k_all.stride(0),
        out.stride(0),
        q.pair_rows,
        k.pair_rows,
        len(q.query),
        len(k.query),
        moved,
        pairs.count,
        blocks,
        LOG2_E / math.sqrt(shape.width),
        HEADS=shape.heads,
        WIDTH=shape.width,
        PADDED=max(16, triton.next_power_of_2(shape.width)),
        PASSAGES=passages,
        Q_SHARED=q.shared,
        K_SHARED=k.shared,
        BM=tile.rows,
        BN=tile.keys,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


def _buffer(x: Joined) -> Tensor:
    if x.whole is not None:
        return x.whole
    assert x.passage is None, "attention reads both sides from one buffer"
    return x.query


def segment_mean(x_NC: Tensor, pairs: Pairs) -> Tensor:
    """`[P,C]` fp32: the mean of each passage's rows."""
    if x_NC.is_cuda:
        return _segment_mean_cuda(x_NC, pairs)
    owner_N = pairs.owner_N()
    # Rows past the last passage belong to nobody and must not enter a mean.
    real_N = torch.arange(len(x_NC)) < (pairs.start + pairs.length)[owner_N]
    total = x_NC.new_zeros(pairs.count, x_NC.shape[1], dtype=torch.float32)
    total.index_add_(0, owner_N[real_N], x_NC[real_N].float())
    return total / pairs.length.clamp(min=1)[:, None]


def _segment_mean_cuda(x_NC: Tensor, pairs: Pairs) -> Tensor:
    import triton

    from decoupled.runtime.cuda.kernels import mean_kernel

    width = x_NC.shape[1]
    out = torch.empty(pairs.count, width, dtype=torch.float32, device=x_NC.device)
    block = triton.next_power_of_2(width)
    mean_kernel[(pairs.count,)](x_NC, pairs.start, pairs.length, out, WIDTH=width, BLOCK=block)
    return out
