"""A factorised token table (ALBERT): one narrow table and a matrix that widens it."""

from dataclasses import dataclass
from typing import ClassVar

from decoupled.methods.factorise.part import Factorised
from decoupled.methods.method import Method, Weights
from decoupled.methods.tensors import need_floats
from decoupled.methods.token_table import banded, with_table
from decoupled.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class FactoriseEmbedding(Method):
    """The token table as a narrow one and a map, from its singular values."""

    name: ClassVar[str] = "factorise-embedding"

    rank: int = 128

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The spec with a token table of that rank."""
        need_floats(spec, self.name, tables=True)
        return with_table(spec, Factorised(rank=self.rank), self.name)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """The best table of that rank: its squared error is the sum of the singular values left out."""
        return banded(weights, after)
