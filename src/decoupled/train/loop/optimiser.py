"""The optimiser of a run, and its learning rate at each step."""

import math

import torch
from torch import nn

from decoupled.errors import InputError
from decoupled.train.recipe import Optimiser


def rate(step: int, total: int, optimiser: Optimiser) -> float:
    """Learning rate of an update: a linear rise, then the line from step 0 (DeFormer, A4) or a cosine."""
    # The falling line starts at step 0, so the rate after the warm-up is below `lr`, as in BERT's
    # code.
    warm, left = int(total * optimiser.warmup), 1 - step / total
    if optimiser.schedule == "cosine":
        left = (1 + math.cos(math.pi * (step - warm) / (total - warm))) / 2
    return optimiser.lr * ((step + 1) / warm if step < warm else left)


def optimiser_for(
    module: nn.Module, settings: Optimiser, device: torch.device
) -> torch.optim.AdamW:
    """AdamW over what requires a gradient; no decay on biases, norms and other vectors."""
    moving = [p for p in module.parameters() if p.requires_grad]
    if not moving:
        raise InputError("nothing is to be trained: every parameter is frozen")
    groups = [
        # BERT decays matrices alone, not biases and norm weights, which are vectors.
        {"params": [p for p in moving if p.ndim > 1], "weight_decay": settings.decay},
        {"params": [p for p in moving if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]],
        lr=settings.lr,
        betas=(0.9, 0.999),
        eps=settings.epsilon,
        fused=device.type == "cuda",
    )
