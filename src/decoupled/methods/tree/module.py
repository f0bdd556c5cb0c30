"""Attention over a tree, nodes being rows among those of the tokens (Nguyen et al., 2020).

The value of node i is the mean over the tokens j under it of `w_j Ŝ[i,j]`, and `Ŝ[i,j]` the mean of token j
and of the nodes from it up to i, each with the embeddings of its height above j and of the place of j under
it. All nodes at once: sums along a path are products with "t is under i". M: nodes of the longest text.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from decoupled.methods.tree.part import TreeAttention
from decoupled.methods.tree.text import SPAN, TreeText
from decoupled.model.nn.attention.base import build_attention
from decoupled.model.nn.attention.dot import DotProductAttention
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import Frame, take
from decoupled.model.parts.linear import LinearSpec


class Tree(NamedTuple):
    """The nodes of a batch of texts."""

    row: Tensor
    """`[B,M]` rows of the nodes; entries beyond a text's nodes repeat some row."""
    holds: Tensor
    """`[B,M,T]` tokens that are under each node."""
    under: Tensor
    """`[B,M,M]` nodes that are under each node, itself among them."""
    place: Tensor
    """`[B,M,T]` rank of a token under a node, from 1."""
    sees: Tensor
    """`[B,1,T,T]` rows that each row may look at."""

    @classmethod
    def of(cls, ids_BT: Tensor, real_BT: Tensor, text: TreeText) -> Tree:
        """Read the tree of each text off the ids of its nodes."""
        node_BT = (ids_BT >= text.first) & real_BT
        leaf_BT = ~node_BT & real_BT
        seen_BT = leaf_BT.long().cumsum(1)
        most = int(node_BT.sum(1).max())
        row_BM = (~node_BT).to(torch.int8).argsort(dim=1, stable=True)[:, :most]
        there_BM = node_BT.gather(1, row_BM)
        end_BM = seen_BT.gather(1, row_BM)
        # A node's id holds its number of tokens, which are the last ones before it.
        start_BM = end_BM - (ids_BT.gather(1, row_BM) - text.first) % SPAN
        index_B1T = (seen_BT - 1)[:, None]
        holds = (index_B1T >= start_BM[..., None]) & (index_B1T < end_BM[..., None])
        holds = holds & leaf_BT[:, None] & there_BM[..., None]
        inside = (start_BM[:, :, None] <= start_BM[:, None]) & (
            end_BM[:, None] <= end_BM[..., None]
        )
        under = (
            inside
            # Children come before their parents, so of equal spans the later row is the parent.
            & (row_BM[:, None] <= row_BM[..., None])
            & there_BM[:, None]
            & there_BM[..., None]
        )
        sees = leaf_BT[:, None].expand(-1, ids_BT.shape[1], -1)
        nodes = torch.zeros_like(holds).scatter(2, row_BM[:, None].expand_as(under), under)
        rows = row_BM[..., None].expand_as(holds)
        own = torch.where(there_BM[..., None], holds | nodes, sees.gather(1, rows))
        sees = sees.scatter(1, rows, own)
        return cls(row_BM, holds, under, index_B1T - start_BM[..., None] + 1, sees[:, None])


def nodes_of(frame: Frame) -> Tree | None:
    """The tree of the frame's texts, built once for all layers; None without nodes."""
    if frame.structure is None:
        return None
    text, ids_BT = frame.structure
    assert isinstance(text, TreeText)
    return frame.cached("tree", lambda: Tree.of(ids_BT, frame.real_BT, text))


@build_attention.register(TreeAttention)
class TreeAttentionModule(DotProductAttention):
    """Which rows are nodes is said by the frame; without that, it is ordinary attention."""

    weigh: nn.Module

    def __init__(
        self, kind: TreeAttention, *, width: int, dropout: float, linear: LinearSpec
    ) -> None:
        super().__init__(kind, width=width, dropout=dropout, linear=linear)
        half = kind.head_width // 2
        self.vertical = nn.Parameter(torch.zeros(kind.vertical + 1, half))
        self.horizontal = nn.Parameter(torch.zeros(kind.horizontal + 1, half))

    def look(self, x_BTD: Tensor, v_BHTK: Tensor, context: Context) -> Tensor:
        tree = nodes_of(context.frame)
        if tree is None:
            return super().look(x_BTD, v_BHTK, context)
        made_BHMK = self.accumulated(x_BTD, v_BHTK, tree)
        rows = tree.row[:, None, :, None].expand_as(made_BHMK)
        real_BM = tree.holds.any(-1)[:, None, :, None]
        v_BHTK = v_BHTK.scatter(2, rows, torch.where(real_BM, made_BHMK, v_BHTK.gather(2, rows)))
        q_BHRK, k_BHTK = self._queries_and_keys(x_BTD, context)
        return self.attend(q_BHRK, k_BHTK, v_BHTK, take(tree.sees, context.rows, 2))

    def accumulated(self, x_BTD: Tensor, v_BHTK: Tensor, tree: Tree) -> Tensor:
        """`[B,H,M,K]` values of the nodes."""
        holds, under = tree.holds.to(v_BHTK.dtype), tree.under.to(v_BHTK.dtype)
        height = under @ holds  # of a node above a token under it
        # 1 / (1 + #nodes on the path), and 1 / |leaves(i)| of the mean over tokens.
        share = holds / (1 + height) / holds.sum(-1, keepdim=True).clamp(min=1)
        weight_BHMT = self.weigh(x_BTD).transpose(1, 2)[:, :, None] * share[:, None]
        rows = tree.row[:, None, :, None].expand(-1, v_BHTK.shape[1], -1, v_BHTK.shape[-1])
        nodes_BHMK = v_BHTK.gather(2, rows)
        along_BHMM = (weight_BHMT @ holds[:, None].mT) * under[:, None]
        tables = ((self.vertical, height.long()), (self.horizontal, tree.place))
        where = torch.cat([t[at.clamp(0, len(t) - 1)] for t, at in tables], -1)
        # The path from token t up to node i: embeddings of all nodes j under i that hold t.
        path_BMTK = torch.einsum("bij,bjt,bjtk->bitk", under, holds, where.to(v_BHTK.dtype))
        placed = torch.einsum("bhit,bitk->bhik", weight_BHMT, path_BMTK)
        return weight_BHMT @ v_BHTK + along_BHMM @ nodes_BHMK + placed

    def mask(self, context: Context) -> Tensor | None:
        return self.rows_of(context.frame.mask(None), context)
