"""What is read off the last layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from decoupled.model.parts.feed_forward import Activation
from decoupled.model.parts.norm import NormSpec

HeadKind = Literal["rank", "span", "classes", "choice"]


@dataclass(frozen=True, kw_only=True)
class HeadDense:
    """The hidden map of a head: linear, activation, perhaps a norm."""

    activation: Activation
    bias: bool = True
    norm: NormSpec | None = None


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """What is read off the last layer."""

    kind: HeadKind
    labels: tuple[str, ...] = ()
    dense: HeadDense | None = None
    pooling: Literal["first", "mean"] = "first"
    null: bool = False
    """For spans: the first row was trained to say that there is no answer."""

    @property
    def outputs(self) -> int:
        """Width of the output map: a score, a start and an end, or a logit per label."""
        return {"rank": 1, "choice": 1, "span": 2, "classes": len(self.labels)}[self.kind]

    @property
    def reads_passages(self) -> bool:
        """Does it read passage rows, which the last layer must then let advance?"""
        return self.kind == "span" or self.pooling == "mean"
