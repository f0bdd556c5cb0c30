"""The feed-forward block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"]


@dataclass(frozen=True, kw_only=True)
class FeedForwardSpec:
    """Two linear maps with an activation between, gated (GeGLU) or plain."""

    width: int
    activation: Activation = "gelu"
    gated: bool = False
    bias: bool = True
