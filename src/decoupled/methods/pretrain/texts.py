"""Segments of a corpus as the batches of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from decoupled.methods.pretrain.corpus import Corpus, Places
from decoupled.methods.pretrain.segments import Builder, Segments
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.spec import Side, TextSpec
from decoupled.train.data.batches import POOL, ROUND, Batch
from decoupled.train.loop.forward import Pass, read_alone


@dataclass(frozen=True, kw_only=True)
class TextBatch(Batch):
    """Texts of one segment, or pairs of two: what a query and a passage are to a model."""

    begins: Tensor
    """`[B,T]`, true for tokens of either segment that begin a word."""
    free: Tensor
    """`[B,T]`, true for tokens that are neither special nor padding."""
    mentions: Tensor | None = None
    """`[B,M,3]` the token before each name, the one after it, and its label (-1 where there is none)."""

    @property
    def ids(self) -> Tensor:
        """`[B,T]` ids of both segments."""
        return torch.cat([self.query_ids, self.passage_ids], 1)

    def reading(self, ids_BT: Tensor) -> TextBatch:
        """The batch with other token ids."""
        width = self.query_ids.shape[1]
        return replace(self, query_ids=ids_BT[:, :width], passage_ids=ids_BT[:, width:])


@dataclass(frozen=True)
class _Side:
    """One segment of each text, between the special tokens of its side."""

    ids: Tensor
    begins: Tensor
    free: Tensor
    real: Tensor


class TextBatches:
    """A source of batches for the training loop; each epoch cuts the corpus anew."""

    def __init__(
        self, corpus: Corpus, build: Builder, device: torch.device, *, text: TextSpec, tokens: int
    ) -> None:
        """Texts have up to `tokens` tokens, special ones included."""
        self.corpus, self.build, self.device, self.text = corpus, build, device, text
        prefixes = text.query_prefix, text.passage_prefix
        suffixes = text.query_suffix, text.passage_suffix
        self._special = tuple(zip(prefixes, suffixes, strict=True))
        self.room = tokens - sum(len(part) for sides in self._special for part in sides)
        self._held: tuple[Corpus, Tensor, Tensor] | None = None

    def epoch(self, seed: int, number: int, *, size: int, tokens: int | None) -> list[Segments]:
        """Every text once, in batches of like lengths; seed and number decide how they are cut."""
        draw = np.random.default_rng([seed, number])
        segments = self.build(self.corpus, self.room, draw)
        each = size if tokens is None else max(1, tokens // (self.room + 3))
        order, batches = draw.permutation(len(segments)), list[Places]()
        for start in range(0, len(order), POOL * each):
            pool = order[start : start + POOL * each]
            pool = pool[np.argsort(-segments.lengths[pool], kind="stable")]
            batches += [pool[n : n + each] for n in range(0, len(pool), each)]
        return [segments.take(batches[n]) for n in draw.permutation(len(batches))]

    def tokens(self, groups: Segments) -> int:
        """Tokens of a batch, special ones aside."""
        return int(groups.lengths.sum())

    def walk(self, batches: list[Segments], first: int = 0) -> Iterator[TextBatch]:
        """The batches as tensors; `first` numbers the first of them."""
        for shift, segments in enumerate(batches):
            yield self._batch(segments, first + shift)

    def _batch(self, segments: Segments, number: int) -> TextBatch:
        rows = torch.from_numpy(np.ascontiguousarray(segments.rows)).to(self.device)
        paired = bool(segments.rows[:, 3].any())
        widths = [int(n) for n in segments.rows[:, [1, 3]].max(0)]
        query = self._side(segments.corpus, rows[:, :2], widths[0], 0)
        passage = self._side(segments.corpus, rows[:, 2:], widths[1], 1) if paired else None
        nothing = query.ids[:, :0]
        sides = (query, passage or _Side(nothing, nothing.bool(), nothing.bool(), nothing.bool()))
        label = torch.from_numpy(segments.label).to(self.device)
        special = [sum(len(part) for part in side) for side in self._special]
        counts = [
            int(segments.rows[:, 2 * n + 1].sum()) + special[n] * len(rows)
            for n in range(1 + paired)
        ]
        return TextBatch(
            query_ids=query.ids,
            query_real=query.real,
            passage_ids=sides[1].ids,
            passage_real=sides[1].real,
            label=torch.stack([label, torch.zeros_like(label)], 1),
            score=torch.zeros_like(label, dtype=torch.float32),
            rows=rows[:, 0],
            begins=torch.cat([side.begins for side in sides], 1),
            free=torch.cat([side.free for side in sides], 1),
            mentions=self._mentions(segments),
            number=number,
            tokens=sum(counts),
        )

    def _side(self, corpus: Corpus, rows_B2: Tensor, longest: int, side: int) -> _Side:
        """One segment of each text, with the special tokens before and after it."""
        ids_N, begins_N = self._tensors(corpus)
        prefix, suffix = self._special[side]
        before, after = len(prefix), len(suffix)
        width = -(-(longest + before + after) // ROUND) * ROUND
        place_T = torch.arange(width, device=self.device)
        start_B1, length_B1 = rows_B2[:, :1], rows_B2[:, 1:]
        free_BT = (place_T >= before) & (place_T < before + length_B1)
        index_BT = (start_B1 + place_T - before).clamp(0, len(ids_N) - 1)
        ids_BT = torch.where(free_BT, ids_N[index_BT].long(), self.text.pad)
        for number, token in enumerate(prefix):
            ids_BT[:, number] = token
        for number, token in enumerate(suffix):
            # Suffixes stand behind texts of different lengths, so they cannot be a column.
            ids_BT = torch.where(place_T == before + length_B1 + number, token, ids_BT)
        real_BT = place_T < before + length_B1 + after
        return _Side(ids_BT, begins_N[index_BT] & free_BT, free_BT, real_BT)

    def _tensors(self, corpus: Corpus) -> tuple[Tensor, Tensor]:
        if self._held is None or self._held[0] is not corpus:
            arrays = corpus.ids, corpus.begins
            ids, begins = (torch.from_numpy(array).to(self.device) for array in arrays)
            self._held = corpus, ids, begins
        return self._held[1:]

    def _mentions(self, segments: Segments) -> Tensor | None:
        """Names within the first segment of each text; at its edge a special token stands beside them."""
        mentions = segments.corpus.mentions
        if not len(mentions):
            return None
        starts, lengths = segments.rows[:, 0], segments.rows[:, 1]
        first = np.searchsorted(mentions[:, 0], starts)
        last = np.searchsorted(mentions[:, 1], starts + lengths, side="right")
        most = max(1, int((last - first).max(initial=0)))
        which = first[:, None] + np.arange(most)
        inside = which < last[:, None]
        table = mentions[which.clip(max=len(mentions) - 1)]
        shift = len(self.text.query_prefix) - starts[:, None]
        # The tokens beside a name: at an edge these are special tokens, which always exist.
        before, after = table[..., 0] + shift - 1, table[..., 1] + shift
        label = np.where(inside, table[..., 2], -1)
        rows = np.stack([before * inside, after * inside, label], -1)
        return torch.from_numpy(rows).to(self.device)


def forward_text(net: PairEncoder, batch: Batch) -> Tensor:
    """`[B,T,D]` every row of the last layer, for a batch of pairs or of single texts (no passages)."""
    sides: list[Side] = ["query", "passage"] if batch.passage_ids.shape[1] else ["query"]
    states = [read_alone(net, side, batch, Pass()).after for side in sides]
    passage = states[1] if len(sides) > 1 else states[0][:, :0]
    x_BTD, frame = net.join(states[0], batch.query_real, passage, batch.passage_real, padded=True)
    return net.stack(x_BTD, frame, first=net.spec.split, query=states[0].shape[1])
