"""What a teacher says of every example, computed once and kept: a step then costs the student alone."""

import torch
from torch import Tensor

from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.head import HeadSpec
from decoupled.train.data.batches import Batch, Batches
from decoupled.train.data.tasks import Task
from decoupled.train.loop.forward import EVALUATION_TOKENS, autocast, forward_pair
from decoupled.train.recipe import Recipe


class Targets:
    """Logits of all examples of a run: `1+P` rows of two for a span, one row of outputs otherwise."""

    def __init__(self, batches: Batches, head: HeadSpec) -> None:
        examples, device = batches.examples, batches.device
        self.span = head.kind == "span"
        passages = torch.from_numpy(examples.passages.lengths[examples.passage_of])
        lengths = 1 + passages if self.span else torch.ones(len(examples), dtype=torch.int64)
        self.starts = (lengths.cumsum(0) - lengths).to(device)
        self.values = torch.zeros(int(lengths.sum()), head.outputs, device=device)

    def put(self, batch: Batch, logits: Tensor) -> None:
        """Store the teacher's logits for a batch."""
        index, real = self._index(batch)
        rows = logits if self.span else logits[:, None]
        self.values[index[real]] = rows[real].float()

    def of(self, batch: Batch) -> Tensor:
        """The stored logits for a batch, in the shape of a forward pass."""
        index, real = self._index(batch)
        logits = self.values[index] * real[..., None]
        return logits if self.span else logits[:, 0]

    def _index(self, batch: Batch) -> tuple[Tensor, Tensor]:
        start = self.starts[batch.rows][:, None]
        if not self.span:
            return start, torch.ones_like(start, dtype=torch.bool)
        real = batch.span_real
        place = torch.arange(real.shape[1], device=real.device)
        # Padding may point past the last value; `real` zeroes what it reads.
        return (start + place).clamp(max=len(self.values) - 1), real


@torch.no_grad()
def soft_targets(teacher: PairEncoder, batches: Batches, task: Task, recipe: Recipe) -> Targets:
    """Run the teacher over all examples, in large batches and without dropout, and keep its logits."""
    targets = Targets(batches, teacher.spec.head(task.head))
    teacher.eval()
    with autocast(batches.device, recipe.precision):
        for batch in batches.walk(batches.ordered(EVALUATION_TOKENS)):
            targets.put(batch, forward_pair(teacher, batch, task.head).logits)
    return targets
