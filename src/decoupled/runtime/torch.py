"""The reference runtime: the torch model as it is, on any device that torch knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from decoupled.model.codec import Codec
from decoupled.model.model import Model
from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import Side
from decoupled.model.states import Encoded, Encoding, Ragged, States
from decoupled.model.tokens import Ids
from decoupled.runtime.base import Logits, Passages
from decoupled.runtime.lanes import Lanes

T = TypeVar("T")
R = TypeVar("R")


class TorchRuntime:
    """Runs a `Model`. Passages that come encoded are decoded by `codec`."""

    name = "torch"
    mixes = True

    def __init__(self, model: Model, codec: Codec | None = None) -> None:
        self.model, self.codec = model, codec
        self.spec, self.tokenizer = model.spec, model.tokenizer
        self._lanes = Lanes()

    @property
    def token_budget(self) -> int:
        """On a CPU little enough to stay in cache, else plenty."""
        return 2048 if self.model.device.type == "cpu" else 65536

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Batches side by side on the cores of a CPU, one after the other elsewhere."""
        if self.model.device.type == "cpu":
            return self._lanes.each(work, items)
        return [work(item) for item in items]

    @torch.inference_mode()
    def encode(self, side: Side, ids: Sequence[Ids], *, query_length: int = 0) -> Encoding:
        """States of a batch of texts, without padding, and their vectors."""
        batch = Ragged.stack(ids)
        padded_BT, real = batch.pad()
        real_BT = self._tensor(real)
        ids_BT = self._tensor(padded_BT.astype(np.int64))
        net = self.model.input(side)
        x_BTW, vector_BV = net(ids_BT, real_BT, query_length)
        states = States(x_BTW[real_BT].float().cpu().numpy(), batch.lengths)
        return Encoding(states, vector_BV.float().cpu().numpy())

    @torch.inference_mode()
    def cross(self, query: States, passages: Passages, heads: Sequence[HeadKind]) -> Logits:
        """Logits of one query, or of one for each passage, against a batch of passages."""
        states = self._decode(passages)
        padded, real = states.pad()
        passage_BPD, passage_real = self._tensor(padded), self._tensor(real)
        padded, real = query.pad()
        query_BQD = self._tensor(padded).expand(len(states), -1, -1)
        query_real = self._tensor(real).expand(len(states), -1)
        dtype = next(self.model.net.parameters()).dtype
        logits = self.model.cross()(
            query_BQD.to(dtype), query_real, passage_BPD.to(dtype), passage_real, heads
        )
        return {kind: _ragged(kind, x, passage_real, states) for kind, x in logits.items()}

    def keep(self, encoded: Encoded) -> None:
        """Nothing: the codec decodes in our memory."""

    def _decode(self, passages: Passages) -> States:
        if isinstance(passages, States):
            return passages
        if not isinstance(passages, Encoded):
            raise TypeError("passages that another runtime keeps can be read by that one only")
        if self.codec is None:
            raise ValueError("encoded passages need the codec that encoded them")
        return self.codec.decode(passages)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.model.device)


def _ragged(kind: HeadKind, logits: Tensor, real_BP: Tensor, passages: States) -> Ragged:
    if kind != "span":
        return Ragged(logits.float().cpu().numpy(), np.ones(len(passages), np.int64))
    first = torch.ones_like(real_BP[:, :1])
    rows = logits[torch.cat([first, real_BP], 1)]
    return Ragged(rows.float().cpu().numpy(), passages.lengths + 1)


def open_model(source: str | Path) -> Model:
    """A model folder, a checkpoint or a hub name, loaded where it runs fastest."""
    model = Model.open(source)
    return model.to("cuda") if torch.cuda.is_available() else model
