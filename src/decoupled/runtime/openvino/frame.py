"""Where the tokens of a batch stand, as nodes: masks, rotary angles, relative buckets.

All pairs of a batch have the same query, so positions depend on the pair where it comes after the passage
or rows change places: for decoders alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from openvino import Node
from openvino import opset15 as op

from decoupled.model.parts.attention import RotaryScaling
from decoupled.model.parts.attention.disentangled import log_bucket
from decoupled.runtime.openvino.graph import constant, integers, size

HIDDEN = np.float32(-1e30)
"""Added to the score of a token that may not be seen. Finite: a row that sees nothing must not be NaN."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeFrame:
    """Positions `[1|B,T]` and, for each pair, which tokens are real `[B,T]`."""

    position: Node
    real: Node
    before: Node | None = None
    """`[B,P]`: which tokens are real of a text that comes before all of these."""
    _cache: dict[Any, Node] = field(default_factory=dict)

    def cached(self, key: Any, make: Callable[[], Node]) -> Node:
        """Return what `make` gives, computed once however many layers ask."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def mask(self, window: int | None, *, causal: bool = False) -> Node:
        """`[B,1,1|T,T]` mask, 0 or `HIDDEN`, to be added to the scores; tokens before come last."""
        return self.cached(("mask", window, causal), lambda: self._mask(window, causal))

    def _mask(self, window: int | None, causal: bool) -> Node:
        seen = op.unsqueeze(self.real, integers(1, 2))
        if window is not None:
            near = op.less_equal(op.absolute(self.distance()), constant(np.int64(window)))
            seen = op.logical_and(seen, op.unsqueeze(near, integers(1)))
        if causal:
            past = op.greater_equal(self.distance(), constant(np.int64(0)))
            seen = op.logical_and(seen, op.unsqueeze(past, integers(1)))
        if self.before is not None:
            shape = op.concat([integers(1, 1), size(seen, 2), integers(1)], 0)
            before = op.unsqueeze(self.before, integers(1, 2))
            before = op.broadcast(before, shape, broadcast_spec="BIDIRECTIONAL")
            seen = op.concat([seen, before], 3)
        return op.select(seen, constant(np.float32(0)), constant(HIDDEN))

    def distance(self) -> Node:
        """`[1|B,T,T]` position of the looking token minus position of the seen one."""
        looking, seen = (op.unsqueeze(self.position, integers(axis)) for axis in (2, 1))
        return self.cached("distance", lambda: op.subtract(looking, seen))

    def angles(
        self, base: float, width: int, scaling: RotaryScaling | None = None
    ) -> tuple[Node, Node]:
        """Cosine and sine `[1|B,1,T,K]` of the rotary angles."""
        key = "angles", base, width, scaling
        angle = self.cached(key, lambda: self._angle(base, width, scaling))
        return op.cos(angle), op.sin(angle)

    def _angle(self, base: float, width: int, scaling: RotaryScaling | None) -> Node:
        step = np.arange(0, width, 2, dtype=np.float32)
        # In fp32 throughout, as the torch model computes them.
        speed = np.float32(1.0) / np.float32(base) ** (step / np.float32(width))
        speed = speed if scaling is None else scaling.slowed(speed)
        place = op.unsqueeze(op.convert(self.position, "f32"), integers(1, 3))
        return op.multiply(place, constant(np.concatenate([speed, speed]).astype(np.float32)))

    def buckets(self, buckets: int, max_distance: int) -> Node:
        """`[1,T,T]` row of DeBERTa's relative table for each pair of tokens."""
        key = ("buckets", buckets, max_distance)
        return self.cached(key, lambda: self._buckets(bucket_table(buckets, max_distance)))

    def _buckets(self, table: npt.NDArray[np.int64]) -> Node:
        reach = len(table) // 2
        # Beyond the reach all distances share the outermost bucket.
        place = op.add(op.clamp(self.distance(), -reach, reach), constant(np.int64(reach)))
        return op.gather(constant(table), place, constant(np.int64(0)))


def bucket_table(buckets: int, max_distance: int) -> npt.NDArray[np.int64]:
    """DeBERTa's bucket of every distance from `-reach` to `reach`, beyond which it stays the same."""
    reach = max(max_distance, buckets) + 1
    distance = np.arange(-reach, reach + 1)
    if max_distance:
        distance = log_bucket(distance, buckets, max_distance, np)
    return np.clip(distance + buckets, 0, 2 * buckets - 1).astype(np.int64)


def rotate(x_BHTK: Node, cos: Node, sin: Node, width: int) -> Node:
    """Rotary positions: each half of a head turned against the other."""
    sizes = integers(width // 2, width - width // 2)
    left, right = op.variadic_split(x_BHTK, constant(np.int64(3)), sizes).outputs()
    turned = op.concat([op.negative(right), left], 3)
    return op.add(op.multiply(x_BHTK, cos), op.multiply(turned, sin))
