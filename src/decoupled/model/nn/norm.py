"""Normalisation."""

from __future__ import annotations

from torch import nn

from decoupled.model.parts.norm import NormSpec


def build_norm(spec: NormSpec, width: int) -> nn.LayerNorm:
    """A layer norm as described."""
    return nn.LayerNorm(width, eps=spec.eps, bias=spec.bias)
