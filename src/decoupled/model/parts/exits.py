"""Exits: heads below the last layer, by which pairs are read no further where that is enough."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from decoupled.errors import SpecError
from decoupled.model.jsonable import LATER
from decoupled.model.parts.head import HeadKind, HeadSpec
from decoupled.model.parts.linear import WHOLE, Tensors

EXITS = "exits."
"""Prefix of the names of the tensors of exits."""


@dataclass(frozen=True, kw_only=True)
class ExitSpec:
    """Heads after a cross layer: they say what the model would say if it ended there."""

    layer: int
    """The layer that it stands after, counted from 1."""
    margin: float | None = None
    """Candidates so far below the last of the results, in logits, stop there; None lets all go on."""
    stops: float | None = None
    """Share of the candidates that it stopped on development data."""
    heads: tuple[HeadKind, ...] = field(default=("rank",), metadata=LATER)
    halts: bool = field(default=False, metadata=LATER)
    """Whether it has a map that learned which pairs to stop (`methods/exits/depth.py`)."""

    def key(self, kind: HeadKind | Literal["halt"]) -> str:
        """The name of one of its heads among all exits; the rank head has the layer alone."""
        return f"{self.layer}" if kind == "rank" else f"{self.layer}_{kind}"

    def tensors(self, heads: Sequence[HeadSpec], width: int) -> Tensors:
        """Its tensors, by name: those of the model's heads under names of its own."""
        tensors: Tensors = (
            WHOLE.tensors(f"{EXITS}{self.key('halt')}", width, 1) if self.halts else {}
        )
        for head in (head for head in heads if head.kind in self.heads):
            own, name = head.tensors(width).items(), f"{EXITS}{self.key(head.kind)}"
            tensors |= {name + n.removeprefix(f"heads.{head.kind}"): t for n, t in own}
        return tensors


def stopping(exits: Sequence[ExitSpec]) -> list[dict[str, float | None]]:
    """The share of what reaches each exit that it stops, for `info`; None for one that is not used."""
    return [{"layer": one.layer, "margin": one.margin, "stops": one.stops} for one in exits]


def check_exits(exits: Sequence[ExitSpec], heads: Sequence[HeadSpec], cross: range) -> None:
    """Raise `SpecError` unless every exit stands after another of these layers, and ranks."""
    layers = [one.layer for one in exits]
    # Strictly ascending: the search visits them in this order, and two at one layer would be one.
    if not set(layers) <= set(cross) or sorted(set(layers)) != layers:
        choose = f"choose from {list(cross)}, in order" if cross else "split lower"
        raise SpecError(
            f"exits after layers {layers}, which must be cross layers but the last; {choose}"
        )
    missing = {kind for one in exits for kind in one.heads} - {head.kind for head in heads}
    if missing:
        raise SpecError(
            f"exits have the heads {', '.join(sorted(missing))}, which this model lacks; add them first"
        )
