"""Heads: what is read off the last layer, and which rows that needs."""

from torch import Tensor, nn

from decoupled.model.nn.feed_forward import ACTIVATIONS
from decoupled.model.nn.frame import ALL, FIRST, Rows
from decoupled.model.nn.linear import build_norm
from decoupled.model.parts.head import HeadSpec
from decoupled.model.spec import DropoutSpec


class Head(nn.Module):
    """`[B,R,D]` to logits: `[B,outputs]` when pooled, `[B,R,2]` for spans."""

    def __init__(self, spec: HeadSpec, *, width: int, dropout: DropoutSpec) -> None:
        super().__init__()
        self.spec = spec
        dense = spec.dense
        self.dense = nn.Linear(width, width, bias=dense.bias) if dense else None
        self.norm = build_norm(dense.norm, width) if dense and dense.norm else None
        self.dropout = nn.Dropout(dropout.hidden)
        self.out = nn.Linear(width, spec.outputs)

    def forward(self, x_BRD: Tensor, real_BR: Tensor) -> Tensor:
        return self.out(self.dropout(self.pool(x_BRD, real_BR)))

    def pool(self, x_BRD: Tensor, real_BR: Tensor) -> Tensor:
        """The input of the output layer: `[B,D]` when pooled, `[B,R,D]` for spans."""
        if self.spec.kind == "span":
            x = x_BRD
        elif self.spec.pooling == "mean":
            weight = real_BR[..., None].to(x_BRD.dtype)
            # Padding has weight 0, so it neither adds to the sum nor to the count.
            x = (x_BRD * weight).sum(1) / weight.sum(1)
        else:
            x = x_BRD[:, 0]
        if self.dense is not None and self.spec.dense is not None:
            x = ACTIVATIONS[self.spec.dense.activation](self.dense(x))
        return x if self.norm is None else self.norm(x)


def rows_needed(heads: list[HeadSpec], query: int) -> Rows:
    """Rows of the last layer that these heads read; the first row is the query's first token.

    A span is read off the passage rows and its no-answer score off the first row. The rest of the query
    is read by no head unless it pools by mean.
    """
    if any(head.reads_all for head in heads):
        return ALL
    if any(head.kind == "span" for head in heads):
        return (slice(0, 1), slice(query, None))
    return FIRST
