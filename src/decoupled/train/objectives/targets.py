"""The teacher's logits of every example, computed once: a step then costs the student alone."""

from __future__ import annotations

import torch
from torch import Tensor

from decoupled.model.nn.encoder import PairEncoder
from decoupled.train.data.batches import Batch, Batches
from decoupled.train.data.tasks import Task
from decoupled.train.forward import EVALUATION_TOKENS, autocast, forward_pair
from decoupled.train.recipe import Precision


class Targets:
    """Ragged logits on the device: `1+P` rows of two for a span, one row of outputs otherwise."""

    def __init__(self, batches: Batches, outputs: int, *, span: bool) -> None:
        examples = batches.examples
        self.span = span
        lengths = torch.ones(len(examples), dtype=torch.int64)
        if span:
            lengths += torch.from_numpy(examples.passages.lengths[examples.passage_of])
        self.starts = (lengths.cumsum(0) - lengths).to(batches.device)
        self.values = torch.zeros(int(lengths.sum()), outputs, device=batches.device)

    def put(self, batch: Batch, logits: Tensor) -> None:
        """Keep the logits of a batch."""
        index, real = self._index(batch)
        self.values[index[real]] = (logits if self.span else logits[:, None])[real].float()

    def of(self, batch: Batch) -> Tensor:
        """The logits of a batch, padded as the teacher's would be."""
        index, real = self._index(batch)
        found = self.values[index] * real[..., None]
        return found if self.span else found[:, 0]

    def _index(self, batch: Batch) -> tuple[Tensor, Tensor]:
        start = self.starts[batch.rows][:, None]
        if not self.span:
            return start, torch.ones_like(start, dtype=torch.bool)
        real = batch.span_real
        place = torch.arange(real.shape[1], device=real.device)
        return (start + place).clamp(max=len(self.values) - 1), real


@torch.no_grad()
def soft_targets(
    teacher: PairEncoder, batches: Batches, task: Task, precision: Precision
) -> Targets:
    """Run the teacher over all examples, in large batches and without dropout."""
    outputs = teacher.spec.head(task.head).outputs
    targets = Targets(batches, outputs, span=task.head == "span")
    teacher.eval()
    with autocast(batches.device, precision):
        for batch in batches.walk(batches.ordered(EVALUATION_TOKENS)):
            targets.put(batch, forward_pair(teacher, batch, task.head).logits)
    return targets
