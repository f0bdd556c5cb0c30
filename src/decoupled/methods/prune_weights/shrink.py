"""Unstructured pruning: the smallest weights become 0. It saves bytes in a sparse format, and no time."""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.methods.method import BeforeSteps, Method, Weights
from decoupled.methods.tensors import held, linears, matrix_names, need_floats, seen_as
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class PruneWeights(Method):
    """Zero a share of the weights of the layers' matrices, by magnitude."""

    name: ClassVar[str] = "prune-weights"
    finishes: ClassVar[bool] = True

    sparsity: float = 0.5
    scope: Literal["matrix", "global"] = "matrix"
    """Whether every matrix loses the same share, or the smallest of all weights go."""
    block: int = 0
    """Keep the largest in each run of so many inputs: 4 with sparsity 0.5 is the 2:4 pattern."""
    gradual: bool = True
    """While training, reach the sparsity on a cubic curve (Zhu and Gupta, 2018) instead of at once."""
    until: float = 0.7
    """Share of the steps after which the sparsity is reached."""

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The description stays: zeros are weights too."""
        need_floats(spec, self.name)
        if not 0 <= self.sparsity < 1:
            raise SpecError(
                f"sparsity={self.sparsity}; choose a share from 0 up to, but not including, 1"
            )
        if not 0 < self.until <= 1:
            raise SpecError(f"until={self.until}; choose a share above 0 and up to 1")
        if self.block < 0 or self.block == 1:
            raise SpecError(f"block={self.block}; choose 0 for none, or 2 or more inputs")
        if self.block and self.scope == "global":
            raise SpecError(
                "block fixes the share of every run of inputs; choose scope=matrix with it"
            )
        return spec

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """The same tensors with zeros."""
        chosen = {f"{n}.weight": weights[f"{n}.weight"] for n in matrix_names(weights)}
        masks = self.masks(chosen, self.sparsity)
        return {**weights, **{n: t * masks[n] for n, t in chosen.items()}}

    def masks(self, weights: Weights, sparsity: float) -> dict[str, Tensor]:
        """1 for what stays. Ties fall to the later weight, so the share is exact."""
        if self.block:
            return {n: _in_blocks(t, sparsity, self.block) for n, t in weights.items()}
        if self.scope == "matrix":
            return {n: _largest(t.flatten(), sparsity).view(t.shape) for n, t in weights.items()}
        flat = torch.cat([t.flatten() for t in weights.values()])
        parts = torch.split(_largest(flat, sparsity), [t.numel() for t in weights.values()])
        return {n: m.view(t.shape) for (n, t), m in zip(weights.items(), parts, strict=True)}

    @property
    def settled(self) -> float:
        """The share of steps before the final sparsity; weights of a lesser one are no result."""
        return self.until if self.gradual else 0.0

    def reached(self, step: int, total: int) -> float:
        """Sparsity at a step of training."""
        return self.sparsity * self._share(step, total)

    def _share(self, step: int, total: int) -> float:
        done = min(1.0, step / max(1.0, self.until * total)) if self.gradual else 1.0
        # s_t = s_f (1 - (1 - t/T)³), from zero sparsity (Zhu and Gupta, 2018).
        return 1 - (1 - done) ** 3

    @contextmanager
    def hook(self, student: PairEncoder, teacher: PairEncoder | None) -> BeforeSteps:
        """Masks on the weights: what is 0 gets no gradient and stays 0."""
        maps = linears(student)
        masks = {name: torch.ones_like(module.weight) for name, module in maps.items()}

        @torch.no_grad()
        def tick(step: int, total: int) -> None:
            # A hundred levels are as good as thousands, and ranking all weights takes a while.
            now, before = (int(100 * self._share(at, total)) for at in (step, step - 1))
            if step and now == before:
                return
            # As the masks leave them, so that what went does not come back.
            left = {name: module.weight * masks[name] for name, module in maps.items()}
            for name, mask in self.masks(left, self.reached(step, total)).items():
                masks[name].copy_(mask)

        with ExitStack() as undo:
            for name, module in maps.items():
                undo.enter_context(held(module, masks[name]))
                undo.enter_context(seen_as(module, partial(torch.mul, masks[name])))
            yield tick
        # Masked weights still hold values that decay or moments moved; they become zeros now.
        with torch.no_grad():
            for name, module in maps.items():
                module.weight.mul_(masks[name])


def _largest(values: Tensor, sparsity: float) -> Tensor:
    values, drop = values.abs(), round(len(values) * sparsity)
    if not drop:
        return torch.ones_like(values)
    # Selecting is several times as fast as sorting, and gradual pruning does it a hundred times.
    edge = values.kthvalue(drop).values
    above, ties = values > edge, values == edge
    spare = len(values) - drop - above.sum()
    # Among equal weights the first ones stay, until the share is exact.
    return (above | (ties & (ties.cumsum(0) <= spare))).to(values.dtype)


def _in_blocks(weight_OI: Tensor, sparsity: float, size: int) -> Tensor:
    outputs, inputs = weight_OI.shape
    # Padding is below any magnitude, so real weights are kept before it.
    padded = F.pad(weight_OI.abs(), (0, -inputs % size), value=-1.0)
    runs = padded.view(outputs, -1, size)
    order = runs.argsort(dim=-1, stable=True, descending=True)
    mask = torch.zeros_like(runs).scatter(-1, order[..., : size - round(size * sparsity)], 1.0)
    return mask.view(outputs, -1)[:, :inputs]
