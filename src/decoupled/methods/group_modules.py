"""Units of group linear layers as modules."""

from typing import cast

import torch
from torch import Tensor, nn

from decoupled.methods.group_linear import GroupLayer, GroupUnit
from decoupled.model.nn.feed_forward import ACTIVATIONS
from decoupled.model.nn.linear import build_linear, build_norm
from decoupled.model.parts.linear import WHOLE, LinearSpec


class GroupLinear(nn.Module):
    """A matrix for each group of columns, as a block-diagonal matrix; perhaps shuffled and normalised."""

    def __init__(self, layer: GroupLayer, unit: GroupUnit, linear: LinearSpec) -> None:
        super().__init__()
        inputs, outputs = layer.inputs // layer.groups, layer.outputs // layer.groups
        self.groups = nn.ModuleList(
            build_linear(linear, inputs, outputs) for _ in range(layer.groups)
        )
        self.shuffle = unit.shuffle and layer.groups > 1
        self.norm = build_norm(unit.norm, outputs) if unit.norm else None

    def forward(self, x: Tensor) -> Tensor:
        """`[…,I]` to `[…,O]`."""
        y = self._product(x.reshape(*x.shape[:-1], len(self.groups), -1))
        if self.shuffle:
            # Feature m of group a goes to m·g + a, so that the next layer's groups mix.
            y = y.transpose(-1, -2).reshape(y.shape)
        return (y if self.norm is None else self.norm(y)).flatten(-2)

    def _product(self, x_NGI: Tensor) -> Tensor:
        parts = cast("list[nn.Linear]", list(self.groups))
        if len(parts) == 1 or not all(map(_untouched, parts)):
            each = zip(parts, x_NGI.unbind(-2), strict=True)
            return torch.stack([part(x) for part, x in each], -2)
        # One product for all groups: small ones would keep a GPU waiting for their launches.
        # [G,I,O], for a batched product over the groups.
        weight_GIO = torch.stack([part.weight for part in parts]).mT
        bias_GO = torch.stack([part.bias for part in parts])
        flat_GNI = x_NGI.flatten(0, -3).transpose(0, 1)
        y_GNO = torch.baddbmm(bias_GO[:, None].to(flat_GNI.dtype), flat_GNI, weight_GIO)
        return y_GNO.transpose(0, 1).reshape(*x_NGI.shape[:-1], -1)


def _untouched(part: nn.Module) -> bool:
    """Whether it is a plain matrix that no hook watches or changes in training."""
    watched = part._forward_pre_hooks or part._forward_hooks or "forward" in part.__dict__
    return type(part) is nn.Linear and not watched


class GroupStack(nn.ModuleList):
    """The layers of a unit, each beside the unit's input."""

    def __init__(self, unit: GroupUnit, linear: LinearSpec = WHOLE) -> None:
        super().__init__(GroupLinear(layer, unit, linear) for layer in unit.layers)
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """`[…,inputs]` to `[…,outputs]`, row by row."""
        act, layers = ACTIVATIONS[self.unit.activation], cast("list[GroupLinear]", list(self))
        if self.unit.project:
            x = act(layers.pop(0)(x))
        y = act(layers[0](x))
        for number, layer in enumerate(layers[1:], 2):
            y = layer(mix(x, y, len(layer.groups)))
            y = y if self.unit.linear_end and number == len(layers) else act(y)
        return y


def mix(x: Tensor, y: Tensor, groups: int) -> Tensor:
    """Both inputs beside each other in each group: `[x₁,y₁,x₂,y₂,…]`."""
    parts = [part.reshape(*part.shape[:-1], groups, -1) for part in (x, y)]
    return torch.cat(parts, -1).flatten(-2)
