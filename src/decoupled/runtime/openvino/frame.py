"""Where the tokens of a batch stand, as nodes: masks, rotary angles, relative buckets.

All pairs of a batch have the same query, so positions do not depend on the pair: only the mask does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from openvino import Node
from openvino import opset15 as op

from decoupled.model.parts.attention import FixedPatterns
from decoupled.runtime.openvino.graph import constant, integers
from decoupled.runtime.openvino.patterns import weights

HIDDEN = np.float32(-1e30)
"""Added to the score of a token that may not be seen. Finite: a row that sees nothing must not be NaN."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """Positions `[T]` and, for each pair, which tokens are real `[B,T]`."""

    position: Node
    real: Node
    _made: dict[Any, Node] = field(default_factory=dict)

    def mask(self, window: int | None) -> Node:
        """`[B,1,1|T,T]`, to be added to the scores."""
        if ("mask", window) not in self._made:
            seen = op.unsqueeze(self.real, integers(1, 2))
            if window is not None:
                near = op.less_equal(op.absolute(self.distance()), constant(np.int64(window)))
                seen = op.logical_and(seen, op.unsqueeze(near, integers(0, 1)))
            zero, hidden = constant(np.float32(0)), constant(HIDDEN)
            self._made["mask", window] = op.select(seen, zero, hidden)
        return self._made["mask", window]

    def patterns(self, spec: FixedPatterns) -> Node:
        """`[B,F,T,T]` weights of the fixed heads, which layers of one kind share."""
        key = ("patterns", spec.patterns, spec.empty)
        if key not in self._made:
            self._made[key] = weights(spec, self.real)
        return self._made[key]

    def distance(self) -> Node:
        """`[T,T]` position of the looking token minus position of the seen one."""
        if "distance" not in self._made:
            looking = op.unsqueeze(self.position, integers(1))
            seen = op.unsqueeze(self.position, integers(0))
            self._made["distance"] = op.subtract(looking, seen)
        return self._made["distance"]

    def angles(self, base: float, width: int) -> tuple[Node, Node]:
        """Cosine and sine `[1,1,T,K]` of the rotary angles."""
        key = ("angles", base, width)
        if key not in self._made:
            step = np.arange(0, width, 2, dtype=np.float32)
            speed = np.float32(1.0) / np.float32(base) ** (step / np.float32(width))
            place = op.unsqueeze(op.convert(self.position, "f32"), integers(1))
            angle = op.multiply(place, constant(np.concatenate([speed, speed]).astype(np.float32)))
            self._made[key] = op.unsqueeze(angle, integers(0, 1))
        angle = self._made[key]
        return op.cos(angle), op.sin(angle)

    def buckets(self, buckets: int, max_distance: int) -> Node:
        """`[T,T]` row of DeBERTa's relative table for each pair of tokens."""
        key = ("buckets", buckets, max_distance)
        if key not in self._made:
            table = bucket_table(buckets, max_distance)
            reach = len(table) // 2
            far = op.clamp(self.distance(), -reach, reach)
            place = op.add(far, constant(np.int64(reach)))
            self._made[key] = op.gather(constant(table), place, constant(np.int64(0)))
        return self._made[key]


def bucket_table(buckets: int, max_distance: int) -> npt.NDArray[np.int64]:
    """DeBERTa's bucket of every distance from `-reach` to `reach`, beyond which it stays the same."""
    reach = max(max_distance, buckets) + 1
    distance = np.arange(-reach, reach + 1)
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
    """Rotary positions."""
    half = math.floor(width / 2)
    left, right = op.variadic_split(
        x_BHTK, constant(np.int64(3)), integers(half, width - half)
    ).outputs()
    turned = op.concat([op.negative(right), left], 3)
    return op.add(op.multiply(x_BHTK, cos), op.multiply(turned, sin))
