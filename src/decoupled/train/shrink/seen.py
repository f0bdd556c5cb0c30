"""What linear maps see and hold only while they are trained: weights on a grid, masks, ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import torch.nn.functional as F
from torch import Tensor, nn

Change = Callable[[Tensor], Tensor]
_CHANGES = "_weight_changes"


@contextmanager
def seen_as(module: nn.Linear, change: Change) -> Iterator[None]:
    """Within the block the map multiplies by `change(weight)`; blocks within blocks change one after another.

    The parameter itself stays where and as it is, so names, optimisers and checkpoints know nothing of it.
    """
    changes: list[Change] = module.__dict__.setdefault(_CHANGES, [])

    def forward(x: Tensor) -> Tensor:
        weight: Tensor = module.weight
        for one in changes:
            weight = one(weight)
        return F.linear(x, weight, module.bias)

    if not changes:
        module.__dict__["forward"] = forward
    changes.append(change)
    try:
        yield
    finally:
        changes.remove(change)
        if not changes:
            del module.__dict__["forward"], module.__dict__[_CHANGES]


@contextmanager
def held(module: nn.Module, value: Tensor) -> Iterator[Tensor]:
    """Within the block the module has the value among its buffers, so checkpoints keep and restore it."""
    name = next(f"held_{n}" for n in count() if not hasattr(module, f"held_{n}"))
    module.register_buffer(name, value)
    try:
        yield value
    finally:
        delattr(module, name)
