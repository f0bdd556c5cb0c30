"""The CUDA runtime: texts to states, and queries against their passages, with one wait at the end.

Shapes: P pairs, G queries, Q rows of each, N passage rows of all pairs together, W width of the states.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.errors import InputError
from decoupled.model.codec import Codec, CodeLayout
from decoupled.model.model import Model
from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import Side
from decoupled.model.states import Encoded, Encoding, Ragged, States
from decoupled.model.tokens import Ids
from decoupled.runtime.base import (
    Before,
    Links,
    Logits,
    Passages,
    R,
    T,
    required_codec,
    states_layout,
    wrong_device,
)
from decoupled.runtime.cuda import block as blocks
from decoupled.runtime.cuda import ops
from decoupled.runtime.cuda.batch import Chunk, Joined, Pairs, Room, chunks, pairs_of
from decoupled.runtime.cuda.block import Decoder, KeptBlock, StateBlock
from decoupled.runtime.cuda.graphs import GRAPH_ROWS, Lane, Steps, graph_rows, room_for, whole
from decoupled.runtime.cuda.layers import Crossing, RowsRead, read_alone
from decoupled.runtime.cuda.pending import PendingQuery
from decoupled.runtime.cuda.staging import packed, padded, staged, staged_bytes, unpacked
from decoupled.runtime.cuda.weights import DeviceWeights, Restore, arrange, unsupported_reason

ENCODE_ROWS = 65_536
"""Rows of one chunk of texts that are read alone."""
CROSS_ROWS = 262_144
"""Rows of a chunk of pairs, about 1,500 of ordinary length. Larger products come closer to what a device can
do: at 33,792 rows a thousand pairs took 17% longer."""
NONE: Ids = np.zeros(0, np.int32)
LAYERS_AT_ONCE = 3
"""Layers per graph of texts that are read alone: the device starts while the next ones are launched."""
ENCODE_GRAPH_ROWS = 4096
"""Rows up to which texts that are read alone run as a graph, such as the queries of a batch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PassageDecoding:
    """How passages of one layout become rows."""

    layout: CodeLayout
    decode: Decoder
    restore: Restore | None


class CudaRuntime:
    """Runs a model of the BERT kind on a GPU. Passages that come encoded are decoded by `codec`.

    On another device it computes the same in plain torch, which is how it is tested without a GPU.
    """

    mixes = True
    callers = 2
    """Callers at once: one prepares a batch while that of the other is computed."""
    token_budget = 1 << 21
    """Batches are cut to size here, where cutting them costs no wait, so callers may send all they have."""

    def __init__(
        self,
        model: Model,
        codec: Codec | None = None,
        *,
        device: str | torch.device = "cuda",
        dtype: torch.dtype = torch.bfloat16,
        graphs: bool = True,
    ) -> None:
        if why := unsupported_reason(model.spec):
            raise InputError(
                f"a {model.spec.family} model cannot run on the cuda runtime ({why}); use torch"
            )
        self.name = "cuda"
        self.model, self.codec = model, codec
        self.spec, self.tokenizer = model.spec, model.tokenizer
        place = torch.device(device)
        self.weights: DeviceWeights = arrange(model.net, device=place, dtype=dtype)
        self.device, self.dtype = self.weights.device, dtype
        self.pinned = self.device.type == "cuda"
        self.chunk_rows = CROSS_ROWS
        self.graph_rows = graph_rows(self.device, self.weights, most=2 * CROSS_ROWS)
        self._crossing = Lane(self.device, graphs=graphs)
        # A query of one batch is read while the passages of another keep the device busy.
        self._encoding = Lane(self.device, graphs=graphs, aside=True)

    def tensors(self, prefix: str) -> dict[str, npt.NDArray[np.generic]]:
        return self.model.tensors(prefix)

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        # A batch fills the device.
        return [work(item) for item in items]

    def keep(self, encoded: Encoded) -> KeptBlock:
        return blocks.keep(encoded, self._encoded.layout, self.device)

    # Texts alone ----------------------------------------------------------------------------------

    def encode(
        self,
        side: Side,
        ids: Sequence[Ids],
        *,
        query_length: int = 0,
        vectors: bool = True,
        before: Before | None = None,
    ) -> Encoding:
        if side == "query" and len(ids) == 1 and not vectors:
            waiting = PendingQuery(
                ids[0], self, lambda: self._encode(side, ids, 0, vectors=False).states
            )
            return Encoding(waiting, np.zeros((1, 0), np.float32))
        return self._encode(side, ids, query_length, vectors=vectors)

    @torch.inference_mode()
    def _encode(
        self, side: Side, ids: Sequence[Ids], query_length: int, *, vectors: bool
    ) -> Encoding:
        spec = self.spec
        begin = spec.first_position(side)
        if side == "passage" and spec.positions == "joint":
            begin = query_length
        length = np.fromiter((len(i) for i in ids), np.int64, len(ids))
        every = np.concatenate(ids).astype(np.int64)
        none, done = np.zeros_like(length), 0
        parts: list[tuple[Tensor, ...]] = []
        with self._encoding.turn():
            for chunk in chunks(none, none, none, length, rows=ENCODE_ROWS):
                rows = every[done : done + chunk.tokens]
                part = self._encode_chunk(side, rows, chunk, begin, vectors=vectors)
                done += chunk.tokens
                parts.append(part if done == len(every) else tuple(x.clone() for x in part))
            fetch = self._fetching(parts)
        states, pooled = fetch()
        return Encoding(States(states, length), pooled)

    def _encode_chunk(
        self, side: Side, ids: npt.NDArray[np.int64], chunk: Chunk, begin: int, *, vectors: bool
    ) -> tuple[Tensor, Tensor]:
        count = chunk.last - chunk.first
        room = self._reading_room(chunk)

        def work(flat: Tensor) -> Steps[tuple[Tensor, ...]]:
            numbers, ids_N = unpacked(flat, room)
            texts = pairs_of(numbers, query=0, tokens=room.tokens, longest=room.longest)
            return self._read_alone(side, ids_N, texts, begin, vectors=vectors)

        inputs = [packed(chunk, room, ids, room.tokens, pinned=self.pinned)]
        if room.graph:
            key = ("encode", side, room, begin, vectors)
            states, pooled = self._encoding.graphs.run(key, inputs, work)
        else:
            steps = work(*(x.to(self.device, non_blocking=True) for x in inputs))
            states, pooled = whole(steps)
        return states[: chunk.tokens], pooled[:count]

    def _reading_room(self, chunk: Chunk) -> Room:
        """The sizes of a graph for texts read alone: few different ones, since these rows are cheap."""
        count, tokens, longest = chunk.last - chunk.first, chunk.tokens, chunk.longest
        if not self._encoding.graphs.enabled or tokens > ENCODE_GRAPH_ROWS:
            return Room(count, 0, 0, tokens, longest, graph=False)
        if count == 1:
            tokens = longest = room_for(tokens)
            return Room(1, 0, 0, tokens, longest, graph=True)
        return Room(
            room_for(count, share=2),
            0,
            0,
            room_for(tokens, least=64, share=2),
            room_for(longest, least=32, share=2),
            graph=True,
        )

    def _read_alone(
        self, side: Side, ids_N: Tensor, texts: Pairs, begin: int, *, vectors: bool
    ) -> Steps[tuple[Tensor, Tensor]]:
        text, weights = self.spec.text, self.weights
        place_N = texts.places(begin)
        kind = text.query_type if side == "query" else text.passage_type
        x_ND = weights.embedding(ids_N, place_N, torch.full_like(ids_N, kind)).to(self.dtype)
        x = Joined.of(x_ND, 0, pair_rows=1)
        layers = weights.layers[: self.spec.split]
        for first in range(0, len(layers), LAYERS_AT_ONCE):
            if first:
                yield
            x = read_alone(layers[first : first + LAYERS_AT_ONCE], x, texts)
        x_ND = cast(Tensor, x.passage)
        pooled = self._pooled(x_ND, texts) if vectors else x_ND.new_zeros(texts.count, 0)
        if weights.down is not None and self.spec.projected(side):
            x_ND = ops.linear(x_ND, weights.down)
        return x_ND, pooled

    def _pooled(self, x_ND: Tensor, texts: Pairs) -> Tensor:
        """A unit vector per text."""
        weights = self.weights
        deeper = read_alone(weights.vector_layers, Joined.of(x_ND, 0, pair_rows=1), texts)
        mean_PD = ops.segment_mean(cast(Tensor, deeper.passage), texts)
        vector = mean_PD if weights.vector is None else mean_PD @ weights.vector.T
        return F.normalize(vector, dim=-1)

    def _fetching(
        self, parts: Sequence[tuple[Tensor, ...]]
    ) -> Callable[[], list[npt.NDArray[np.float32]]]:
        """Begin to bring the results of all chunks here, in order; what comes back waits for them.

        So the next call may begin on the device before this one has its results.
        """
        groups = zip(*parts, strict=True)
        joined = [torch.cat(group) if len(parts) > 1 else group[0] for group in groups]
        if self.device.type != "cuda":
            return lambda: [x.float().numpy() for x in joined]
        here = [torch.empty(x.shape, dtype=torch.float32, pin_memory=True) for x in joined]
        for to, x in zip(here, joined, strict=True):
            to.copy_(x.float(), non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()

        def fetch() -> list[npt.NDArray[np.float32]]:
            done.synchronize()
            return [x.numpy() for x in here]

        return fetch

    # Query and passages ---------------------------------------------------------------------------

    @torch.inference_mode()
    def cross(
        self,
        query: States,
        passages: Passages,
        heads: Sequence[HeadKind],
        *,
        owner: npt.NDArray[np.int64] | None = None,
        last: int | None = None,
        links: Links | None = None,
    ) -> Logits:
        if not isinstance(passages, States | Encoded | KeptBlock):
            raise wrong_device()
        asker = np.zeros(len(passages), np.int64) if owner is None else owner
        asks = query.lengths[asker] if owner is not None else query.lengths.repeat(len(passages))
        rows_read: RowsRead = "span" if "span" in heads else "first"
        own = self._states if isinstance(passages, States) else self._encoded
        cut = list(chunks(asker, asks, passages.starts, passages.lengths, rows=self.chunk_rows))
        if len(cut) > 1 and isinstance(query, PendingQuery):
            query = States(query.values, query.lengths)  # read once for all
        with self._crossing.turn():
            parts = []
            for chunk in cut:
                part = self._cross_chunk(query, passages, own, chunk, tuple(heads), rows_read, last)
                parts.append(part if chunk is cut[-1] else tuple(x.clone() for x in part))
            fetch = self._fetching(parts)
        values = fetch()
        ones = np.ones(len(passages), np.int64)
        return {
            kind: Ragged(x, passages.lengths + 1 if kind == "span" else ones)
            for kind, x in zip(heads, values, strict=True)
        }

    def _cross_chunk(
        self,
        query: States,
        passages: States | Encoded | KeptBlock,
        own: PassageDecoding,
        chunk: Chunk,
        heads: tuple[HeadKind, ...],
        rows_read: RowsRead,
        last: int | None,
    ) -> tuple[Tensor, ...]:
        """Logits of some pairs, on the device; spans with each pair's first row before its tokens."""
        count = chunk.last - chunk.first
        kept = passages.block if isinstance(passages, KeptBlock) else None
        room = self._room(chunk, GRAPH_ROWS if kept is None else self.graph_rows)
        waits = isinstance(query, PendingQuery) and query.waits_for(self)
        ids = query.ids if isinstance(query, PendingQuery) and waits else NONE
        inputs = [
            packed(
                chunk, room, ids, room.query if waits else 0, sent=kept is None, pinned=self.pinned
            )
        ]
        if not waits:
            inputs.append(staged(padded(query, chunk, room), pinned=self.pinned))
        if not isinstance(passages, KeptBlock):
            # Only what this chunk needs goes to the device.
            inputs.append(staged_bytes(passages, chunk, room.tokens, pinned=self.pinned))

        def work(flat: Tensor, *tensors: Tensor) -> Steps[tuple[Tensor, ...]]:
            numbers, ids_Q = unpacked(flat, room)
            pairs = pairs_of(numbers, query=room.query, tokens=room.tokens, longest=room.longest)
            block = kept if kept is not None else StateBlock.of(tensors[-1], own.layout)
            if waits:
                text, begin = pairs.question(), self.spec.first_position("query")
                query, _ = yield from self._read_alone("query", ids_Q, text, begin, vectors=False)
                yield
            else:
                query = tensors[0].flatten(0, 1).to(self.dtype)
            return self._logits(pairs, query, block, own, heads, rows_read, last)

        if room.graph:
            place = None if kept is None else (kept.codes.data_ptr(), kept.codes.shape)
            key = ("cross", room, waits, heads, last, own.layout.kind, place)
            outputs = self._crossing.graphs.run(key, inputs, work)
        else:
            outputs = whole(work(*(x.to(self.device, non_blocking=True) for x in inputs)))
        return tuple(
            self._in_order(x, chunk, room) if kind == "span" else x[:count]
            for kind, x in zip(heads, outputs, strict=True)
        )

    def _logits(
        self,
        pairs: Pairs,
        query_XD: Tensor,
        block: StateBlock,
        own: PassageDecoding,
        heads: tuple[HeadKind, ...],
        rows_read: RowsRead,
        last: int | None,
    ) -> tuple[Tensor, ...]:
        weights = self.weights
        if weights.up is not None and self.spec.projected("query"):
            query_XD = ops.linear(query_XD, weights.up)
        room = torch.empty(pairs.tokens, own.layout.width, dtype=self.dtype, device=self.device)
        z_NW = own.decode(block, pairs, room)
        first_PD, passage_ND = Crossing(weights, own.restore, pairs, last)(
            query_XD, z_NW, rows_read
        )
        logits = []
        for kind in heads:
            rows = first_PD[:, None]
            if kind == "span":
                assert passage_ND is not None
                rows = torch.cat([first_PD, passage_ND])
            head = weights.heads[kind] if last is None else weights.exits[str(last)]
            logits.append(head(rows.float(), None))
        return tuple(logits)

    def _in_order(self, logits: Tensor, chunk: Chunk, room: Room) -> Tensor:
        """`[P + N, 2]`: first rows of all pairs, then passage rows, to each pair's rows in turn."""
        order = staged(chunk.in_turn(room), pinned=self.pinned)
        return logits[order.to(self.device, non_blocking=True)]

    def _room(self, chunk: Chunk, most: int) -> Room:
        count, queries = chunk.last - chunk.first, len(chunk.queries)
        asks = int(chunk.asks.max())
        rows = count * asks + chunk.tokens
        if not self._crossing.graphs.enabled or rows > most:
            return Room(count, queries, asks, chunk.tokens, chunk.longest, graph=False)
        # Room is computed too, which costs where rows are many; but batches of several queries come in many
        # sizes, all but those that fill a chunk.
        many = queries > 1 and rows < self.chunk_rows // 2
        share = 8 if rows <= GRAPH_ROWS or many else 32
        return Room(
            room_for(count, share=share),
            room_for(queries) if queries > 1 else 1,
            room_for(asks, least=4),
            room_for(chunk.tokens, least=128, share=share),
            room_for(chunk.longest, least=64),
            graph=True,
        )

    @cached_property
    def _states(self) -> PassageDecoding:
        """For passages that come as states: their fp32 numbers, then the model's own matrix."""
        return self._reading(states_layout(self.spec))

    @cached_property
    def _encoded(self) -> PassageDecoding:
        return self._reading(required_codec(self.codec).layout)

    def _reading(self, layout: CodeLayout) -> PassageDecoding:
        return PassageDecoding(
            layout=layout, decode=Decoder(layout), restore=self.weights.restore(layout.restore)
        )
