"""What is read off the last layer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from decoupled.model.jsonable import LATER
from decoupled.model.parts.feed_forward import Activation
from decoupled.model.parts.linear import WHOLE, Tensors
from decoupled.model.parts.norm import NormSpec

HeadKind = Literal["rank", "span", "classes", "choice"]

_POSITIVE = re.compile(
    "relevant|positive|pos|entail(s|ed|ment)?|yes|true|1|label_1|duplicate|equivalent|similar|match|paraphrase",
    re.IGNORECASE,
)
"""Names of labels that say that two texts belong together, as models on the hub call them."""


@dataclass(frozen=True, kw_only=True)
class HeadDense:
    """The hidden step of a head: linear, activation, perhaps a norm."""

    activation: Activation
    bias: bool = True
    norm: NormSpec | None = None


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """A head: what is read off the last layer, and how."""

    kind: HeadKind
    labels: tuple[str, ...] = ()
    dense: HeadDense | None = None
    pooling: Literal["first", "mean", "last"] = "first"
    """The row that is read: of a causal model the last, which alone has seen everything."""
    null: bool = False
    """For spans: the first row was trained to say that there is no answer."""
    rank_label: str = field(default="", metadata=LATER)
    """For two classes: the one that means relevant, by whose odds passages are ranked; none if empty."""

    @property
    def outputs(self) -> int:
        """Numbers per row: one score, a start and an end, or a logit per label."""
        return {"rank": 1, "choice": 1, "span": 2, "classes": len(self.labels)}[self.kind]

    @property
    def signs(self) -> tuple[float, float]:
        """Factors of the two class logits; the weighted sum is the log-odds of `rank_label`."""
        return (1.0, -1.0) if self.rank_label == self.labels[0] else (-1.0, 1.0)

    @property
    def reads_passages(self) -> bool:
        """Whether it reads passage rows, which the last layer must then let advance."""
        return self.kind == "span" or self.pooling == "mean"

    @property
    def reads_all(self) -> bool:
        """Whether it pools over every row of both sides."""
        return self.kind != "span" and self.pooling == "mean"

    def tensors(self, width: int) -> Tensors:
        """Its tensors, by name, in an encoder of that width."""
        block, dense, tensors = f"heads.{self.kind}", self.dense, Tensors()
        if dense is not None:
            tensors |= WHOLE.tensors(f"{block}.dense", width, width, bias=dense.bias)
            tensors |= dense.norm.tensors(f"{block}.norm", width) if dense.norm else {}
        return tensors | WHOLE.tensors(f"{block}.out", width, self.outputs)

    def macs(self, width: int, passage: int) -> int:
        """Multiply-adds of one pair whose passage has so many tokens."""
        rows = 1 + passage if self.kind == "span" else 1
        return rows * width * (self.outputs + (width if self.dense is not None else 0))


def rank_label_of(labels: Sequence[str]) -> str:
    """Which of two labels means relevant, by its name; empty where that does not tell."""
    named = [label for label in labels if _POSITIVE.fullmatch(label.strip())]
    return named[0] if len(labels) == 2 and len(named) == 1 else ""
