"""Attention over a tree: nodes take what is under them (Nguyen et al., 2020)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from decoupled.errors import SpecError
from decoupled.methods.tree.text import TreeText
from decoupled.model.parts.attention.base import Attention
from decoupled.model.parts.linear import LinearSpec, Tensors, TensorSpec
from decoupled.model.parts.part import Matrix

__all__ = ["TreeAttention", "TreeText"]


@dataclass(frozen=True, kw_only=True)
class TreeAttention(Attention):
    """Tokens see tokens; a node sees itself, the nodes and the tokens under it, its value made of theirs.

    A text without nodes, as a query is, has scaled dot-product attention.
    """

    alike: ClassVar[bool] = False

    vertical: int = 50
    """Rows of the table of heights above a token; greater heights use the last one."""
    horizontal: int = 100
    """Rows of the table of places under a node."""
    bias: bool = True
    rotary: float | None = None
    kind: Literal["tree"] = "tree"

    def __post_init__(self) -> None:
        if min(self.vertical, self.horizontal) < 1 or self.head_width % 2:
            raise SpecError(
                f"tree attention of vertical={self.vertical}, horizontal={self.horizontal} and heads "
                f"{self.head_width} wide; choose 1 or more rows, and an even width"
            )

    def matrices(self, width: int) -> dict[str, Matrix]:
        weigh = Matrix(inputs=width, outputs=self.heads, reads="tokens")
        return {**self.dot_product(width, bias=self.bias), "attention.weigh": weigh}

    def others(self, width: int) -> Tensors:
        half = self.head_width // 2
        return {
            "attention.vertical": TensorSpec((self.vertical + 1, half)),
            "attention.horizontal": TensorSpec((self.horizontal + 1, half)),
        }

    def mixing(self, linear: LinearSpec, width: int, rows: int, tokens: int, table: int) -> int:
        """Multiply-adds of all rows, nodes among them; `gathering` adds those of the nodes' values."""
        return 2 * rows * tokens * self.inner

    def gathering(self, rows: int, nodes: int) -> int:
        """Sums over tokens and over the nodes of a path; embeddings of a path, once for all heads."""
        along = nodes * nodes * (self.inner + rows * (1 + self.heads + self.head_width))
        return 2 * nodes * rows * self.inner + along
