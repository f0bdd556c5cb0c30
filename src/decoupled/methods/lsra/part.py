"""Long-short range attention: half of the columns attend, half are convolved (Wu et al., 2020)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from decoupled.errors import SpecError
from decoupled.model.parts.attention.base import Attention
from decoupled.model.parts.linear import LinearSpec, Tensors, TensorSpec
from decoupled.model.parts.part import Matrix


@dataclass(frozen=True, kw_only=True)
class LongShort(Attention):
    """The first half of the columns through heads, the other half through a convolution over neighbours.

    A kernel sees the tokens of its own text, or of both above the split, without the padding between them.
    """

    alike: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    kernel: int = 7
    """Tokens that the convolution sees, the token itself in the middle; last in a causal frame."""
    kernels: int = 4
    """The number of kernels; each serves as many neighbouring columns."""
    dynamic: bool = True
    """Whether each token makes its own kernels, or all share the same."""
    gated: bool = True
    """Whether the convolution's input is gated (GLU)."""
    kind: Literal["lsra"] = "lsra"

    def __post_init__(self) -> None:
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise SpecError(
                f"a kernel over {self.kernel} tokens has no middle; choose an odd number"
            )

    def check(self, width: int) -> None:
        half = width // 2
        if width % 2 or self.kernels < 1 or half % self.kernels:
            raise SpecError(
                f"{self.kernels} kernels for half of {width} columns; choose an even width and a number "
                "of kernels that divides its half"
            )

    def matrices(self, width: int) -> dict[str, Matrix]:
        half = width // 2
        whole = Matrix(inputs=half, outputs=half)
        matrices = self.dot_product(half)
        near = replace(whole, outputs=2 * half if self.gated else half, reads="tokens")
        matrices["attention.near"] = near
        if self.dynamic:
            matrices["attention.weigh"] = replace(
                whole, outputs=self.kernels * self.kernel, bias=False
            )
        return {**matrices, "attention.near_out": whole}

    def others(self, width: int) -> Tensors:
        if self.dynamic:
            return {}
        return {"attention.kernel": TensorSpec((self.kernels, self.kernel))}

    def mixing(self, linear: LinearSpec, width: int, rows: int, tokens: int, table: int) -> int:
        return rows * (2 * tokens * self.inner + self.kernel * (width // 2))
