"""Linear maps, norms and activations as OpenVINO nodes; int8 wherever the range of an input is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from openvino import Node, PartialShape, Type
from openvino import opset15 as op

from decoupled.errors import WeightsError
from decoupled.spec import Activation, NormSpec

Floats = npt.NDArray[np.float32]
Tensors = Mapping[str, npt.NDArray[np.generic]]

LEVELS = 256
LEAST_WIDTH, LEAST_STEP = np.float32(1e-6), np.float32(1e-20)
"""Channels that never move, and outputs without weights, still need a step."""
UNBOUNDED = 1e30


@dataclass(frozen=True, kw_only=True, eq=False)
class Range:
    """The least, the largest and the usual value of each channel that calibration saw."""

    low: Floats
    high: Floats
    mean: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """`y = x @ weight_OI.T + bias_O`, in numpy: what a node is made of."""

    weight: Floats
    bias: Floats | None = None

    def select(self, outputs: Any) -> Linear:
        """The map with some of its outputs."""
        bias = None if self.bias is None else self.bias[outputs]
        return Linear(weight=self.weight[outputs], bias=bias)

    def after(self, first: Linear) -> Linear:
        """One map that does `first` and then this one."""
        weight = self.weight @ first.weight
        bias = self.bias
        if first.bias is not None:
            moved = self.weight @ first.bias
            bias = moved if bias is None else bias + moved
        return Linear(weight=weight, bias=bias)


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """An input of linear maps. Rounded, it stands for `node * step_I + low_I`."""

    node: Node
    seen: Range | None = None
    step: Floats | None = None


@dataclass(kw_only=True, eq=False)
class Graph:
    """The parts of one component. Weights come by name; `observed` gathers the inputs to calibrate."""

    tensors: Tensors
    ranges: Mapping[str, Range] = field(default_factory=dict)
    observed: dict[str, Node] | None = None

    def array(self, name: str) -> Floats:
        """A tensor of the model."""
        try:
            return np.asarray(self.tensors[name], np.float32)
        except KeyError:
            raise WeightsError(f"the weights lack {name}; save the model again") from None

    def map(self, name: str) -> Linear:
        """The linear map of that name, as torch keeps it."""
        bias = f"{name}.bias"
        return Linear(
            weight=self.array(f"{name}.weight"),
            bias=self.array(bias) if bias in self.tensors else None,
        )

    def source(self, node: Node, tap: str, channels: Any = slice(None)) -> Source:
        """The input of linear maps, rounded to bytes if the range of `tap` is known.

        Each channel has its own step and offset, so that narrow channels do not drown in the step of wide
        ones. Both move into the maps, and the product runs on plain unsigned bytes.
        """
        if self.observed is not None:
            self.observed.setdefault(tap, node)
        whole = self.ranges.get(tap)
        if whole is None:
            return Source(node=node)
        seen = Range(low=whole.low[channels], high=whole.high[channels], mean=whole.mean[channels])
        step = np.maximum(seen.high - seen.low, LEAST_WIDTH) / np.float32(LEVELS - 1)
        ends = [constant(np.float32(end)) for end in (0, LEVELS - 1, 0, LEVELS - 1)]
        # The clamp changes nothing but the fusion: OpenVINO 2026.4 merges a scale and a shift that follow a
        # linear map with two readers into the rounding, and there takes tokens for channels.
        free = op.clamp(node, -UNBOUNDED, UNBOUNDED)
        scaled = op.add(op.multiply(free, constant(1 / step)), constant(-seen.low / step))
        return Source(node=op.fake_quantize(scaled, *ends, LEVELS), seen=seen, step=step)

    def linear(self, source: Source, made: Linear) -> Node:
        """The map applied to the last axis. Rounded weights act on what differs from the usual input only."""
        seen, step = source.seen, source.step
        if seen is None or step is None:
            y = op.matmul(source.node, constant(made.weight), False, True)
            return y if made.bias is None else op.add(y, constant(made.bias))
        scaled = made.weight * step
        step_O1 = np.maximum(np.abs(scaled).max(1, keepdims=True) / np.float32(127), LEAST_STEP)
        codes = np.rint(scaled / step_O1)
        bias = made.weight @ seen.mean + (codes * step_O1) @ ((seen.low - seen.mean) / step)
        bias = bias if made.bias is None else bias + made.bias
        weight = op.multiply(op.convert(constant(codes.astype(np.int8)), "f32"), constant(step_O1))
        return op.add(op.matmul(source.node, weight, False, True), constant(bias))

    def apply(self, node: Node, name: str, tap: str) -> Node:
        """One named map of one input."""
        return self.linear(self.source(node, tap), self.map(name))

    def norm(self, x: Node, name: str, spec: NormSpec) -> Node:
        """Layer normalisation over the last axis."""
        axis = constant(np.array([-1], np.int64))
        y = op.mvn(x, axis, True, spec.eps, "INSIDE_SQRT")
        y = op.multiply(y, constant(self.array(f"{name}.weight")))
        return op.add(y, constant(self.array(f"{name}.bias"))) if spec.bias else y


ACTIVATIONS: dict[Activation, Callable[[Node], Node]] = {
    "gelu": lambda x: op.gelu(x, "erf"),
    "gelu_tanh": lambda x: op.gelu(x, "tanh"),
    "relu": op.relu,
    "silu": op.swish,
    "tanh": op.tanh,
}


def constant(value: Any) -> Node:
    """A constant with the array's own type."""
    return op.constant(np.asarray(value, order="C"))


def parameter(name: str, shape: Sequence[int], kind: str) -> Node:
    """An input; -1 is a length that varies."""
    return op.parameter(PartialShape(list(shape)), Type(np.dtype(kind)), name=name)


def integers(*values: int) -> Node:
    """A shape or an axis list."""
    return constant(np.array(values, np.int64))


def size(x: Node, axis: int) -> Node:
    """The length of `x` along an axis, as `[1]`."""
    return op.gather(op.shape_of(x, "i64"), integers(axis), constant(np.int64(0)))


def rows(x: Node, start: Node | int, stop: Node | int | None = None, axis: int = 1) -> Node:
    """`x[:, start:stop]`."""
    begin = integers(start) if isinstance(start, int) else start
    end = integers(np.iinfo(np.int32).max) if stop is None else stop
    end = integers(end) if isinstance(end, int) else end
    return op.slice(x, begin, end, integers(1), integers(axis))


def count(length: Node) -> Node:
    """`0, 1, 2…` as many as the `[1]` integer says."""
    zero, one = constant(np.int64(0)), constant(np.int64(1))
    return op.range(zero, op.squeeze(length, integers(0)), one, "i64")
