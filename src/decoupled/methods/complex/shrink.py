"""Complex word embeddings in place of a learned position table."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from decoupled.errors import SpecError
from decoupled.methods.complex.module import frequencies
from decoupled.methods.complex.part import Complex
from decoupled.methods.method import Method, Weights
from decoupled.methods.tensors import need_floats
from decoupled.methods.token_table import with_table
from decoupled.model.parts.table import TOKENS
from decoupled.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class ComplexEmbedding(Method):
    """Positions as phases of the token vectors instead of a table of them; exact at position 0.

    Train it: every other position is new to the layers above.
    """

    name: ClassVar[str] = "complex-embedding"
    by_training: ClassVar[bool] = True

    share: Literal["words", "dimensions", "none"] = "words"
    """Frequencies: one per dimension, one per word, or one for each."""
    speed: float = 1.0
    """Factor of the frequencies at the start; 0 begins without any order of the words."""

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """No position table; the vectors of tokens turn."""
        need_floats(spec, self.name, tables=True)
        embedding = spec.encoder.embedding
        if not embedding.positions:
            raise SpecError(
                f"{self.name} replaces a learned position table, and a {spec.family} encoder has none; "
                "leave it as it is"
            )
        with_phases = with_table(spec, Complex(share=self.share), self.name)
        # What position 0 adds, it adds everywhere; a table of types holds it.
        types = max(1, embedding.types)
        changed = replace(with_phases.encoder.embedding, positions=0, position_start=0, types=types)
        return replace(with_phases, encoder=replace(with_phases.encoder, embedding=changed))

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Keep the rows, and add the first position to the types, so that position 0 stays exact."""
        moved, old, new = dict(weights), before.encoder.embedding, after.encoder.embedding
        first_D = moved.pop("embedding.positions.weight")[old.position_start]
        moved[f"{TOKENS}.table.weight"] = moved.pop(f"{TOKENS}.weight")
        types = moved.get("embedding.types.weight", torch.zeros(1, old.width).to(first_D))
        moved["embedding.types.weight"] = types + first_D
        assert isinstance(new.table, Complex)
        name, shape = new.table.frequencies(new.vocab, new.width)
        start = self.speed * frequencies(new.width)
        start = start.mean() if self.share == "dimensions" else start
        return moved | {name: start.expand(shape).clone().to(first_D)}
