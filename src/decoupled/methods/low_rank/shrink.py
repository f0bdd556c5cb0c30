"""Low rank by singular values: every matrix of the layers as two factors, plain or whitened by data."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.methods.importance import LIMIT, see_inputs
from decoupled.methods.method import FITTED, Method, Weights, check_count, parts_of, with_blocks
from decoupled.methods.tensors import bias_of, need_floats, whole
from decoupled.methods.token_table import truncated
from decoupled.model.model import Model
from decoupled.model.parts.layer import Block
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared

DAMPING = 0.01
"""Share of the mean second moment that is added to the diagonal."""


@dataclass(frozen=True, kw_only=True)
class LowRank(Method):
    """Every matrix of the chosen blocks as two factors."""

    name: ClassVar[str] = "low-rank"

    maps: Literal["all", "attention", "ffn"] = "all"
    rank: int | None = None
    """Rank of every matrix; by default what `keep` allows."""
    keep: float = 0.5
    """Share of each matrix's parameters to keep: the rank is keep·mn/(m+n)."""
    whiten: bool = False
    """Weigh errors by what the matrix is really given (needs data): less error on such inputs."""
    factors: tuple[tuple[str, Tensor], ...] = field(default=(), metadata=FITTED)
    """Triangular roots of the second moments of each matrix's inputs, where they are known."""

    def fit(self, model: Model, sample: Prepared | None) -> Method:
        """For `whiten`: look at the inputs of every matrix."""
        if not self.whiten or self.factors:
            return self
        need_floats(model.spec, self.name)
        return replace(self, factors=tuple(_moments(model, self.needed(sample)).items()))

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The spec with low-rank matrices in the chosen blocks."""
        if self.whiten and not self.factors:
            raise self.undecided()
        need_floats(spec, self.name)
        if self.rank is None and not 0 < self.keep < 1:
            raise SpecError(f"keep={self.keep}; choose a share between 0 and 1")
        width = spec.encoder.width

        def factorised(block: Block) -> Block:
            if block.name not in parts_of(self.maps):
                return block
            inner = block.part.units * block.part.unit_width
            shapes = [(m.outputs, m.inputs) for m in block.part.matrices(width).values()]
            rows, columns = min(shapes, key=min)
            rank = self.rank
            if rank is None:
                # r = keep·mn/(m+n), so that both factors hold that share of the parameters.
                rank = int(self.keep * inner * width / (inner + width))
            problem = (
                f"rank={rank}, but a matrix of {rows}x{columns} has at most {min(rows, columns)}"
            )
            check_count(rank, min(rows, columns), problem)
            return replace(block, linear=replace(block.linear, rank=rank))

        return with_blocks(spec, factorised)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """The closest factors of each matrix."""
        moved, roots, width = dict(weights), dict(self.factors), after.encoder.width
        for block in (layer.block(p) for layer in after.layers for p in parts_of(self.maps)):
            assert block.linear.rank is not None
            for name in (block.prefix + n for n in block.part.matrices(width)):
                moved = {n: t for n, t in moved.items() if not n.startswith(f"{name}.")}
                moved |= _factors(weights, name, block.linear.rank, roots.get(name))
        return moved


def _factors(weights: Weights, name: str, rank: int, root_II: Tensor | None) -> dict[str, Tensor]:
    matrix_OI, bias = whole(weights, name), weights.get(bias_of(name, weights))
    if root_II is None:
        # Eckart and Young: the truncated singular value decomposition is the closest of its rank.
        second_OR, first_IR = truncated(matrix_OI, rank)
    else:
        # min ‖(W - BA)L‖ where C = LLᵀ: factor W·L and take L back out of the first factor.
        root = root_II.to(matrix_OI.device).double()
        second_OR, right_IR = truncated(matrix_OI.double() @ root, rank)
        first_IR = torch.linalg.solve_triangular(root.T, right_IR, upper=True)
    first_IR, second_OR = balanced(first_IR, second_OR)
    factors = {"first.weight": first_IR.T, "second.weight": second_OR}
    tensors = {f"{name}.{end}": factor.to(matrix_OI.dtype) for end, factor in factors.items()}
    return tensors if bias is None else tensors | {f"{name}.second.bias": bias}


def balanced(first_IR: Tensor, second_OR: Tensor) -> tuple[Tensor, Tensor]:
    """The same product with columns of equal length in both factors, so that training moves both alike.

    Whitened factors are a thousand times apart as they come; an optimiser's first steps would tear them.
    """
    ours, theirs = first_IR.norm(dim=0), second_OR.norm(dim=0)
    # Zero columns stay as they are: there is nothing to balance.
    scale = torch.where((ours > 0) & (theirs > 0), (theirs / ours).sqrt(), torch.ones_like(ours))
    return first_IR * scale, second_OR / scale


@torch.no_grad()
def _moments(model: Model, sample: Prepared) -> dict[str, Tensor]:
    """Root of the sum of xxᵀ over the inputs of each matrix, by the prefix of its name.

    Rows of padding count too; batches are of like lengths, so there are few.
    """
    sums: dict[str, Tensor] = {}

    def see(name: str, inputs: Tensor) -> None:
        x = inputs.reshape(-1, inputs.shape[-1]).double()
        sums[name] = sums.get(name, 0) + x.T @ x

    width = model.spec.encoder.width
    blocks = [block for layer in model.spec.layers for block in layer.blocks]
    names = [block.prefix + name for block in blocks for name in block.part.matrices(width)]
    modules = {name: model.net.get_submodule(name) for name in names}
    see_inputs(model, sample, modules, see, limit=LIMIT // 4)
    return {name: _root(total) for name, total in sums.items()}


def _root(total_II: Tensor) -> Tensor:
    """L with LLᵀ = C, below the diagonal: as good as a square root, and ten times as fast to find."""
    # Directions that hardly occurred would be blown up with the rounding of bf16 in them.
    damping = DAMPING * float(total_II.diagonal().mean()) + 1e-30
    return torch.linalg.cholesky(total_II + damping * torch.eye(len(total_II)).to(total_II))
