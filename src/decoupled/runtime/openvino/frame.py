"""Where the tokens of a batch stand, as nodes: masks, rotary angles, relative buckets.

All pairs of a batch have the same query, so positions do not depend on the pair: only the mask does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from openvino import Node
from openvino import opset15 as op

from decoupled.runtime.openvino.graph import constant, integers

HIDDEN = np.float32(-1e30)
"""Added to the score of a token that may not be seen. Finite: a row that sees nothing must not be NaN."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeFrame:
    """Positions `[T]` and, for each pair, which tokens are real `[B,T]`."""

    position: Node
    real: Node
    _cache: dict[Any, Node] = field(default_factory=dict)

    def cached(self, key: Any, make: Callable[[], Node]) -> Node:
        """Return what `make` gives, computed once however many layers ask."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def mask(self, window: int | None) -> Node:
        """`[B,1,1|T,T]` mask, 0 or `HIDDEN`, to be added to the scores."""
        return self.cached(("mask", window), lambda: self._mask(window))

    def _mask(self, window: int | None) -> Node:
        seen = op.unsqueeze(self.real, integers(1, 2))
        if window is not None:
            near = op.less_equal(op.absolute(self.distance()), constant(np.int64(window)))
            seen = op.logical_and(seen, op.unsqueeze(near, integers(0, 1)))
        return op.select(seen, constant(np.float32(0)), constant(HIDDEN))

    def distance(self) -> Node:
        """`[T,T]` position of the looking token minus position of the seen one."""
        looking, seen = (op.unsqueeze(self.position, integers(axis)) for axis in (1, 0))
        return self.cached("distance", lambda: op.subtract(looking, seen))

    def angles(self, base: float, width: int) -> tuple[Node, Node]:
        """Cosine and sine `[1,1,T,K]` of the rotary angles."""
        angle = self.cached(("angles", base, width), lambda: self._angle(base, width))
        return op.cos(angle), op.sin(angle)

    def _angle(self, base: float, width: int) -> Node:
        step = np.arange(0, width, 2, dtype=np.float32)
        # In fp32 throughout, as the torch model computes them.
        speed = np.float32(1.0) / np.float32(base) ** (step / np.float32(width))
        place = op.unsqueeze(op.convert(self.position, "f32"), integers(1))
        angle = op.multiply(place, constant(np.concatenate([speed, speed]).astype(np.float32)))
        return op.unsqueeze(angle, integers(0, 1))

    def buckets(self, buckets: int, max_distance: int) -> Node:
        """`[T,T]` row of DeBERTa's relative table for each pair of tokens."""
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
    # The same formula as `log_bucket` of the torch model, tabulated.
    if max_distance:
        middle = buckets // 2
        near = np.abs(distance) < middle
        far = np.where(near, middle - 1, np.abs(distance)).astype(np.float32)
        scale = np.log(np.float32((max_distance - 1) / middle))
        with np.errstate(divide="ignore"):
            steps = np.ceil(np.log(far / np.float32(middle)) / scale * np.float32(middle - 1))
        steps = (steps + middle) * np.sign(distance)
        distance = np.where(far <= middle, distance, steps).astype(np.int64)
    return np.clip(distance + buckets, 0, 2 * buckets - 1).astype(np.int64)


def rotate(x_BHTK: Node, cos: Node, sin: Node, width: int) -> Node:
    """Rotary positions: each half of a head turned against the other."""
    sizes = integers(width // 2, width - width // 2)
    left, right = op.variadic_split(x_BHTK, constant(np.int64(3)), sizes).outputs()
    turned = op.concat([op.negative(right), left], 3)
    return op.add(op.multiply(x_BHTK, cos), op.multiply(turned, sin))
