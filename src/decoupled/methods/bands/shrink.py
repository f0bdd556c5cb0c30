"""A token table with less width for rarer tokens."""

from dataclasses import dataclass
from typing import ClassVar

from decoupled.errors import SpecError
from decoupled.methods.bands.part import Banded
from decoupled.methods.method import Method, Weights
from decoupled.methods.tensors import need_floats
from decoupled.methods.token_order import KeepTokens, by_frequency, frequencies
from decoupled.methods.token_table import banded, with_table
from decoupled.model.model import Model
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import Prepared


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
        # Width d / F^i for band i, as in Baevski and Auli (2019), with F = 4 there.
        widths = tuple(max(1, spec.width // self.factor**i) for i in range(len(sizes)))
        order = by_frequency(model, frequencies(examples, spec.vocab))
        return _Band(order=KeepTokens(order=order), sizes=tuple(sizes), widths=widths)


@dataclass(frozen=True, kw_only=True)
class _Band(Method):
    """Bands of given sizes and widths over a given order of the vocabulary."""

    order: KeepTokens
    sizes: tuple[int, ...]
    widths: tuple[int, ...]

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        need_floats(spec, BandEmbedding.name, tables=True)
        table = Banded(sizes=self.sizes, widths=self.widths)
        return with_table(self.order.rewrite(spec), table, BandEmbedding.name)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        return banded(self.order.transfer(weights, before, self.order.rewrite(before)), after)

    def retokenise(self, json: str) -> str:
        return self.order.retokenise(json)

    def summary(self) -> dict[str, object]:
        return {"method": BandEmbedding.name, "sizes": self.sizes, "widths": self.widths}
