"""The moving average of the weights: nearer to the middle of where they wander than the last ones are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class Average:
    """Beside each of the parameters its average; with `keep` 0 there is none, and nothing happens."""

    def __init__(self, parameters: Sequence[Tensor], keep: float) -> None:
        self._own = list(parameters) if keep else []
        self._mean = [own.detach().clone() for own in self._own]
        self._keep = keep

    @torch.no_grad()
    def update(self, number: int) -> None:
        """After an update of the weights. The memory is short at first, so the start is soon forgotten."""
        if self._mean:
            keep = min(self._keep, (1 + number) / (10 + number))
            torch._foreach_lerp_(self._mean, self._own, 1 - keep)

    @torch.no_grad()
    def swap(self) -> None:
        """The averages become the weights, and the weights are kept in their place."""
        for mean, own in zip(self._mean, self._own, strict=True):
            kept = own.clone()
            own.copy_(mean)
            mean.copy_(kept)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Within the block the weights are the averages."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {f"mean.{number}": mean for number, mean in enumerate(self._mean)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        for number, mean in enumerate(self._mean):
            mean.copy_(tensors[f"mean.{number}"])
