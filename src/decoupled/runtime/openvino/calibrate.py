"""A model folder made ready for int8: the ranges of activations, measured on sample pairs in fp32.

They are all that int8 needs besides the weights: kilobytes, kept in the model folder as
`openvino/ranges.safetensors`. Weights are rounded when the graph is built.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from decoupled.errors import InputError, WeightsError
from decoupled.model import folder, sums
from decoupled.model.jsonable import JsonObject
from decoupled.model.spec import ModelSpec, Side
from decoupled.model.states import Ragged
from decoupled.model.tokens import Ids, Tokenizer
from decoupled.runtime.base import states_layout
from decoupled.runtime.openvino.components import cross_model, input_arrays, input_model
from decoupled.runtime.openvino.graph import Range, Tensors, core
from decoupled.runtime.openvino.runtime import settings

Array = npt.NDArray[Any]

FIELDS = tuple(field.name for field in fields(Range))
SIDES: tuple[Side, Side] = ("query", "passage")
PAIRS = 256
"""Pairs that calibration reads: more moved no range of the starter model by a hundredth."""


def export_int8(
    path: Path,
    pairs: Sequence[tuple[str, str]],
    *,
    limit: int = PAIRS,
    progress: Callable[[int], None] = lambda done: None,
) -> JsonObject:
    """Calibrate a model folder on (query, passage) texts; says what was written."""
    spec = folder.read_spec(path)
    if not os.access(path, os.W_OK):  # said now, not after all pairs were read
        raise InputError(f"{path} cannot be written; check its permissions, or export a copy")
    chosen = spread(pairs, limit)
    if not chosen:
        raise InputError("calibration needs pairs of query and passage, and got none")
    tokenizer = folder.read_tokenizer(path, spec)
    begun = time.perf_counter()
    ranges = calibrate(spec, folder.read_tensors(path), _tokens(tokenizer, chosen, progress))
    file = save_ranges(path, ranges, {"pairs": str(len(chosen))})
    return {
        "file": str(file),
        "bytes": file.stat().st_size,
        "pairs": len(chosen),
        "inputs": len(ranges),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def spread(pairs: Sequence[tuple[str, str]], limit: int) -> list[tuple[str, str]]:
    """At most `limit` pairs, evenly from the whole list."""
    # Neighbours in a file are often alike, so pairs are taken from all over it.
    step = max(1, len(pairs) // limit)
    return list(islice(pairs[::step], limit))


def _tokens(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], progress: Callable[[int], None]
) -> Iterator[tuple[Ids, Ids]]:
    queries = tokenizer.queries([query for query, _ in pairs])
    for query, windows in zip(queries, tokenizer.windows([p for _, p in pairs]), strict=True):
        yield query, windows[0].ids
        progress(1)


def calibrate(
    spec: ModelSpec, tensors: Tensors, pairs: Iterable[tuple[Ids, Ids]]
) -> dict[str, Range]:
    """The range of each input of a linear layer, over the given (query, passage) pairs."""
    if not spec.heads:
        raise InputError("this model has no head, so its cross component cannot be calibrated")
    kinds = tuple(head.kind for head in spec.heads)
    inputs = {side: _Observed(input_model(spec, tensors, side, {}, observe=True)) for side in SIDES}
    cross = _Observed(cross_model(spec, tensors, kinds, {}, states_layout(spec), observe=True))
    for pair in pairs:
        states = []
        for side, ids in zip(SIDES, pair, strict=True):
            arrays = input_arrays(spec, side, Ragged.stack([ids]), len(pair[0]))
            states.append(inputs[side](arrays))
        query_length, read = (np.array([states[n].shape[1]], np.int32) for n in (0, 1))
        cross([states[0], query_length, read, states[1]])
    if not cross.seen:
        raise InputError("calibration got no pair of query and passage; give some")
    return _united([*inputs.values(), cross])


class _Observed:
    """A component that also reports the minimum, maximum and mean of each channel that its layers read."""

    def __init__(self, model: ov.Model) -> None:
        self._compiled = core().compile_model(model, "CPU", settings())
        names = [next(iter(port.get_names()), "") for port in self._compiled.outputs]
        self._places = {name: place for place, name in enumerate(names) if "#" in name}
        self.seen: dict[str, list[Array]] = {}

    def __call__(self, inputs: list[Array]) -> Array:
        """Run the component, record the observed channels, and return the first output."""
        outputs = self._compiled(inputs)
        for name, place in self._places.items():
            # A copy: OpenVINO reuses the memory of its outputs.
            self.seen.setdefault(name, []).append(np.array(outputs[place]))
        return np.array(outputs[0])


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
    file = model / folder.EXPORTED
    file.parent.mkdir(exist_ok=True)
    # Renamed when complete: a reader sees the old ranges or the new ones, never half a file.
    fresh = file.with_suffix(".new")
    tensors = {
        f"{tap}#{name}": value for tap, r in ranges.items() for name, value in vars(r).items()
    }
    fresh.write_bytes(sums.pack(tensors, facts))
    fresh.chmod(0o644)
    fresh.replace(file)
    return file


def read_ranges(model: Path) -> dict[str, Range]:
    """The ranges of a model folder; none where it was not exported to int8."""
    file = model / folder.EXPORTED
    if not file.is_file():
        return {}
    try:
        tensors = sums.unpack(file.read_bytes())
        taps = sorted({name.partition("#")[0] for name in tensors})
        return {tap: Range(**{n: tensors[f"{tap}#{n}"] for n in FIELDS}) for tap in taps}
    except (WeightsError, KeyError) as error:
        raise WeightsError(f"{file} is {error}; export the model again") from None
