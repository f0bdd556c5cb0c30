"""Linear layers, norms and activations as OpenVINO nodes; int8 wherever the range of an input is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import Node, PartialShape, Type
from openvino import opset15 as op

from decoupled.errors import WeightsError
from decoupled.model.parts.feed_forward import Activation
from decoupled.model.parts.linear import LinearSpec
from decoupled.model.parts.norm import NormSpec
from decoupled.model.spec import ModelSpec

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]
Tensors = Mapping[str, npt.NDArray[np.generic]]

LEVELS = 256
LEAST_WIDTH, LEAST_STEP = np.float32(1e-6), np.float32(1e-20)
"""Least range of a channel and least step of an output: what never moves still needs a divisor."""
UNBOUNDED = 1e30


@dataclass(frozen=True, kw_only=True, eq=False)
class Range:
    """The minimum, maximum and mean of each channel that calibration saw."""

    low: Floats
    high: Floats
    mean: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedLinear:
    """A linear layer `y = x @ weight_OI.T + bias_O` in numpy, from which a node is made."""

    weight: Floats | Codes
    bias: Floats | None = None
    scale: Floats | None = None
    """`[O,1]` scales, where the weights are integer codes."""
    first: LoadedLinear | None = None
    """The first factor of a low-rank layer; this layer then reads its output."""
    name: str = ""

    @property
    def inputs(self) -> int:
        """The number of channels that it reads."""
        return self.weight.shape[1] if self.first is None else self.first.inputs

    def matrix(self) -> Floats:
        """The whole matrix `[O,I]` in floats, whatever form it is held in."""
        weight = np.asarray(self.weight, np.float32)
        weight = weight if self.scale is None else weight * self.scale
        return weight if self.first is None else weight @ self.first.matrix()

    def select(self, outputs: Any) -> LoadedLinear:
        """The layer with some of its outputs."""
        bias = None if self.bias is None else self.bias[outputs]
        scale = None if self.scale is None else self.scale[outputs]
        return replace(self, weight=self.weight[outputs], bias=bias, scale=scale)

    def columns(self, inputs: Any, *, bias: bool) -> LoadedLinear:
        """The layer restricted to some of its inputs, with its bias or without."""
        return replace(self, weight=self.weight[:, inputs], bias=self.bias if bias else None)

    def after(self, first: LoadedLinear) -> LoadedLinear:
        """The layer that computes `first` and then this one."""
        # Multiplied out, it would cost more than the factors where the rank is below the inputs.
        if self.first is not None and first.inputs > self.weight.shape[1]:
            return replace(self, first=self.first.after(first))
        weight, bias = self.matrix(), self.bias
        if first.bias is not None:
            # W2(W1 x + b1) + b2 = (W2 W1)x + (W2 b1 + b2).
            moved = weight @ first.bias
            bias = moved if bias is None else bias + moved
        return LoadedLinear(weight=weight @ first.matrix(), bias=bias)


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeSource:
    """An input of linear layers. Where it is rounded, its values are `node * step_I + low_I`."""

    node: Node
    tap: str = ""
    """The name of its range."""
    seen: Range | None = None
    step: Floats | None = None


@dataclass(kw_only=True, eq=False)
class Graph:
    """The parts of one component. Weights come by name; `observed` gathers the inputs to calibrate."""

    tensors: Tensors
    ranges: Mapping[str, Range] = field(default_factory=dict)
    observed: dict[str, Node] | None = None
    quantised: Mapping[str, tuple[LinearSpec, int]] = field(default_factory=dict)
    """The form and the number of inputs of the matrices that the model keeps quantised."""

    def array(self, name: str) -> Floats:
        """The tensor of that name, in fp32."""
        try:
            return np.asarray(self.tensors[name], np.float32)
        except KeyError:
            raise WeightsError(f"the weights lack {name}; save the model again") from None

    def load(self, name: str) -> LoadedLinear:
        """The linear layer of that name: whole, low-rank or quantised, as torch keeps it."""
        if f"{name}.second.weight" in self.tensors or f"{name}.second.codes" in self.tensors:
            first, second = self.load(f"{name}.first"), self.load(f"{name}.second")
            return replace(second, first=first, name=name)
        bias = self.array(f"{name}.bias") if f"{name}.bias" in self.tensors else None
        if f"{name}.codes" not in self.tensors:
            return LoadedLinear(weight=self.array(f"{name}.weight"), bias=bias, name=name)
        codes, scale_OG = self.tensors[f"{name}.codes"], self.array(f"{name}.scale_OG")
        form, inputs = self.quantised.get(name, (LinearSpec(), codes.shape[1]))
        # Two codes of 4 bits lie in a byte, so that the shape does not tell how many inputs there are.
        whole = unpacked(codes, inputs) if form.bits == 4 else codes.astype(np.int8)
        if not form.group:
            return LoadedLinear(weight=whole, bias=bias, scale=scale_OG, name=name)
        scale_OI = np.repeat(scale_OG, form.group, 1)[:, :inputs]
        return LoadedLinear(weight=whole * scale_OI, bias=bias, name=name)

    def source(self, node: Node, tap: str, channels: Any = slice(None)) -> NodeSource:
        """The input of linear layers, rounded to bytes if the range of `tap` is known.

        Each channel has its own step and offset, so that narrow channels do not drown in the step of wide
        ones. Both move into the layers, and the product runs on plain unsigned bytes.
        """
        if self.observed is not None:
            self.observed.setdefault(tap, node)
        whole = self.ranges.get(tap)
        if whole is None:
            return NodeSource(node=node, tap=tap)
        seen = Range(low=whole.low[channels], high=whole.high[channels], mean=whole.mean[channels])
        step = np.maximum(seen.high - seen.low, LEAST_WIDTH) / np.float32(LEVELS - 1)
        ends = [constant(np.float32(end)) for end in (0, LEVELS - 1, 0, LEVELS - 1)]
        # The clamp changes nothing but the fusion: OpenVINO 2026.4 merges a scale and a shift that follow a
        # linear layer with two readers into the rounding, and there takes tokens for channels.
        free = op.clamp(node, -UNBOUNDED, UNBOUNDED)
        scaled = op.add(op.multiply(free, constant(1 / step)), constant(-seen.low / step))
        rounded = op.fake_quantize(scaled, *ends, LEVELS)
        return NodeSource(node=rounded, tap=tap, seen=seen, step=step)

    def linear(self, source: NodeSource, layer: LoadedLinear) -> Node:
        """The layer applied to the last axis. Rounded weights act only on the deviation from the mean."""
        if layer.first is not None:
            between = self.linear(source, layer.first)
            tap = f"{source.tap}>{layer.name}"
            return self.linear(self.source(between, tap), replace(layer, first=None))
        seen, step = source.seen, source.step
        if seen is None or step is None:
            y = op.matmul(source.node, self._weight(layer), False, True)
            return y if layer.bias is None else op.add(y, constant(layer.bias))
        matrix = layer.matrix()
        # The steps of the channels move into the weights, so the product reads plain bytes.
        scaled = matrix * step
        step_O1 = np.maximum(np.abs(scaled).max(1, keepdims=True) / np.float32(127), LEAST_STEP)
        codes = np.rint(scaled / step_O1)
        # y = W mean + W_q (x - mean): the mean passes through exact weights, only the rest through
        # codes.
        bias = matrix @ seen.mean + (codes * step_O1) @ ((seen.low - seen.mean) / step)
        bias = bias if layer.bias is None else bias + layer.bias
        rounded = LoadedLinear(weight=codes.astype(np.int8), scale=step_O1)
        return op.add(op.matmul(source.node, self._weight(rounded), False, True), constant(bias))

    def _weight(self, layer: LoadedLinear) -> Node:
        """`[O,I]`; codes stay codes, so that a product with inputs that are rounded as well is of bytes."""
        if layer.scale is None:
            return constant(layer.weight)
        return op.multiply(op.convert(constant(layer.weight), "f32"), constant(layer.scale))

    def plain(self, node: Node, layer: LoadedLinear) -> Node:
        """A layer that always runs in floats, as the few outside the stack do."""
        return self.linear(
            NodeSource(node=node), LoadedLinear(weight=layer.matrix(), bias=layer.bias)
        )

    def apply(self, node: Node, name: str, tap: str) -> Node:
        """The named layer applied to one input."""
        return self.linear(self.source(node, tap), self.load(name))

    def norm(self, x: Node, name: str, spec: NormSpec) -> Node:
        """Normalisation over the last axis."""
        axis = integers(-1)
        if spec.kind == "rms":
            mean = op.reduce_mean(op.power(x, constant(np.float32(2))), axis, True)
            y = op.divide(x, op.sqrt(op.add(mean, constant(np.float32(spec.eps)))))
        else:
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


def unpacked(codes: npt.NDArray[np.generic], inputs: int) -> npt.NDArray[np.int8]:
    """Codes of 4 bits, two in a byte and the first one low, as bytes."""
    pairs = np.asarray(codes, np.uint8)
    # The first code of a byte is the low one: [O,bytes,2] -> [O,inputs].
    both = np.stack([pairs & 15, pairs >> 4], -1).reshape(len(pairs), -1)[:, :inputs]
    # Two's complement of four bits: 8..15 stand for -8..-1.
    return np.where(both > 7, both.astype(np.int8) - 16, both).astype(np.int8)


def quantised_forms(spec: ModelSpec) -> dict[str, tuple[LinearSpec, int]]:
    """The form and the number of inputs of each quantised matrix, by name."""
    return {name: (form, inputs) for name, form, inputs in _matrices(spec) if form.bits is not None}


def rounded_matrices(spec: ModelSpec, tensors: Tensors) -> Tensors:
    """The same weights with every float matrix as int8 codes, as `shrink` with `quantise` leaves them."""
    lowered = dict(tensors)
    for name, _, _ in _matrices(spec):
        weight = lowered.pop(f"{name}.weight", None)
        if weight is not None:
            weight_OI = np.asarray(weight, np.float32)
            largest_O1 = np.abs(weight_OI).max(1, keepdims=True)
            scale_O1 = np.maximum(largest_O1 / np.float32(127), LEAST_STEP)
            lowered[f"{name}.codes"] = np.rint(weight_OI / scale_O1).astype(np.int8)
            lowered[f"{name}.scale_OG"] = scale_O1
    return lowered


def _matrices(spec: ModelSpec) -> Iterator[tuple[str, LinearSpec, int]]:
    """Name, form and inputs of every matrix of the layers; of low-rank ones, both factors."""
    for prefix, stack in spec.stacks.items():
        for block in stack.blocks:
            own, form = prefix + block.prefix, block.linear
            for name, m in block.part.matrices(stack.width).items():
                for factor, inputs, _ in form.factors(own + name, m.inputs, m.outputs):
                    yield factor, form, inputs


def constant(value: Any) -> Node:
    """A constant that shares the array's type and memory, so that components share their tables."""
    return op.constant(np.asarray(value, order="C"), shared_memory=True)


def parameter(name: str, shape: Sequence[int], kind: str) -> Node:
    """An input of the graph; -1 is a length that varies."""
    return op.parameter(PartialShape(list(shape)), Type(np.dtype(kind)), name=name)


def integers(*values: int) -> Node:
    """A constant for a shape or a list of axes."""
    return constant(np.array(values, np.int64))


def size(x: Node, axis: int) -> Node:
    """The length of `x` along an axis, as `[1]`."""
    return op.gather(op.shape_of(x, "i64"), integers(axis), constant(np.int64(0)))


def rows(x: Node, start: Node | int, stop: Node | int | None = None, axis: int = 1) -> Node:
    """`x[:, start:stop]`, or the same slice along another axis."""
    begin = integers(start) if isinstance(start, int) else start
    end = integers(np.iinfo(np.int32).max) if stop is None else stop
    end = integers(end) if isinstance(end, int) else end
    return op.slice(x, begin, end, integers(1), integers(axis))


def count(length: Node) -> Node:
    """`0, 1, 2…`, as many as the `[1]` integer says."""
    zero, one = constant(np.int64(0)), constant(np.int64(1))
    return op.range(zero, op.squeeze(length, integers(0)), one, "i64")


@cache
def core() -> ov.Core:
    """The one OpenVINO core of this process: where several came and went, the next Ctrl-C crashed it."""
    return ov.Core()
