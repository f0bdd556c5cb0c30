"""Normalisation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NormSpec:
    """Layer normalisation."""

    eps: float = 1e-12
    bias: bool = True
