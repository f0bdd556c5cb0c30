"""What a teacher says of every example, computed once and kept: a step then costs the student alone."""

from __future__ import annotations

import torch
from torch import Tensor

from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.head import HeadSpec
from decoupled.train.data.batches import Batch, Batches
from decoupled.train.data.tasks import Task
from decoupled.train.loop.forward import (
    EVALUATION_TOKENS,
    PairOutputs,
    Pass,
    autocast,
    forward_pair,
)
from decoupled.train.recipe import Recipe

ROOM = 1 << 30
"""Bytes for a teacher's hidden states where there is no GPU."""


class Targets:
    """Logits, and perhaps hidden states, of all examples of a run.

    On the device: `1+P` rows of two logits for a span, one row of outputs otherwise; with `layers`, also so
    many of its last hidden states of each token of a pair, and what its head pools.
    """

    def __init__(
        self,
        batches: Batches,
        head: HeadSpec,
        *,
        layers: int = 0,
        width: int = 0,
        half: bool = False,
    ) -> None:
        examples, device = batches.examples, batches.device
        self.span = head.kind == "span"
        passages = torch.from_numpy(examples.passages.lengths[examples.passage_of])
        lengths = 1 + passages if self.span else torch.ones(len(examples), dtype=torch.int64)
        self.starts = (lengths.cumsum(0) - lengths).to(device)
        self.values = torch.zeros(int(lengths.sum()), head.outputs, device=device)
        tokens = passages + torch.from_numpy(examples.queries.lengths[examples.query_of])
        self.firsts = (tokens.cumsum(0) - tokens).to(device)
        # Half precision halves the memory, and is what the student computes in anyway.
        kind = torch.bfloat16 if half else torch.float32
        rows = int(tokens.sum()) if layers else 0
        self.hidden = torch.zeros(rows, layers, width, dtype=kind, device=device)
        pools = bool(layers) and head.dense is not None and not self.span
        self.pooled = torch.zeros(len(examples) if pools else 0, width, device=device)

    def put(self, batch: Batch, outputs: PairOutputs) -> None:
        """Store the teacher's outputs for a batch."""
        index, real = self._index(batch)
        logits = outputs.logits if self.span else outputs.logits[:, None]
        self.values[index[real]] = logits[real].float()
        if layers := self.hidden.shape[1]:
            real_BT, place_BT = self._places(batch)
            for number, states in enumerate(outputs.hidden[-layers:]):
                self.hidden[place_BT[real_BT], number] = states[real_BT].to(self.hidden.dtype)
        if len(self.pooled) and outputs.pooled is not None:
            self.pooled[batch.rows] = outputs.pooled.float()

    def of(self, batch: Batch) -> PairOutputs | Tensor:
        """The stored outputs for a batch, in the shapes of a forward pass."""
        index, real = self._index(batch)
        logits = self.values[index] * real[..., None]
        logits = logits if self.span else logits[:, 0]
        if not self.hidden.shape[1]:
            return logits
        real_BT, place_BT = self._places(batch)
        return PairOutputs(
            # Only the order of the heads matters to readers, so the pooled kinds share one name.
            by_head={"span" if self.span else "rank": logits},
            real=real_BT,
            sides=(),
            hidden=self.hidden[place_BT].float().unbind(2),
            pooled=self.pooled[batch.rows] if len(self.pooled) else None,
        )

    def _index(self, batch: Batch) -> tuple[Tensor, Tensor]:
        start = self.starts[batch.rows][:, None]
        if not self.span:
            return start, torch.ones_like(start, dtype=torch.bool)
        real = batch.span_real
        place = torch.arange(real.shape[1], device=real.device)
        # Padding may point past the last value; `real` zeroes what it reads.
        return (start + place).clamp(max=len(self.values) - 1), real

    def _places(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Which tokens of the pairs are real, and the row of each one's states; padding has any row."""
        real_BT = torch.cat(batch.real, 1)
        place_BT = real_BT.long().cumsum(1) - 1 + self.firsts[batch.rows][:, None]
        return real_BT, place_BT.clamp(min=0)


@torch.no_grad()
def soft_targets(
    teacher: PairEncoder, batches: Batches, task: Task, recipe: Recipe, layers: int = 0
) -> Targets:
    """Run the teacher over all examples, in large batches and without dropout, and keep its outputs."""
    width, half = teacher.spec.encoder.width, recipe.precision != "fp32"
    targets = Targets(batches, teacher.spec.head(task.head), layers=layers, width=width, half=half)
    teacher.eval()
    with autocast(batches.device, recipe.precision):
        how = Pass(hidden=bool(layers))
        for batch in batches.walk(batches.ordered(EVALUATION_TOKENS)):
            outputs = forward_pair(teacher, batch, task.head, how=how)
            targets.put(batch, outputs)
    return targets


def fits(batches: Batches, layers: int, width: int, half: bool) -> bool:
    """Whether so many hidden states of every token of every pair fit in memory."""
    examples = batches.examples
    tokens = int(examples.passages.lengths[examples.passage_of].sum())
    tokens += int(examples.queries.lengths[examples.query_of].sum())
    room = ROOM
    if batches.device.type == "cuda":
        # Half of what is free: the student's activations need the rest.
        room = torch.cuda.mem_get_info(batches.device)[0] // 2
    return tokens * layers * width * (2 if half else 4) <= room
