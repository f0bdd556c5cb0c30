"""The runtime: components compiled when they are first used, batches padded into their inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import openvino as ov

from decoupled.codec import Codec
from decoupled.errors import SpecError
from decoupled.runtime import cpu
from decoupled.runtime.base import Logits, Passages
from decoupled.runtime.openvino import decode
from decoupled.runtime.openvino.components import (
    Ranges,
    cross_model,
    input_arrays,
    input_model,
    squeezed,
)
from decoupled.runtime.openvino.graph import Tensors
from decoupled.spec import HeadKind, ModelSpec, SelfAttention, Side
from decoupled.states import Encoded, Encoding, Ragged, States
from decoupled.text import Ids, Tokenizer

T = TypeVar("T")
R = TypeVar("R")
Array = npt.NDArray[Any]

THREADS = "OMP_NUM_THREADS"


class OpenVinoRuntime:
    """Runs a model from its spec and tensors; in int8 where `ranges` were calibrated, else in fp32."""

    name = "openvino"
    mixes = False

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Tensors,
        tokenizer: Tokenizer,
        codec: Codec | None = None,
        *,
        ranges: Ranges | None = None,
    ) -> None:
        check_kinds(spec)
        self.spec = spec
        self.tokenizer = tokenizer
        self.codec = codec
        self.ranges = ranges or {}
        self._tensors = tensors
        self._compiled: dict[object, Compiled] = {}
        self._lock = Lock()

    @property
    def token_budget(self) -> int:
        """Few tokens for each core: a batch gains nothing by its size, and loses by its padding."""
        return max(1024, 512 * (_threads() or os.cpu_count() or 1))

    @property
    def precision(self) -> str:
        """What its matrix products run in."""
        return "int8" if self.ranges else "fp32"

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """One after the other: each batch uses all cores."""
        return [work(item) for item in items]

    def encode(self, side: Side, ids: Sequence[Ids], *, query_length: int = 0) -> Encoding:
        """States of a batch of texts, without padding, and their vectors."""
        batch = Ragged.stack(ids)
        component = self._component(
            squeezed(self.spec, side),
            lambda: input_model(self.spec, self._tensors, side, self.ranges),
        )
        arrays = input_arrays(self.spec, side, batch, query_length)
        x_BTW, vectors = component(arrays)
        real_BT = np.arange(x_BTW.shape[1]) < batch.lengths[:, None]
        return Encoding(States(x_BTW[real_BT], batch.lengths), vectors)

    def cross(self, query: States, passages: Passages, heads: Sequence[HeadKind]) -> Logits:
        """Logits of one query against a batch of passages; codes are decoded inside the graph."""
        if not isinstance(passages, States | Encoded):
            raise TypeError("passages that another runtime keeps can be read by that one only")
        layout = self._layout() if isinstance(passages, Encoded) else None
        component = self._component(
            (tuple(heads), layout is None),
            lambda: cross_model(self.spec, self._tensors, heads, self.ranges, layout),
        )
        padded, real_BP = passages.pad()
        codes = [padded] if layout is None else decode.arrays(layout, padded.view(np.uint8))
        lengths = passages.lengths.astype(np.int32)
        found = component([np.ascontiguousarray(query.values)[None], lengths, *codes])
        return {
            kind: _ragged(kind, logits, real_BP, passages.lengths)
            for kind, logits in zip(heads, found, strict=True)
        }

    def _rest(self) -> str:
        """What everything but the products of bytes runs in. Rotary angles would not survive bf16."""
        kinds = [layer.attention for layer in self.spec.layers]
        turning = any(isinstance(kind, SelfAttention) and kind.rotary for kind in kinds)
        return "bf16" if self.ranges and not turning and cpu.multiplies_halves() else "f32"

    def _layout(self) -> Any:
        if self.codec is None:
            raise ValueError("encoded passages need the codec that encoded them")
        return self.codec.layout

    def _component(self, key: object, build: Callable[[], ov.Model]) -> Compiled:
        with self._lock:
            if key not in self._compiled:
                self._compiled[key] = Compiled(build(), settings(self._rest()))
            return self._compiled[key]


class Compiled:
    """A component on the CPU. Calls from several threads take turns: each uses all cores."""

    def __init__(self, model: ov.Model, how: dict[str, Any]) -> None:
        self._request = ov.Core().compile_model(model, "CPU", how).create_infer_request()
        self._lock = Lock()

    def __call__(self, inputs: list[Array]) -> list[Array]:
        """The outputs, as arrays of their own."""
        with self._lock:
            found = self._request.infer(inputs, share_inputs=True)
            return [np.array(found[place]) for place in range(len(found))]


def settings(precision: str = "f32") -> dict[str, Any]:
    """How components are compiled: one batch at a time on all cores, floats in the given precision."""
    chosen: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    if threads := _threads():
        chosen["INFERENCE_NUM_THREADS"] = threads
    return chosen


def _threads() -> int | None:
    """How many the user allows; None is as many as there are cores."""
    asked = os.environ.get(THREADS, "")
    return int(asked) if asked.isdigit() and int(asked) else None


def check_kinds(spec: ModelSpec) -> None:
    """Raise `SpecError` for a model that has no graph here."""
    if not spec.encoder.plain:
        raise SpecError(
            "some parts of the encoder are thin, coded or fixed (see decoupled.forms), which the runtime "
            "openvino cannot run; use the runtime torch"
        )


def _ragged(
    kind: HeadKind, logits: Array, real_BP: Array, lengths: npt.NDArray[np.int64]
) -> Ragged:
    if kind != "span":
        return Ragged(logits, np.ones(len(lengths), np.int64))
    first = np.ones((len(real_BP), 1), np.bool_)
    return Ragged(logits[np.concatenate([first, real_BP], 1)], lengths + 1)
