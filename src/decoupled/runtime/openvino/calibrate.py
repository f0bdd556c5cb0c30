"""The ranges of activations, measured by running both components in fp32 on sample pairs.

They are all that int8 needs besides the weights: kilobytes, kept in the model folder as
`openvino/ranges.safetensors`. Weights are rounded when the graph is built.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from decoupled.errors import InputError, WeightsError
from decoupled.model.folder import EXPORTED
from decoupled.model.spec import ModelSpec, Side
from decoupled.model.states import Ragged
from decoupled.model.tokens import Ids
from decoupled.runtime.openvino.components import cross_model, input_arrays, input_model
from decoupled.runtime.openvino.graph import Range, Tensors
from decoupled.runtime.openvino.runtime import core, settings

Array = npt.NDArray[Any]

FIELDS = tuple(field.name for field in fields(Range))
SIDES: tuple[Side, Side] = ("query", "passage")


def calibrate(
    spec: ModelSpec, tensors: Tensors, pairs: Iterable[tuple[Ids, Ids]]
) -> dict[str, Range]:
    """The range of each input of a linear layer, over the given (query, passage) pairs."""
    if not spec.heads:
        raise InputError("this model has no head, so its cross component cannot be calibrated")
    kinds = tuple(head.kind for head in spec.heads)
    inputs = {side: _Observed(input_model(spec, tensors, side, {}, observe=True)) for side in SIDES}
    cross = _Observed(cross_model(spec, tensors, kinds, {}, observe=True))
    for pair in pairs:
        states = []
        for side, ids in zip(SIDES, pair, strict=True):
            arrays = input_arrays(spec, side, Ragged.stack([ids]), len(pair[0]))
            states.append(inputs[side](arrays))
        cross([states[0], np.array([len(pair[1])], np.int32), states[1]])
    if not cross.seen:
        raise InputError("calibration got no pair of query and passage; give some")
    return _united([*inputs.values(), cross])


class _Observed:
    """A component that also tells the least, largest and mean of each channel that its layers read."""

    def __init__(self, model: ov.Model) -> None:
        self._compiled = core().compile_model(model, "CPU", settings())
        names = [next(iter(port.get_names()), "") for port in self._compiled.outputs]
        self._places = {name: place for place, name in enumerate(names) if "#" in name}
        self.seen: dict[str, list[Array]] = {}

    def __call__(self, inputs: list[Array]) -> Array:
        """The first output."""
        found = self._compiled(inputs)
        for name, place in self._places.items():
            self.seen.setdefault(name, []).append(np.array(found[place]))
        return np.array(found[0])


def _united(components: list[_Observed]) -> dict[str, Range]:
    seen: dict[str, list[Array]] = {}
    for component in components:
        for name, values in component.seen.items():
            seen.setdefault(name, []).extend(values)
    return {
        tap: Range(
            low=np.min(seen[f"{tap}#low"], 0),
            high=np.max(seen[f"{tap}#high"], 0),
            mean=np.mean(seen[f"{tap}#mean"], 0, dtype=np.float32),
        )
        for tap in sorted({name.partition("#")[0] for name in seen})
    }


def save_ranges(model: Path, ranges: dict[str, Range], facts: dict[str, str]) -> Path:
    """Write the ranges into a model folder, in one step, with how they were made."""
    file = model / EXPORTED
    file.parent.mkdir(exist_ok=True)
    fresh = file.with_suffix(".new")
    tensors = {
        f"{tap}#{name}": value for tap, r in ranges.items() for name, value in vars(r).items()
    }
    save_file(tensors, fresh, metadata=facts)
    fresh.chmod(0o644)
    fresh.replace(file)
    return file


def read_ranges(model: Path) -> dict[str, Range]:
    """The ranges of a model folder; none where it was not exported to int8."""
    file = model / EXPORTED
    if not file.is_file():
        return {}
    try:
        tensors = load_file(file)
        taps = sorted({name.partition("#")[0] for name in tensors})
        return {tap: Range(**{n: tensors[f"{tap}#{n}"] for n in FIELDS}) for tap in taps}
    except (SafetensorError, KeyError) as error:
        raise WeightsError(f"{file} is damaged ({error}); export the model again") from None
