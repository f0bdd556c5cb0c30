"""The pair encoder: embedding and lower layers on one text, upper layers on two, heads on top."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.model.nn.block import Context
from decoupled.model.nn.embedding import CrossEmbedding, Embedding
from decoupled.model.nn.frame import ALL, Frame, KeysValues, Past, Rows, take
from decoupled.model.nn.head import Head, rows_needed
from decoupled.model.nn.stack import Observe, Stack
from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import VECTOR, ModelSpec, Side


class Vector(nn.Linear):
    """The learned map to a text's vector, and the layers that come before it where there are some."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec.encoder.width, spec.vector_width, bias=False)
        own = spec.stacks.get(VECTOR)
        self.stack = Stack(own) if own else None


class LateHead(nn.Linear):
    """Late-interaction score of a pair: the mean over query tokens of the best match among passage states."""

    def __init__(self, spec: ModelSpec) -> None:
        assert spec.late is not None
        super().__init__(spec.state_width("passage"), spec.late.width, bias=False)
        # The logarithm of the scale, so that it stays positive; 0 is a factor of 1.
        self.scale = nn.Parameter(torch.zeros(1))
        self.special = len(spec.text.query_prefix), len(spec.text.query_suffix)

    def score(
        self, query_BQW: Tensor, query_real_BQ: Tensor, passage_BPW: Tensor, passage_real_BP: Tensor
    ) -> Tensor:
        """`[B]` scores of one query and one passage per row, padded on the right."""
        query_BQV, passage_BPV = (F.normalize(self(x), dim=-1) for x in (query_BQW, passage_BPW))
        dots_BQP = query_BQV @ passage_BPV.mT
        # MaxSim of ColBERT (Khattab and Zaharia, 2020), over the states as the index stores them.
        best_BQ = dots_BQP.masked_fill(~passage_real_BP[:, None], -torch.inf).amax(-1)
        asks_BQ = self.words(query_real_BQ)
        mean_B = best_BQ.masked_fill(~asks_BQ, 0).sum(1) / asks_BQ.sum(1)
        return mean_B * self.scale.exp()

    def words(self, real_BQ: Tensor) -> Tensor:
        """`[B,Q]` mask of the query's tokens that are not special, or of the first if all are."""
        before, after = self.special
        place_Q = torch.arange(real_BQ.shape[1], device=real_BQ.device)
        words_BQ = (place_Q >= before) & (place_Q < real_BQ.sum(1, keepdim=True) - after)
        return words_BQ | (~words_BQ.any(1, keepdim=True) & (place_Q == 0))


class PairEncoder(nn.Module):
    """Everything with weights."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        encoder = spec.encoder
        self.embedding = Embedding(encoder)
        self.stack = Stack(encoder)
        projection = spec.projection
        self.projection = nn.ModuleDict()
        if projection:
            self.projection["down"] = nn.Linear(encoder.width, projection.width)
            self.projection["up"] = nn.Linear(projection.width, encoder.width)
        self.vector = Vector(spec) if spec.vector is not None else None
        self.late = LateHead(spec) if spec.late is not None else None
        norm = spec.cross_embed == "add_ln"
        self.cross_embedding = (
            CrossEmbedding(encoder, norm=norm) if spec.cross_embed != "none" else None
        )
        self.heads, self.exits = nn.ModuleDict(), nn.ModuleDict()
        for head in spec.heads:
            self.heads[head.kind] = Head(head, width=encoder.width, dropout=encoder.dropout)
        for exit_ in spec.exits:
            for head in (spec.head(kind) for kind in exit_.heads):
                own = Head(head, width=encoder.width, dropout=encoder.dropout)
                self.exits[exit_.key(head.kind)] = own
            if exit_.halts:
                self.exits[exit_.key("halt")] = nn.Linear(encoder.width, 1)

    def embed(self, side: Side, ids_BT: Tensor, position_BT: Tensor) -> Tensor:
        """Vectors of one side's tokens at the given positions."""
        text = self.spec.text
        types = torch.full_like(ids_BT, text.query_type if side == "query" else text.passage_type)
        if text.structure is not None:
            ids_BT = text.structure.in_table(ids_BT)
        return self.embedding(ids_BT, position_BT, types)

    def input(
        self,
        side: Side,
        ids_BT: Tensor,
        real_BT: Tensor,
        query_length: Tensor | int = 0,
        *,
        vectors: bool = True,
        before_B: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The input component: states `[B,T,W]` of texts that are read alone, and a unit vector of each.

        Only a model at split 0 with joint positions uses the length of each passage's query: one for all, or
        `[B,1]`. Without `vectors`, those are 0 wide. Of windows that remember, `before_B` says which row is
        the one before each, -1 where there is none.
        """
        kept: list[Tensor] = []

        def observe(context: Context, x_BTD: Tensor, _: Tensor) -> None:
            if self.spec.store == "kv" and side == "passage":
                kept.append(self.stack.attending(context).cached(x_BTD, context))

        x_BTD = self.hidden(
            side, ids_BT, real_BT, query_length=query_length, before_B=before_B, observe=observe
        )
        vector_BV = self.pool(x_BTD, real_BT) if vectors else x_BTD.new_zeros(len(x_BTD), 0)
        if kept:
            return torch.cat([x_BTD, *kept], 2), vector_BV
        if self.spec.store == "kv":
            # A query reads its passage from the first layer on, so that its states begin there.
            x_BTD = self.hidden(side, ids_BT, real_BT, split=0)
        return self.compress(side, x_BTD), vector_BV

    def hidden(
        self,
        side: Side,
        ids_BT: Tensor,
        real_BT: Tensor,
        *,
        query_length: Tensor | int = 0,
        split: int | None = None,
        padded: bool | None = None,
        observe: Observe | None = None,
        before_B: Tensor | None = None,
    ) -> Tensor:
        """`[B,T,D]` at the split (the spec's own by default), before the learned projection."""
        # Only at split 0 does a passage know its query's length; elsewhere states must not depend
        # on it.
        joint = side == "passage" and self.spec.positions == "joint"
        start = query_length if joint else self.spec.first_position(side)
        structure = self.spec.text.structure
        # Rows of a structure, such as tree nodes, take no position of their own.
        counted = real_BT if structure is None else real_BT & (ids_BT < structure.first)
        position_BT = positions(counted) + start
        x_BTD = self.embed(side, ids_BT, position_BT)
        frame = Frame(position_BT, real_BT, padded=padded)
        frame.before_B, frame.passage = before_B, None if side == "query" else 0
        if structure is not None and side == "passage":
            frame.structure = structure, ids_BT
        last = self.spec.split if split is None else split
        return self.stack(x_BTD, frame, first=0, last=last, observe=observe)

    def compress(self, side: Side, x_BTD: Tensor) -> Tensor:
        """States as they are stored: through the learned projection, where there is one for this side."""
        return self.projection["down"](x_BTD) if self.spec.projected(side) else x_BTD

    def restore(self, side: Side, states: Tensor) -> Tensor:
        """The inverse of `compress`, as far as there is one: the first step of the cross component."""
        return self.projection["up"](states) if self.spec.projected(side) else states

    def pool(self, x_BTD: Tensor, real_BT: Tensor) -> Tensor:
        """A unit vector per text: the mean of its states, through the learned map where there is one."""
        mean_BD = self.mean(x_BTD, real_BT)
        return F.normalize(mean_BD if self.vector is None else self.vector(mean_BD), dim=-1)

    def mean(self, x_BTD: Tensor, real_BT: Tensor) -> Tensor:
        """`[B,D]` mean state of each text, after the layers that its vector alone has."""
        if self.vector is not None and self.vector.stack is not None:
            x_BTD = self.vector.stack(x_BTD, Frame(positions(real_BT), real_BT))
        # Padding has weight 0, and a text without a real token divides by 1.
        weight = real_BT[..., None].to(x_BTD.dtype)
        return (x_BTD * weight).sum(1) / weight.sum(1).clamp(min=1)

    def cross(
        self,
        query_BQD: Tensor,
        query_real_BQ: Tensor,
        passage_BPD: Tensor,
        passage_real_BP: Tensor,
        heads: Sequence[HeadKind],
        *,
        last: int | None = None,
        links_BB: Tensor | None = None,
    ) -> dict[HeadKind, Tensor]:
        """The cross component: logits of each head for each pair.

        A `span` head gives `[B,1+P,2]`: the no-answer score first, then a start and an end per passage token.
        With `last`, the rank head of the exit after that layer, and no layer above it is run. Hops follow
        `links_BB`: which pairs of the batch each pair hears from.
        """
        query, width = query_BQD.shape[1], self.spec.encoder.width
        if self.spec.store == "kv":
            below = self.spec.layers[: self.spec.split]
            widths = [layer.attention.cached_width for layer in below]
            caches = torch.split(passage_BPD[..., width:], widths, 2)
            query_BQD = self._after(query_BQD, query_real_BQ, caches, passage_real_BP)
            passage_BPD = passage_BPD[..., :width]
        x_BTD, frame = self.join(
            self.restore("query", query_BQD),
            query_real_BQ,
            self.restore("passage", passage_BPD),
            passage_real_BP,
        )
        frame.links_BB = links_BB
        # Pooled heads read one row, so the last layer need not compute the others.
        rows = rows_needed([self.spec.head(kind) for kind in heads], query)
        y_BRD = self.stack(x_BTD, frame, rows=rows, first=self.spec.split, last=last, query=query)
        if last is not None:
            return {"rank": self.leave(last, y_BRD, take(frame.real_BT, rows))}
        return self.read(y_BRD, frame.real_BT, rows, query, heads)

    def _after(
        self, x_BQD: Tensor, real_BQ: Tensor, caches: Sequence[Tensor], passage_real_BP: Tensor
    ) -> Tensor:
        """`[B,Q,D]` at the split of queries that read their passages, by stored keys and values, below it."""
        pairs = {}
        for number, kept_BPK in enumerate(caches):
            head = self.spec.layers[number].attention.head_width
            # [B,P,2·G·K] -> [B,2·G,P,K]
            both = kept_BPK.view(*kept_BPK.shape[:2], -1, head).transpose(1, 2)
            pairs[number] = cast(KeysValues, both.chunk(2, 1))
        frame = Frame(positions(real_BQ) + passage_real_BP.sum(1, keepdim=True), real_BQ)
        frame.past = Past(pairs, passage_real_BP)
        return self.stack(x_BQD, frame, last=len(caches))

    def leave(self, key: int | str, y_BRD: Tensor, real_BR: Tensor) -> Tensor:
        """Logits of a head of an exit from the rows that it reads: `[B,1]` of the rank head of a layer."""
        # A pre-norm encoder normalises only after its last layer, which an exit skips.
        norm = self.stack.norm
        logits: Tensor = self.exits[str(key)](y_BRD if norm is None else norm(y_BRD), real_BR)
        return logits

    def join(
        self,
        query_BQD: Tensor,
        query_real_BQ: Tensor,
        passage_BPD: Tensor,
        passage_real_BP: Tensor,
        *,
        padded: bool | None = None,
    ) -> tuple[Tensor, Frame]:
        """Query and passage rows as one sequence, with positions over real tokens only."""
        x_BTD, query = torch.cat([query_BQD, passage_BPD], 1), query_BQD.shape[1]
        frame = self.frame(query_real_BQ, passage_real_BP, padded=padded)
        frame.passage = query
        if self.cross_embedding is not None:
            side_BT = torch.zeros_like(frame.position_BT)
            # Segment 0 is the query and 1 the passage, whatever types the input used.
            side_BT[:, query:] = 1
            x_BTD = self.cross_embedding(x_BTD, frame.position_BT, side_BT)
        if any(head.pooling == "last" for head in self.spec.heads):
            # The row that is read changes places with the first, which is where heads look.
            swap_BT = last_first(frame)
            frame.segment_BT = frame.segments().gather(1, swap_BT)
            frame.position_BT = frame.position_BT.gather(1, swap_BT)
            x_BTD = x_BTD.gather(1, swap_BT[..., None].expand_as(x_BTD))
        return x_BTD, frame

    def frame(
        self, query_real_BQ: Tensor, passage_real_BP: Tensor, *, padded: bool | None = None
    ) -> Frame:
        """The frame (positions and mask) of query and passage as one sequence."""
        # The passage follows the query's real tokens; with `offset`, it stands where it was
        # encoded.
        query_BQ, passage_BP = positions(query_real_BQ), positions(passage_real_BP)
        if self.spec.text.passage_first:
            query_BQ = query_BQ + passage_real_BP.sum(1, keepdim=True)
        elif self.spec.positions == "offset":
            passage_BP = passage_BP + self.spec.text.query_tokens
        else:
            passage_BP = passage_BP + query_real_BQ.sum(1, keepdim=True)
        position_BT = torch.cat([query_BQ, passage_BP], 1)
        real_BT = torch.cat([query_real_BQ, passage_real_BP], 1)
        return Frame(position_BT, real_BT, padded=padded)

    def read(
        self, y_BRD: Tensor, real_BT: Tensor, rows: Rows, query: int, heads: Sequence[HeadKind]
    ) -> dict[HeadKind, Tensor]:
        """Logits of the given heads from the rows that were computed."""
        logits = {}
        for kind in heads:
            head, x, real = cast(Head, self.heads[kind]), y_BRD, take(real_BT, rows)
            # Another head made all rows be computed; a span reads its own share of them.
            if kind == "span" and rows == ALL:
                needed = rows_needed([head.spec], query)
                x, real = take(x, needed), take(real, needed)
            logits[kind] = head(x, real)
        return logits


def last_first(frame: Frame) -> Tensor:
    """`[B,T]` order of the rows in which the last real token and the first row have changed places."""
    last_B1 = frame.position_BT.masked_fill(~frame.real_BT, -1).argmax(1, keepdim=True)
    order_BT = torch.arange(frame.real_BT.shape[1], device=last_B1.device)
    order_BT = order_BT.expand_as(frame.real_BT).scatter(1, last_B1, 0)
    return torch.cat([last_B1, order_BT[:, 1:]], 1)


def positions(real_BT: Tensor) -> Tensor:
    """0, 1, 2… over the real tokens of each row; padding repeats the last, inside any table."""
    return (real_BT.long().cumsum(1) - 1).clamp(min=0)
