"""Low rank by singular values: matrices of the layers, plain or whitened by data, and the token table.

The table has one factorisation for all tokens (ALBERT), or less width for rarer ones. Positions and types
stay as wide as they are and are added after the map, so that a full rank changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.model.model import Model
from decoupled.model.parts.layer import Block
from decoupled.model.parts.table import TOKENS, Banded, Factorised, Table
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared
from decoupled.train.shrink.base import FITTED, Method, Weights, check_count, parts_of, with_blocks
from decoupled.train.shrink.linear import bias_of, need_floats, whole
from decoupled.train.shrink.measure import LIMIT, see_inputs
from decoupled.train.shrink.vocabulary import KeepTokens, by_frequency, frequencies

DAMPING = 0.01
"""Of the mean second moment, added to all of them."""


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
        """Blocks of low-rank matrices."""
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
                rank = int(self.keep * inner * width / (inner + width))
            said = f"rank={rank}, but a matrix of {rows}x{columns} has at most {min(rows, columns)}"
            check_count(rank, min(rows, columns), said)
            return replace(block, linear=replace(block.linear, rank=rank))

        return with_blocks(spec, factorised)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """The closest factors of each matrix."""
        found, roots, width = dict(weights), dict(self.factors), after.encoder.width
        for block in (layer.block(p) for layer in after.layers for p in parts_of(self.maps)):
            assert block.linear.rank is not None
            for name in (block.prefix + n for n in block.part.matrices(width)):
                found = {n: t for n, t in found.items() if not n.startswith(f"{name}.")}
                found |= _factors(weights, name, block.linear.rank, roots.get(name))
        return found


def _factors(weights: Weights, name: str, rank: int, root_II: Tensor | None) -> dict[str, Tensor]:
    matrix_OI, bias = whole(weights, name), weights.get(bias_of(name, weights))
    if root_II is None:
        second_OR, first_IR = truncated(matrix_OI, rank)
    else:
        # min ‖(W - BA)L‖ where C = LLᵀ: factor W·L and take L back out of the first factor.
        root = root_II.to(matrix_OI.device).double()
        second_OR, right_IR = truncated(matrix_OI.double() @ root, rank)
        first_IR = torch.linalg.solve_triangular(root.T, right_IR, upper=True)
    first_IR, second_OR = balanced(first_IR, second_OR)
    factors = {"first.weight": first_IR.T, "second.weight": second_OR}
    made = {f"{name}.{end}": factor.to(matrix_OI.dtype) for end, factor in factors.items()}
    return made if bias is None else made | {f"{name}.second.bias": bias}


def balanced(first_IR: Tensor, second_OR: Tensor) -> tuple[Tensor, Tensor]:
    """The same product with columns of equal length in both factors, so that training moves both alike.

    Whitened factors are a thousand times apart as they come; an optimiser's first steps would tear them.
    """
    ours, theirs = first_IR.norm(dim=0), second_OR.norm(dim=0)
    scale = torch.where((ours > 0) & (theirs > 0), (theirs / ours).sqrt(), torch.ones_like(ours))
    return first_IR * scale, second_OR / scale


@torch.no_grad()
def _moments(model: Model, sample: Prepared) -> dict[str, Tensor]:
    """Root of the sum of xxᵀ over the inputs of each matrix, by the prefix of its name.

    Rows of padding count too; batches are of like lengths, so there are few.
    """
    sums: dict[str, Tensor] = {}

    def see(name: str, given: Tensor) -> None:
        x = given.reshape(-1, given.shape[-1]).double()
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


# The token table ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FactoriseEmbedding(Method):
    """The token table as a narrow one and a map, from its singular values."""

    name: ClassVar[str] = "factorise-embedding"

    rank: int = 128

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """A table of that rank."""
        need_floats(spec, self.name, tables=True)
        return with_table(spec, Factorised(rank=self.rank), self.name)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """The best table of that rank: its squared error is the sum of the singular values left out."""
        return _banded(weights, after)


@dataclass(frozen=True, kw_only=True)
class BandEmbedding(Method):
    """Frequency-dependent width (Baevski and Auli, 2019): band i of the vocabulary is width/factor^i wide."""

    name: ClassVar[str] = "band-embedding"

    shares: tuple[float, ...] = (0.1, 0.3)
    """Shares of the vocabulary in the first bands; the rest is the last one."""
    factor: int = 4

    def fit(self, model: Model, sample: Prepared | None) -> Method:
        """Count the tokens of the data, and order the vocabulary by them."""
        if not 0 < sum(self.shares) < 1 or min(self.shares) <= 0:
            raise SpecError(
                f"shares={self.shares}; choose shares above 0 that add up to less than 1"
            )
        if self.factor < 2:
            raise SpecError(f"factor={self.factor}; choose 2 or more")
        spec, examples = model.spec.encoder.embedding, self.needed(sample).examples(model)
        sizes = [max(1, round(share * spec.vocab)) for share in self.shares]
        sizes.append(spec.vocab - sum(sizes))
        widths = tuple(max(1, spec.width // self.factor**i) for i in range(len(sizes)))
        order = by_frequency(model, frequencies(examples, spec.vocab))
        return _Band(order=KeepTokens(order=order), sizes=tuple(sizes), widths=widths)


@dataclass(frozen=True, kw_only=True)
class _Band(Method):
    """Bands over a given order of the vocabulary."""

    order: KeepTokens
    sizes: tuple[int, ...]
    widths: tuple[int, ...]

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        need_floats(spec, BandEmbedding.name, tables=True)
        table = Banded(sizes=self.sizes, widths=self.widths)
        return with_table(self.order.rewrite(spec), table, BandEmbedding.name)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        return _banded(self.order.transfer(weights, before, self.order.rewrite(before)), after)

    def retokenise(self, json: str) -> str:
        return self.order.retokenise(json)

    def summary(self) -> dict[str, object]:
        return {"method": BandEmbedding.name, "sizes": self.sizes, "widths": self.widths}


def _banded(weights: Weights, after: ModelSpec) -> Weights:
    """The tensors of the new table, each band the closest of its rank to the rows that there were."""
    found, spec = dict(weights), after.encoder.embedding
    bands = spec.tokens.bands(spec.vocab, spec.width)
    parts = torch.split(found.pop(f"{TOKENS}.weight"), [band.ids for band in bands])
    for band, rows in zip(bands, parts, strict=True):
        narrow, widen = truncated(rows, band.width)
        found |= {f"{band.rows}.weight": narrow, f"{band.widen}.weight": widen}
    return found


def with_table(spec: ModelSpec, table: Table, method: str) -> ModelSpec:
    """The spec with another token table, or an error where it has one already or is too narrow for it."""
    embedding = spec.encoder.embedding
    if embedding.table is not None:
        raise SpecError(
            f"{method}: the token table is {embedding.table.kind} already; apply one of the two methods"
        )
    rank = max(band.width for band in table.bands(embedding.vocab, embedding.width))
    said = f"{method}: rank {rank}, but the table is {embedding.width} wide"
    check_count(rank, embedding.width, said)
    changed = replace(embedding, table=table)
    return replace(spec, encoder=replace(spec.encoder, embedding=changed))


def truncated(matrix_MN: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """`[M,rank]` and `[N,rank]` with the product of the first by the second transposed closest to a matrix.

    Fewer rows than `rank` leave columns of zeros.
    """
    whole = matrix_MN.double()
    rows, columns = whole.shape
    count = min(rank, rows, columns)
    # Singular vectors of the small side: seconds instead of minutes for a whole vocabulary.
    small = whole.T @ whole if columns <= rows else whole @ whole.T
    axes = torch.linalg.eigh(small)[1].flip(1)[:, :count]
    if columns <= rows:
        left, right = whole @ axes, axes
    else:
        right = whole.T @ axes
        size = right.norm(dim=0).clamp(min=1e-30)
        left, right = axes * size, right / size
    left, right = (F.pad(one.to(matrix_MN.dtype), (0, rank - count)) for one in (left, right))
    return left, right
