"""Exits: rank heads below the last layer, by which candidates that are far behind are read no further."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoupled.errors import SpecError
from decoupled.model.parts.head import HeadSpec
from decoupled.model.parts.linear import Tensors

EXITS = "exits."
"""Prefix of the names of the tensors of exits."""


@dataclass(frozen=True, kw_only=True)
class ExitSpec:
    """A rank head after a cross layer: it predicts what the model would say if it ended there."""

    layer: int
    """The layer that it stands after, counted from 1."""
    margin: float | None = None
    """Candidates so far below the last of the results, in logits, stop there; None lets all go on."""
    stops: float | None = None
    """Share of the candidates that it stopped on development data."""

    @property
    def name(self) -> str:
        """Prefix of the names of its tensors."""
        return f"{EXITS}{self.layer}"

    def tensors(self, head: HeadSpec, width: int) -> Tensors:
        """Its tensors, by name: those of the rank head under names of its own."""
        own = head.tensors(width).items()
        return {self.name + name.removeprefix(f"heads.{head.kind}"): t for name, t in own}


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
    if exits and not any(head.kind == "rank" for head in heads):
        raise SpecError("exits rank candidates, and this model has no rank head; add one first")
