"""The reference runtime: the torch model as it is, on any device that torch knows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoupled.model.codec import Codec
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
    foreign,
    known,
    rounded_up,
    unpadded,
)

STEP = 16
"""Tokens to whose multiples texts are padded: then their last bits do not depend on each other's lengths."""


class TorchRuntime:
    """Runs a `Model`. Passages that come encoded are decoded by `codec`."""

    name = "torch"
    mixes = True
    callers = 1

    def __init__(self, model: Model, codec: Codec | None = None) -> None:
        self.model, self.codec = model, codec
        self.spec, self.tokenizer = model.spec, model.tokenizer
        self._lanes = Lanes()

    @property
    def token_budget(self) -> int:
        """On a CPU little enough to stay in cache, else plenty."""
        return 2048 if self.model.device.type == "cpu" else 65536

    def tensors(self, prefix: str) -> dict[str, npt.NDArray[np.generic]]:
        return self.model.tensors(prefix)

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if self.model.device.type == "cpu":
            return self._lanes.each(work, items)
        return [work(item) for item in items]

    @torch.inference_mode()
    def encode(
        self,
        side: Side,
        ids: Sequence[Ids],
        *,
        query_length: int = 0,
        vectors: bool = True,
        before: Before | None = None,
    ) -> Encoding:
        batch = Ragged.stack(ids)
        text = self.spec.text
        window = text.query_tokens if side == "query" else text.passage_tokens
        # Beyond the window there may be no positions.
        longest = int(batch.lengths.max(initial=0))
        padded_BT, real = batch.pad(min(rounded_up(longest, STEP), window))
        real_BT, ids_BT = self._tensor(real), self._tensor(padded_BT.astype(np.int64))
        component = self.model.input(side)
        before_B = None if before is None else self._tensor(before)
        x_BTW, vector_BV = component(
            ids_BT, real_BT, query_length, vectors=vectors, before_B=before_B
        )
        states = States(x_BTW[real_BT].float().cpu().numpy(), batch.lengths)
        return Encoding(states, vector_BV.float().cpu().numpy())

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
        states = known(self.codec).decode(passages) if isinstance(passages, Encoded) else passages
        if not isinstance(states, States):
            raise foreign()
        passage_BPD, real_BP = states.pad()
        query_1QD, real_1Q = (query if owner is None else query.select(owner)).pad()
        dtype = next(self.model.net.parameters()).dtype
        logits = self.model.cross()(
            self._tensor(query_1QD).expand(len(states), -1, -1).to(dtype),
            self._tensor(real_1Q).expand(len(states), -1),
            self._tensor(passage_BPD).to(dtype),
            self._tensor(real_BP),
            heads,
            last,
            None if links is None else self._tensor(links),
        )
        return {
            kind: unpadded(kind, x.float().cpu().numpy(), real_BP) for kind, x in logits.items()
        }

    def keep(self, encoded: Encoded) -> None:
        """Nothing: the codec decodes in our memory."""

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.model.device)


class Lanes:
    """Batches side by side: as many threads as torch uses cores, made on first use, a core for each.

    On a CPU that beats all cores on one batch after the other: their threads need not wait for each other
    after every operation, which costs most where other programs run too.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`work` on every item, results in order."""
        count = torch.get_num_threads()
        if count < 2 or len(items) < 2:
            return [work(item) for item in items]
        return list(self._open(count).map(work, items))

    def _open(self, count: int) -> ThreadPoolExecutor:
        with self._guard:
            if self._pool is None:
                pool = ThreadPoolExecutor(count, "lane", _one_core)
                together = threading.Barrier(count)
                list(pool.map(lambda _: together.wait(), range(count)))
                # What a thread sets is also what threads to come begin with.
                torch.set_num_threads(count)
                self._pool = pool
            return self._pool


def _one_core() -> None:
    torch.get_num_threads()  # the first look in a thread overrides what was set before it
    torch.set_num_threads(1)


def open_model(source: str | Path) -> Model:
    """A model folder, a checkpoint or a hub name, loaded where it runs fastest."""
    model = Model.open(source)
    return model.to("cuda") if torch.cuda.is_available() else model
