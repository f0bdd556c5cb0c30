"""Narrow token tables that a unit of group linear layers widens: DeFINE, and DExTra as an embedding."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Literal

from decoupled.errors import SpecError
from decoupled.methods.group_linear import GroupUnit, expand, expand_and_reduce
from decoupled.model.jsonable import LATER
from decoupled.model.parts.linear import Tensors
from decoupled.model.parts.table.base import TOKENS, Band, Table


@dataclass(frozen=True, kw_only=True)
class GroupTable(Table):
    """A row of `rank` per token, and a unit of `depth` group linear layers over it.

    What it gives depends on the id alone, so a runtime may keep the result for every id: a whole table.
    """

    rank: int
    expand: float = 4.0
    """The widest layer, in multiples of `rank`."""
    depth: int = 3
    groups: int = 4
    """The most groups of a layer."""

    def __post_init__(self) -> None:
        if self.rank < 1 or self.expand < 1 or self.groups < 1:
            raise SpecError(
                f"a {self.kind} table of rank {self.rank}, {self.expand} times as wide inside, in "
                f"{self.groups} groups; choose 1 or more of each"
            )

    @abstractmethod
    def unit(self, width: int) -> GroupUnit:
        """The unit that widens its rows."""

    def bands(self, vocab: int, width: int) -> tuple[Band, ...]:
        return (Band(ids=vocab, width=self.rank, rows=f"{TOKENS}.table"),)

    def check(self, vocab: int, width: int) -> None:
        self.unit(width)

    def tensors(self, vocab: int, width: int, bits: int | None) -> Tensors:
        return super().tensors(vocab, width, bits) | self.unit(width).tensors(f"{TOKENS}.unit")

    def macs(self, vocab: int, width: int) -> int:
        return self.unit(width).macs()


@dataclass(frozen=True, kw_only=True)
class Define(GroupTable):
    """DeFINE (Mehta et al., 2020): a hierarchical group transform. Its last matrix reads the row itself too.

    So the best factorised table of that rank is one of those it can be.
    """

    schedule: Literal["cycle", "halving"] = field(default="cycle", metadata=LATER)
    """Groups as the authors' code has them, or by their formula; the same where depth is log2(2·groups)."""
    kind: Literal["define"] = "define"

    def unit(self, width: int) -> GroupUnit:
        widest = self.expand * self.rank
        return GroupUnit(
            inputs=self.rank,
            plan=expand(
                self.rank,
                width,
                widest,
                self.depth,
                self.groups,
                halving=self.schedule == "halving",
            ),
            project=False,
            norm=None,
            shuffle=False,
            activation="gelu",
            linear_end=True,
        )


@dataclass(frozen=True, kw_only=True)
class Dextra(GroupTable):
    """DExTra (Mehta et al., 2021): layers that widen and narrow again, with shuffled groups."""

    expand: float = 2.0
    depth: int = 4
    kind: Literal["dextra"] = "dextra"

    def unit(self, width: int) -> GroupUnit:
        plan = expand_and_reduce(
            width // 2, width, self.expand * self.rank, self.depth, self.groups
        )
        return GroupUnit(inputs=self.rank, plan=plan)
