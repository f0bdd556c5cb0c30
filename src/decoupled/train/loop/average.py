"""The moving average of the weights: nearer to the middle of where they wander than the last ones are."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class Average:
    """A moving average beside each parameter; with `keep` 0 there is none, and nothing happens."""

    def __init__(self, parameters: Sequence[Tensor], keep: float) -> None:
        self._own = list(parameters) if keep else []
        self._mean = [own.detach().clone() for own in self._own]
        self._keep = keep

    @torch.no_grad()
    def update(self, number: int) -> None:
        """Update the averages after a step. The memory is short at first, so the start is soon forgotten."""
        if self._mean:
            # The ramp of TensorFlow's ExponentialMovingAverage: (1 + n) / (10 + n).
            keep = min(self._keep, (1 + number) / (10 + number))
            torch._foreach_lerp_(self._mean, self._own, 1 - keep)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange weights and averages, in place."""
        for mean, own in zip(self._mean, self._own, strict=True):
            kept = own.clone()
            own.copy_(mean)
            mean.copy_(kept)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Within the block, the weights are the averages."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def tensors(self) -> dict[str, Tensor]:
        """The averages by name, for a checkpoint."""
        return {f"mean.{number}": mean for number, mean in enumerate(self._mean)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the averages from what `tensors` gave."""
        for number, mean in enumerate(self._mean):
            mean.copy_(tensors[f"mean.{number}"])
