"""The runtime: components compiled when they are first used, batches padded into their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from decoupled.model.codec import Codec
from decoupled.model.jsonable import JsonObject
from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import VECTOR, ModelSpec, Side
from decoupled.model.states import Encoded, Encoding, Ragged, States, batches_by_length
from decoupled.model.tokens import Ids, Tokenizer
from decoupled.runtime import cpu
from decoupled.runtime.base import (
    Before,
    Links,
    Logits,
    Passages,
    R,
    T,
    required_codec,
    rounded_up,
    states_layout,
    unpadded,
    wrong_device,
)
from decoupled.runtime.cpu import cores
from decoupled.runtime.openvino import decode
from decoupled.runtime.openvino.blobs import compiled
from decoupled.runtime.openvino.components import (
    QUERY_STEP,
    STEP,
    Ranges,
    cross_model,
    input_arrays,
    input_model,
)
from decoupled.runtime.openvino.graph import Tensors, rounded_matrices

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

BATCH, LEAST_BATCH = 1024, 128
"""Tokens of a small batch: a larger one gains nothing and pads more, a smaller one takes hardly less time."""
ENCODE_BATCH = 512
"""Tokens of a small batch of texts that are read alone."""
FEW = 2 * BATCH
"""Tokens up to which padding to few shapes is cheaper than compiling a new one: `ask`, not `search`."""
KERNELS = 128
"""Kernels that a core keeps of a component. Each is made for one shape and takes about 0.3 MB; by default
there are 5,000, which came to gigabytes. oneDNN's own 1,024 of the process stay: fewer made all slower."""
ROUNDED_TOGETHER = 128
"""Channels of a token that share a step where inputs are rounded as they come: wider groups are faster by
little, and layers with fewer inputs than a group would run in floats."""


class OpenVinoRuntime:
    """Runs a model from its spec and tensors; in int8 where `ranges` were calibrated, else in fp32.

    `rounds` is int8 without ranges: weights become codes, and inputs are rounded as they come. By default
    models do that which have such codes already.

    A large batch is cut into small ones of like length, and each core works on one of its own: cores that
    share every product wait for each other. While several threads call, each works through its own batches.
    """

    name = "openvino"
    mixes = False
    token_budget = 1 << 16

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Tensors,
        tokenizer: Tokenizer,
        codec: Codec | None = None,
        *,
        ranges: Ranges | None = None,
        rounds: bool | None = None,
        identity: str | None = None,
    ) -> None:
        self._identity = identity
        self.spec, self.tokenizer, self.codec, self.ranges = spec, tokenizer, codec, ranges or {}
        blocks = [block for stack in spec.stacks.values() for block in stack.blocks]
        integers = any(block.linear.inputs != "float" for block in blocks)
        self._rounds = integers if rounds is None else rounds
        self._tensors = rounded_matrices(spec, tensors) if rounds else tensors
        self._compiled: dict[object, Compiled] = {}
        self._lock = Lock()
        self._cores = ThreadPoolExecutor(cores(), thread_name_prefix="openvino")
        self._calling_now = 0

    @property
    def callers(self) -> int:
        """One caller per core."""
        return cores()

    @property
    def precision(self) -> str:
        """The precision of its matrix products: `int8` or `fp32`."""
        return "int8" if self.ranges or self._rounds else "fp32"

    def tensors(self, prefix: str) -> dict[str, Array]:
        return {name: self._tensors[name] for name in self._tensors if name.startswith(prefix)}

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        # Each is spread over the cores already.
        return [work(item) for item in items]

    def encode(
        self,
        side: Side,
        ids: Sequence[Ids],
        *,
        query_length: int = 0,
        vectors: bool = True,
        before: Before | None = None,
    ) -> Encoding:
        batch = Ragged.stack(ids)
        # Where they come for nothing, one graph serves both.
        vectors = vectors or VECTOR not in self.spec.stacks
        component = self._component(
            (side if self.spec.store == "kv" else self.spec.projected(side), vectors),
            lambda: input_model(self.spec, self._tensors, side, self.ranges, vectors=vectors),
        )

        def run(which: Indices) -> tuple[Ragged, Array]:
            some = batch.select(which)
            to = rounded_up(int(some.lengths.max()), STEP)
            x_BTW, *pooled = component(input_arrays(self.spec, side, some, query_length, to))
            real_BT = np.arange(x_BTW.shape[1]) < some.lengths[:, None]
            nothing = np.zeros((len(some), 0), np.float32)
            return Ragged(x_BTW[real_BT], some.lengths), pooled[0] if pooled else nothing

        # Whatever the number of cores, so that stored bytes are the same on every machine.
        parts, back = self._spread(batch.lengths, run, ENCODE_BATCH, few=side == "query")
        states = Ragged.concat([states for states, _ in parts]).select(back)
        pooled = np.concatenate([vectors for _, vectors in parts])[back]
        return Encoding(States(states.values, states.lengths), pooled)

    def cross(
        self,
        query: States,
        passages: Passages,
        heads: Sequence[HeadKind],
        *,
        owner: npt.NDArray[np.int64] | None = None,
        last: int | None = None,
        links: Links | None = None,
    ) -> Logits:
        if not isinstance(passages, States | Encoded):
            raise wrong_device()
        encoded = isinstance(passages, Encoded)
        layout = required_codec(self.codec).layout if encoded else states_layout(self.spec)
        component = self._component(
            (tuple(heads), encoded, last),
            lambda: cross_model(self.spec, self._tensors, heads, self.ranges, layout, last=last),
        )
        query_length = len(query.values)
        tokens = passages.lengths + query_length
        few = int(tokens.sum()) <= FEW
        # New shapes cost a compilation each, so small calls round their sizes more coarsely.
        query_1QW, _ = query.pad(rounded_up(query_length, STEP if few else QUERY_STEP))
        wide = query_1QW.shape[1]

        def run(which: Indices) -> list[Ragged]:
            some = passages.select(which)
            longest = wide + int(some.lengths.max())
            step = coarse_step(longest) if few else STEP
            padded, real_BP = some.pad(rounded_up(longest, step) - wide)
            codes = decode.arrays(layout, padded.view(np.uint8))
            lengths = np.array([query_length], np.int32), some.lengths.astype(np.int32)
            logits = component([query_1QW, *lengths, *codes])
            return [unpadded(kind, x, real_BP) for kind, x in zip(heads, logits, strict=True)]

        parts, back = self._spread(tokens, run, few=few)
        by_head = zip(heads, zip(*parts, strict=True), strict=True)
        return {kind: Ragged.concat(logits).select(back) for kind, logits in by_head}

    def keep(self, encoded: Encoded) -> None:
        """Return None: this runtime reads the caller's own memory."""

    def _spread(
        self, lengths: Indices, run: Callable[[Indices], T], tokens: int | None = None, *, few: bool
    ) -> tuple[list[T], Indices]:
        """The results of `run` for each small batch, and indices that put their texts back in order."""
        with self._calling() as alone:
            if tokens is None:
                tokens = even_budget(lengths, cores() if alone else 1)
            batches = batches_by_length(lengths, tokens, powers=few)
            back = np.argsort(np.concatenate(batches), kind="stable")
            # With several callers each core is busy already, and more threads would only compete.
            if len(batches) == 1 or not alone:
                return [run(batch) for batch in batches], back
            return list(self._cores.map(run, batches)), back

    @contextmanager
    def _calling(self) -> Iterator[bool]:
        """Count the callers; yields whether this one is the only one."""
        with self._lock:
            alone = self._calling_now == 0
            self._calling_now += 1
        try:
            yield alone
        finally:
            with self._lock:
                self._calling_now -= 1

    def _rest(self) -> str:
        """The precision of everything but byte products; positions and angles would not survive bf16."""
        stacks = self.spec.stacks.values()
        placed = any(layer.attention.exact_positions for own in stacks for layer in own.layers)
        halves = self.precision == "int8" and not placed and cpu.multiplies_halves()
        return "bf16" if halves else "f32"

    def _component(self, key: object, build: Callable[[], ov.Model]) -> Compiled:
        # Compiling takes seconds, so a second thread waits instead of compiling the same again.
        with self._lock:
            if key not in self._compiled:
                how = settings(self._rest(), rounds=self._rounds)
                layout = None if self.codec is None else self.codec.layout
                named = (key, layout, self.precision)
                self._compiled[key] = Compiled(compiled(build, how, self._identity, named))
            return self._compiled[key]


class Compiled:
    """A component on the CPU; as many calls run at once as there are cores, more take turns."""

    def __init__(self, component: ov.CompiledModel) -> None:
        self._free: SimpleQueue[ov.InferRequest] = SimpleQueue()
        for _ in range(cores()):
            self._free.put(component.create_infer_request())

    def __call__(self, inputs: list[Array]) -> list[Array]:
        """The outputs, copied into arrays of their own."""
        request = self._free.get()
        try:
            outputs = request.infer(inputs, share_inputs=True)
            # A request reuses its output memory, and another thread may take the request next.
            return [np.array(outputs[place]) for place in range(len(outputs))]
        finally:
            self._free.put(request)


def even_budget(lengths: Indices, count: int) -> int:
    """Padded tokens of a batch such that each of so many cores gets several batches and all end together."""
    # About four batches a core: fewer leave cores idle at the end, more pay for small products.
    return min(BATCH, max(LEAST_BATCH, int(lengths.sum()) // (4 * count)))


def coarse_step(tokens: int) -> int:
    """The multiple that token counts are rounded to where few shapes matter: four lengths per doubling."""
    return max(STEP, (1 << (tokens - 1).bit_length()) // 8)


def settings(precision: str = "f32", *, rounds: bool = False) -> JsonObject:
    """How components are compiled: a stream for each core, floats in the given precision.

    `rounds`: inputs that meet codes are rounded as they come.
    """
    count = cores()
    return {
        "NUM_STREAMS": count,
        "INFERENCE_NUM_THREADS": count,
        # Processes that have some of the cores each would all choose the first.
        "ENABLE_CPU_PINNING": count >= cpu.all_cores(),
        "INFERENCE_PRECISION_HINT": precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": ROUNDED_TOGETHER if rounds else 0,
        "CPU_RUNTIME_CACHE_CAPACITY": KERNELS,
    }
