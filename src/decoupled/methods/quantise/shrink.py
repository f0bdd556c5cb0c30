"""Quantisation of the weights: int8 or int4 codes, with integer inputs if wanted, trained for it or not.

`inputs` says what meets the codes: floats (weights only), int8 scaled anew for each token (dynamic), or int8
with one scale that data gave (static). Norms, softmax, activations, residuals and heads stay floats.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from decoupled.errors import SpecError
from decoupled.methods.importance import LIMIT, see_inputs
from decoupled.methods.method import FITTED, BeforeSteps, Method, Weights, changed, with_blocks
from decoupled.methods.quantise.module import TOP, encode, pack
from decoupled.methods.tensors import held, linears, matrix_names, need_floats, seen_as
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.spec import VECTOR, ModelSpec
from decoupled.train.data.prepare import Prepared

CLIPS = tuple(1 - i / 20 for i in range(12))
"""Shares of the largest value that are tried as the end of a static range."""


@dataclass(frozen=True, kw_only=True)
class Quantise(Method):
    """Matrices of the layers and the token table as integer codes."""

    name: ClassVar[str] = "quantise"
    finishes: ClassVar[bool] = True

    bits: Literal[8, 4] = 8
    inputs: Literal["float", "dynamic", "static"] = "dynamic"
    group: int = 0
    """Columns that share a scale; 0 is the whole row. Only with inputs=float."""
    embedding: bool = True
    """The token table too, always in 8 bits with a scale per row."""
    warmup: float = 0.1
    """Share of the steps of training before activations are rounded too."""
    ranges: tuple[tuple[str, float], ...] = field(default=(), metadata=FITTED)
    """For static inputs: the largest input of each matrix."""

    def fit(self, model: Model, sample: Prepared | None) -> Method:
        """For `static`: the range of each matrix's inputs, each component seeing what it will be given."""
        if self.inputs != "static" or self.ranges:
            return self
        need_floats(model.spec, self.name, tables=self.embedding)
        return replace(self, ranges=tuple(_ranges(model, self.needed(sample)).items()))

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The spec with matrices, and perhaps the token table, as integer codes."""
        need_floats(spec, self.name, tables=self.embedding)
        if self.group < 0:
            raise SpecError(f"group={self.group}; choose 0 for whole rows, or a number of columns")
        if not 0 <= self.warmup <= 1:
            raise SpecError(f"warmup={self.warmup}; choose a share from 0 to 1")
        if self.inputs == "static" and not self.ranges:
            raise self.undecided()

        form: dict[str, Any] = {"bits": self.bits, "group": self.group, "inputs": self.inputs}
        quantised = with_blocks(spec, lambda b: replace(b, linear=replace(b.linear, **form)))
        if spec.vector is not None and spec.vector.layers:
            form["inputs"] = self._vector_inputs
            layers = changed(
                spec.vector.layers, lambda b: replace(b, linear=replace(b.linear, **form))
            )
            quantised = replace(quantised, vector=replace(spec.vector, layers=layers))
        if not self.embedding:
            return quantised
        table = replace(quantised.encoder.embedding, bits=8)
        return replace(quantised, encoder=replace(quantised.encoder, embedding=table))

    @property
    def _vector_inputs(self) -> Literal["float", "dynamic"]:
        """For the vector's own layers: the sample's pairs never reach them, so no range is known."""
        return "float" if self.inputs == "float" else "dynamic"

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Codes and scales of every matrix; biases and norms as they were."""
        moved, ranges = dict(weights), dict(self.ranges)
        for name in (*matrix_names(weights), *matrix_names(weights, VECTOR)):
            codes, scale = encode(moved.pop(f"{name}.weight"), self.bits, self.group)
            moved[f"{name}.codes"] = codes if self.bits == 8 else pack(codes)
            moved[f"{name}.scale_OG"] = scale
            if self.inputs == "static" and not name.startswith(VECTOR):
                top = max(ranges.get(name, 1.0), 1e-12)
                moved[f"{name}.input_scale"] = torch.tensor([top / TOP[8]])
        table = before.encoder.embedding
        for band in table.tokens.bands(table.vocab, table.width) if self.embedding else ():
            codes, scale = encode(moved.pop(f"{band.rows}.weight"), 8)
            moved[f"{band.rows}.codes"], moved[f"{band.rows}.scale_V1"] = codes, scale
        return moved

    def _quantised(self, weight: Tensor) -> Tensor:
        """A weight rounded to its codes, with the gradient of the weight itself."""
        return weight + (on_grid(weight.detach(), self.bits, self.group) - weight.detach())

    @contextmanager
    def hook(self, student: PairEncoder, teacher: PairEncoder | None) -> BeforeSteps:
        """Quantisation-aware training: weights and inputs as the codes will give them back.

        Gradients pass straight through where a value lies on the grid. Static inputs follow their largest
        value by a moving mean; the range that is stored comes from data afterwards.
        """
        warm = [True]

        def tick(step: int, total: int) -> None:
            warm[0] = step < self.warmup * total

        with ExitStack() as undo:
            for module in linears(student).values():
                undo.enter_context(seen_as(module, self._quantised))
                if self.inputs != "float":
                    undo.enter_context(_rounding(module, warm, static=self.inputs == "static"))
            yield tick


def on_grid(weight_OI: Tensor, bits: int, group: int = 0) -> Tensor:
    """A matrix after `encode` and decoding."""
    codes, scale_OG = encode(weight_OI, bits, group)
    columns = weight_OI.shape[1]
    scale_OI = scale_OG.repeat_interleave(group or columns, 1)[:, :columns]
    return (codes * scale_OI).to(weight_OI.dtype)


def rounded(x: Tensor, step: Tensor) -> Tensor:
    """`x` on an int8 grid; the gradient is 1 inside its range and 0 outside."""
    inside = x.detach().abs() <= TOP[8] * step
    codes = (x.detach() / step).round().clamp(-TOP[8], TOP[8])
    # Outside the range the value is a constant to autograd, so its gradient is 0.
    clipped = torch.where(inside, x, x.detach())
    return clipped + (codes * step - clipped).detach()


@contextmanager
def _rounding(linear: nn.Linear, warm: list[bool], *, static: bool) -> Iterator[None]:
    """Within the block inputs are rounded: token by token, or by a mean of the largest seen while warm."""

    def hook(module: nn.Module, arguments: tuple[Any, ...]) -> Any:
        x = arguments[0]
        if not static:
            top = x.detach().abs().amax(-1, keepdim=True)
        else:
            seen = x.detach().abs().amax().float()
            if module.training and warm[0]:
                # Moving mean of the largest input; the first batch starts it.
                largest.copy_(torch.where(largest > 0, 0.9 * largest + 0.1 * seen, seen))
            top = torch.where(largest > 0, largest, seen).to(x.dtype)
        return None if warm[0] and module.training else (rounded(x, top.clamp(min=1e-12) / TOP[8]),)

    with ExitStack() as undo:
        # 0 until something was seen.
        largest = torch.zeros((), device=linear.weight.device)
        if static:
            undo.enter_context(held(linear, largest))
        undo.callback(linear.register_forward_pre_hook(hook).remove)
        yield


@torch.no_grad()
def _ranges(model: Model, sample: Prepared) -> dict[str, float]:
    """Per matrix the clip of its inputs with the least squared rounding error over the sample."""
    errors: dict[str, Tensor] = {}
    largest: dict[str, float] = {}

    def bound(name: str, x: Tensor) -> None:
        largest[name] = max(largest.get(name, 0.0), float(x.float().abs().max()))

    def weigh(name: str, x: Tensor) -> None:
        x = x.float()
        tops = largest[name] * torch.tensor(CLIPS, device=x.device) + 1e-12
        each = [(x - rounded(x, top / TOP[8])).square().sum() for top in tops]
        errors[name] = errors.get(name, torch.zeros(())) + torch.stack(each).cpu()

    # Two passes: the clips that are weighed are shares of the largest value of all.
    for see in (bound, weigh):
        see_inputs(model, sample, linears(model.net), see, limit=LIMIT // 8)
    return {name: largest[name] * CLIPS[int(error.argmin())] for name, error in errors.items()}
