"""The arithmetic: packed rows through the layers, moving no row that nobody reads.

Shapes: P pairs, Q query rows a pair, N passage rows, D width, W width of the codes, I of all heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from decoupled.runtime.cuda import ops
from decoupled.runtime.cuda.batch import Joined, Pairs
from decoupled.runtime.cuda.ops import Linear
from decoupled.runtime.cuda.weights import DeviceWeights, Layer, Restore

RowsRead = Literal["first", "span"]
"""Which rows of the last layer are read: each pair's first row, or that and all passage rows."""


def read_alone(layers: Sequence[Layer], x: Joined, texts: Pairs) -> Joined:
    """These layers over texts that are read alone."""
    for layer in layers:
        x = _move(layer, x, None, None, texts, Step(rows=0, passages=True))
    return x


@dataclass(frozen=True, kw_only=True)
class Step:
    """Which rows a layer moves, and how."""

    rows: int
    """The number of query rows of each pair that move."""
    passages: bool
    """Whether passage rows move."""


class Crossing:
    """The cross component over one batch of pairs.

    It starts with the rows of each query `[G·Q,D]`, shared by its pairs, and with passages as codes `z_NW`
    (or as rows, where nothing has to be restored). Passage rows are restored when a layer first needs them.
    """

    def __init__(
        self, weights: DeviceWeights, restore: Restore | None, pairs: Pairs, last: int | None = None
    ) -> None:
        self.weights, self.restore, self.pairs, self.last = weights, restore, pairs, last
        self.folded = list(restore.folded) if restore else []

    def __call__(
        self, query_QD: Tensor, z_NW: Tensor, rows_read: RowsRead
    ) -> tuple[Tensor, Tensor | None]:
        """First rows `[P,D]`, and passage rows `[N,D]` if they are wanted."""
        x = self._start(query_QD, z_NW)
        layers = self.weights.layers[self.weights.spec.split : self.last]
        for number, layer in enumerate(layers):
            last = number == len(layers) - 1
            # Passage rows of the last layer are read only by spans, so without one they need not
            # move.
            moves = not layer.frozen and not (last and rows_read == "first")
            fold = self.folded[number] if number < len(self.folded) else None
            rows = 1 if last else self.pairs.query
            if moves and x.passage is None:
                x = self._restored(x, z_NW)
            step = Step(rows=rows, passages=moves)
            moved = _move(layer, x, fold, z_NW, self.pairs, step)
            # Frozen passages go on to the next layer as they came.
            if not moves and x.passage is not None:
                moved = Joined(query=moved.query, passage=x.passage, pair_rows=moved.pair_rows)
            x = moved
        if rows_read == "span" and x.passage is None:
            x = self._restored(x, z_NW)
        first = x.first()[self.pairs.asker] if x.shared else x.first()
        return first, x.passage if rows_read == "span" else None

    def _start(self, query_QD: Tensor, z_NW: Tensor) -> Joined:
        plain = self.restore is None
        x = Joined.of(query_QD, len(query_QD), pair_rows=self.pairs.query, shared=True)
        # States that need no restoring are rows already.
        x = replace(x, passage=z_NW, whole=None) if plain else x
        tables = self.weights.cross_embedding
        # With folded maps the codes stay codes until a layer moves them.
        if tables is None and (plain or self.folded):
            return x
        x = x if x.passage is not None else self._restored(x, z_NW)
        return x if tables is None else self._embedded(x)

    def _restored(self, x: Joined, z_NW: Tensor) -> Joined:
        assert self.restore is not None
        rows = ops.linear(z_NW, self.restore.states)
        return replace(x, passage=rows, whole=None)

    def _embedded(self, x: Joined) -> Joined:
        """The tables that some models add where query and passage meet."""
        tables, pairs, spec = self.weights.cross_embedding, self.pairs, self.weights.spec
        assert tables is not None and x.passage is not None
        room = tables.positions.num_embeddings - tables.start - 1
        query_Q = torch.arange(len(x.query), device=x.query.device) % pairs.query
        owner_N = pairs.owner_N()
        # The passage follows its query's real rows, or stands where it was encoded.
        offset = spec.text.query_tokens if spec.positions == "offset" else pairs.asks[owner_N]
        passage_N = pairs.place_N(owner_N) + offset
        rows = []
        for side, (values, place) in enumerate([(x.query, query_Q), (x.passage, passage_N)]):
            place = place.clamp(0, room)  # rows that are only room stand anywhere
            embedded = tables(values.float(), place, torch.full_like(place, side))
            rows.append(embedded.to(values.dtype))
        return replace(x, query=rows[0], passage=rows[1], whole=None)


def _move(
    layer: Layer, x: Joined, fold: Linear | None, z_NW: Tensor | None, pairs: Pairs, step: Step
) -> Joined:
    """One layer. With `fold`, passage rows' maps are taken straight from the codes."""
    rows, passages = step.rows, step.passages
    y_MI = _attended(layer, x, fold, z_NW, pairs, rows=rows, passages=passages)
    y = ops.add_norm(ops.linear(y_MI, layer.out), x, rows, pairs, layer.attention_norm)
    assert y.whole is not None
    change = ops.linear(ops.linear_active(y.whole, layer.up, layer.activation), layer.down)
    return ops.add_norm(change, y, rows, pairs, layer.ffn_norm)


def _attended(
    layer: Layer,
    x: Joined,
    fold: Linear | None,
    z_NW: Tensor | None,
    pairs: Pairs,
    *,
    rows: int,
    passages: bool,
) -> Tensor:
    """`[M,I]` values that the moving rows gather from their pair."""
    inner = layer.shape.inner
    # When every row moves, one product gives queries, keys and values.
    if passages and rows == pairs.query:
        whole = _mapped(x, layer.qkv, fold, z_NW)
        q, k, v = (_columns(whole, x, i * inner, inner) for i in range(3))
        return ops.attend(q, k, v, rows, pairs, layer.shape)
    whole = _mapped(x, layer.key_value, fold.rows(inner, 3 * inner) if fold else None, z_NW)
    k, v = (_columns(whole, x, i * inner, inner) for i in range(2))
    query = x.query if rows == pairs.query else x.first()
    if passages:
        some = Joined(query=query, passage=x.passage, pair_rows=rows)
        asking = _mapped(some, layer.query, fold.rows(0, inner) if fold else None, z_NW)
    else:
        asking = ops.linear(query, layer.query)
    q = Joined.of(asking, len(query), pair_rows=rows, shared=x.shared)
    return ops.attend(q, k, v, rows, pairs, layer.shape)


def _columns(whole: Tensor, x: Joined, first: int, width: int) -> Joined:
    own = whole[:, first : first + width]
    return Joined.of(own, len(x.query), pair_rows=x.pair_rows, shared=x.shared)


def _mapped(x: Joined, by: Linear, fold: Linear | None, z_NW: Tensor | None) -> Tensor:
    """The map of the rows of both sides, in one buffer, query rows first."""
    if fold is None and x.whole is not None:
        return ops.linear(x.whole, by)
    source = (z_NW, fold) if fold is not None else (x.passage, by)
    passage, passage_by = source
    assert passage is not None and passage_by is not None
    rows = len(x.query)
    # One buffer for both sides: attention reads them as neighbours.
    whole = x.query.new_empty(rows + len(passage), len(by.weight))
    ops.linear(x.query, by, out=whole[:rows])
    ops.linear(passage, passage_by, out=whole[rows:])
    return whole
