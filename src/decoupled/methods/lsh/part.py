"""Attention within buckets of alike tokens, found by hashing (Reformer)."""

from dataclasses import dataclass, replace
from typing import Literal

from decoupled.errors import SpecError
from decoupled.model.parts.attention.base import Attention
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.parts.part import Matrix

NEIGHBOURS = 3
"""The number of chunks that a chunk sees: itself, the one before it and the one after it."""


@dataclass(frozen=True, kw_only=True)
class LSH(Attention):
    """Queries are keys too; a token looks at those that some round of hashing puts into its bucket."""

    rounds: int = 4
    chunk: int = 64
    """Tokens of a chunk, after sorting by bucket; what is further than one chunk away is not seen."""
    buckets: int = 0
    """The number of buckets of every text; 0 follows its length."""
    seed: int = 0
    """Seed of the rotations that hash: the same in every process, so that stored states stay valid."""
    bias: bool = True
    rotary: float | None = None
    kind: Literal["lsh"] = "lsh"

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.chunk < 1:
            raise SpecError(
                f"lsh attention of rounds={self.rounds} and chunk={self.chunk}; choose 1 or more"
            )
        if self.buckets < 0 or (self.buckets != 1 and self.buckets % 2):
            raise SpecError(
                f"buckets={self.buckets} do not divide into the two halves of a rotation; choose an even "
                "number, 1 for no hashing, or 0 to follow the length of a text"
            )
        if not 0 <= self.seed < 1 << 31:
            raise SpecError(f"seed={self.seed} of lsh attention; choose 0 to {(1 << 31) - 1}")

    def columns(self, tokens: int) -> int:
        """Directions of the rotation for a text of so many tokens, two buckets each; 0 is one bucket.

        By the length of the text alone: a bucket holds half a chunk on average, and what fits into one
        chunk is not hashed.
        """
        if self.buckets:
            return self.buckets // 2
        return 0 if tokens <= self.chunk else -(-tokens // self.chunk)

    def dense(self, rows: int) -> bool:
        """Whether scoring every token is cheaper, for so many rows, than scoring chunks in every round."""
        return rows <= self.rounds * NEIGHBOURS * self.chunk

    def matrices(self, width: int) -> dict[str, Matrix]:
        matrices = self.dot_product(width, bias=self.bias)
        del matrices["attention.key"]
        return matrices | {"attention.query": replace(matrices["attention.query"], reads="tokens")}

    def mixing(self, linear: LinearSpec, width: int, rows: int, tokens: int, table: int) -> int:
        hashing = self.rounds * tokens * self.columns(tokens) * self.inner
        if self.dense(rows):
            return hashing + 2 * rows * tokens * self.inner
        sorted_tokens = -(-tokens // self.chunk) * self.chunk
        return hashing + 2 * self.rounds * sorted_tokens * NEIGHBOURS * self.chunk * self.inner

    def shape(self) -> Attention:
        return LSH(heads=self.heads, head_width=self.head_width, bias=self.bias)
