"""Complex word embeddings: the position of a token is the phase of its vector (Wang et al., 2020)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from decoupled.errors import SpecError
from decoupled.model.parts.linear import Tensors, TensorSpec
from decoupled.model.parts.table.base import TOKENS, Band, Table


@dataclass(frozen=True, kw_only=True)
class Complex(Table):
    """`r·exp(i(ω·position + θ))` for each pair of columns: real parts first, then imaginary ones.

    A row holds both parts at position 0, so amplitude and phase; without phases it holds amplitudes alone.
    """

    placed: ClassVar[bool] = True

    share: Literal["words", "dimensions", "none"] = "words"
    """How frequencies ω are shared: one per dimension, one per word, or one for each word and dimension."""
    phases: bool = True
    kind: Literal["complex"] = "complex"

    def bands(self, vocab: int, width: int) -> tuple[Band, ...]:
        held = width if self.phases else width // 2
        return (Band(ids=vocab, width=held, rows=f"{TOKENS}.table"),)

    def check(self, vocab: int, width: int) -> None:
        if width % 2:
            raise SpecError(
                f"complex embeddings {width} wide: real and imaginary parts need an even width"
            )

    def frequencies(self, vocab: int, width: int) -> tuple[str, tuple[int, ...]]:
        """The name and shape of its frequencies; those of each word lie beside the word's row."""
        half = width // 2
        if self.share == "words":
            return f"{TOKENS}.frequency", (half,)
        return f"{TOKENS}.table.frequency", (vocab, 1 if self.share == "dimensions" else half)

    def tensors(self, vocab: int, width: int, bits: int | None) -> Tensors:
        name, shape = self.frequencies(vocab, width)
        return super().tensors(vocab, width, bits) | {name: TensorSpec(shape)}

    def macs(self, vocab: int, width: int) -> int:
        return 2 * width if self.phases else width
