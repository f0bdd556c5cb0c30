"""DeLighT's layers in place of ordinary ones, to be distilled into."""

from dataclasses import dataclass, replace
from typing import ClassVar

from decoupled.errors import SpecError
from decoupled.methods.delight.part import scaled
from decoupled.methods.fresh import fresh, plain_layers
from decoupled.methods.method import Method, Weights, check_count, with_layers
from decoupled.methods.tensors import in_layers
from decoupled.model.spec import ModelSpec

WIDE = 16
"""The widest feed-forward layer, in multiples of the model's width."""


@dataclass(frozen=True, kw_only=True)
class DelightLayers(Method):
    """DeLighT's layers: group linear layers, one narrow head, a light feed-forward map. They start anew.

    Train it: `shrink` with a recipe distils the model it was made from into it.
    """

    name: ClassVar[str] = "delight"
    by_training: ClassVar[bool] = True

    least: int = 4
    """Group linear layers of the first layer."""
    most: int = 8
    """Group linear layers of the last layer; those between lie on a line, and may fall as well as rise."""
    expand: float = 2.0
    """Widest group linear layer of the shallowest layer, in multiples of the width; deeper ones are wider."""
    ffn: int | None = None
    """Width of the feed-forward maps; by default a quarter of the model's."""
    seed: int = 0

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The spec with a DeLighT layer in place of each layer."""
        width, layers = spec.encoder.width, plain_layers(spec, self.name)
        if min(self.least, self.most) < 2 or self.expand < 1:
            raise SpecError(
                f"least={self.least}, most={self.most}, expand={self.expand}; choose 2 or more layers and "
                "an expansion of 1 or more"
            )
        ffn = max(1, width // 4) if self.ffn is None else self.ffn
        check_count(ffn, WIDE * width, f"ffn={ffn}")
        kinds = scaled(width, self.least, self.most, self.expand, len(layers))
        light = [replace(layer.ffn, width=ffn, activation="silu") for layer in layers]
        return with_layers(
            spec,
            [
                replace(layer.in_slot(n), attention=kind, ffn=light[n])
                for n, (layer, kind) in enumerate(zip(layers, kinds, strict=True))
            ],
        )

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Norms, embedding and heads as they were."""
        copied = in_layers(weights, zip(before.layers, after.layers, strict=True))
        return fresh(after, copied, self.seed)
