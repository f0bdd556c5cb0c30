"""Narrow token tables under group linear layers: fitted to the table that there was."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.methods.define.module import GroupedTable
from decoupled.methods.define.part import Define, Dextra, GroupTable
from decoupled.methods.method import Method, Weights
from decoupled.methods.tensors import need_floats
from decoupled.methods.token_table import truncated, with_table
from decoupled.model.parts.table import TOKENS
from decoupled.model.spec import ModelSpec

BATCH, LR = 2048, 1e-3


@dataclass(frozen=True, kw_only=True)
class DefineEmbedding(Method):
    """The token table as a narrow one that group linear layers widen: DeFINE, or DExTra as an embedding."""

    name: ClassVar[str] = "define"

    rank: int = 128
    """Width of the narrow table."""
    unit: Literal["define", "dextra"] = "define"
    expand: float = 4.0
    """Widest layer, in multiples of the rank."""
    depth: int = 3
    groups: int = 4
    """The most groups of a layer."""
    schedule: Literal["halving", "cycle"] = "halving"
    """Groups of DeFINE's layers by the paper's formula, or as its code has them."""
    steps: int = 100
    """Steps of fitting the old table's rows; define starts as the best of its rank, dextra needs some 500."""
    seed: int = 0

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The spec with a token table of that kind."""
        need_floats(spec, self.name, tables=True)
        if self.steps < 0:
            raise SpecError(f"steps={self.steps}; choose 0 or more")
        kind = {"define": Define, "dextra": Dextra}[self.unit]
        grouped = kind(rank=self.rank, expand=self.expand, depth=self.depth, groups=self.groups)
        if isinstance(grouped, Define):
            grouped = replace(grouped, schedule=self.schedule)
        return with_table(spec, grouped, self.name)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Fit the new table to the rows of the old one, in so many steps."""
        moved, spec = dict(weights), after.encoder.embedding
        rows_VD = moved.pop(f"{TOKENS}.weight")
        assert isinstance(spec.table, GroupTable)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            grouped = GroupedTable(spec.table, spec).to(rows_VD.device)
            order = torch.Generator().manual_seed(self.seed)
        narrow, widen = truncated(rows_VD, self.rank)
        if self.unit == "define":
            end = grouped.get_submodule(f"unit.{len(grouped.unit) - 1}.groups.0")
            # The last layer reads the row itself first: with U S and V' it starts as the best of
            # its rank.
            end.get_parameter("weight").zero_()[:, : self.rank] = widen
            end.get_parameter("bias").zero_()
        else:
            # The unit expects inputs of unit variance: a row of length sqrt(rank).
            narrow = F.normalize(narrow, dim=-1) * math.sqrt(self.rank)
            # Near 0 the activation behind the last norm halves what it is given.
            end = grouped.get_submodule(f"unit.{len(grouped.unit) - 1}.norm")
            end.get_parameter("weight").copy_(2 * rows_VD.std())
        grouped.get_parameter("table.weight").copy_(narrow)
        with torch.enable_grad():
            _fit(grouped, rows_VD, self.steps, order)
        return moved | {f"{TOKENS}.{n}": t.detach() for n, t in grouped.state_dict().items()}


def _fit(grouped: GroupedTable, rows_VD: Tensor, steps: int, order: torch.Generator) -> None:
    """Minimise the squared error (in parts of the mean square) plus one minus the cosine."""
    size = rows_VD.square().mean()
    optimiser = torch.optim.AdamW(grouped.parameters(), lr=LR, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
    for _ in range(steps):
        ids = torch.randint(len(rows_VD), (min(BATCH, len(rows_VD)),), generator=order)
        ids = ids.to(rows_VD.device)
        output, target = grouped(ids), rows_VD[ids]
        apart = (output - target).square().mean() / size
        loss = apart + 1 - F.cosine_similarity(output, target, dim=-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
