"""Examples through a runtime instead of the torch modules: what its users will see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decoupled.model.spec import HeadKind, ModelSpec
from decoupled.runtime.base import Runtime
from decoupled.train.forward import Batch


@dataclass(frozen=True, kw_only=True)
class Through:
    """A runtime that stands where an evaluation expects the modules."""

    runtime: Runtime
    on_pairs: Callable[[int], None] = lambda count: None

    @property
    def spec(self) -> ModelSpec:
        """The model's spec."""
        return self.runtime.spec

    def logits(self, batch: Batch, head: HeadKind) -> Tensor:
        """`[B,outputs]` or `[B,1+P,2]`, zeros after each passage; each query goes with its own passages."""
        found: list[np.ndarray] = []
        queries, passages = batch.query_ids.numpy(), batch.passage_ids.numpy()
        query_real, passage_real = batch.query_real.numpy(), batch.passage_real.numpy()
        for pair in range(len(batch.rows)):
            q, p = pair // batch.query_repeat, pair // batch.passage_repeat
            query = queries[q][query_real[q]].astype(np.int32)
            passage = passages[p][passage_real[p]].astype(np.int32)
            states = self.runtime.encode("query", [query]).states
            read = self.runtime.encode("passage", [passage], query_length=len(query)).states
            found.append(self.runtime.cross(states, read, (head,))[head].values)
            self.on_pairs(1)
        if head != "span":
            return torch.from_numpy(np.concatenate(found))
        padded = np.zeros((len(found), 1 + passages.shape[1], 2), np.float32)
        for row, values in zip(padded, found, strict=True):
            row[: len(values)] = values
        return torch.from_numpy(padded)
