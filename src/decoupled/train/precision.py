"""Which type the matrix products run in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from decoupled.train.recipe import Precision


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """bf16 matrix products where the recipe asks for them, fp32 weights always."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
