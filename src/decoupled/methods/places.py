"""Where the real tokens of a padded batch stand, for kinds that count tokens instead of positions."""

import torch
from torch import Tensor

from decoupled.model.nn.frame import Frame


def order(frame: Frame) -> tuple[Tensor, Tensor]:
    """`[B,T]` each: which real token of its sequence (or block) a token is, and how many there are."""
    return frame.cached("order", lambda: _order(frame))


def _order(frame: Frame) -> tuple[Tensor, Tensor]:
    real = frame.real_BT
    if frame.block_BT is None:
        place = (real.long().cumsum(1) - 1).clamp(min=0)
        return place, real.sum(1, keepdim=True).expand_as(place)
    same = frame.block_BT[:, :, None] == frame.block_BT[:, None, :]
    same = same & real[:, None, :]
    # The place within a block counts the real tokens of that block that come before.
    before = torch.ones_like(same[0]).tril(-1)
    return (same & before).sum(-1), same.sum(-1)


def packing(frame: Frame) -> Tensor:
    """`[B,T]` indices that bring the real tokens to the left, in order."""
    # Real tokens sort before padding; stable, so that they keep their order.
    packed = lambda: (~frame.real_BT).to(torch.int8).argsort(dim=1, stable=True)  # noqa: E731
    return frame.cached("packing", packed)
