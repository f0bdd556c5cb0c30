"""Batches as CUDA graphs: a few launches instead of dozens, for any batch that fits the captured room."""

import gc
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from decoupled.runtime.cuda.weights import DeviceWeights

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work in steps: it yields where the device may begin, and each step becomes a graph of its own."""
Work = Callable[..., Steps[tuple[Tensor, ...]]]

MOST = 192
"""Graphs that are kept; the least recently used one is dropped first."""

GRAPH_ROWS = 24_576
"""Batches of up to so many rows run as a graph: launching their kernels one by one would take longer."""
GRAPH_SHARE = 0.05
"""Share of the device's memory for graphs of larger batches, those of passages kept on the device."""


@dataclass(frozen=True, eq=False)
class Captured:
    """Graphs that run one after the other, with the tensors that they read and write."""

    graphs: tuple[Any, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Graphs:
    """Runs work that depends on nothing but its inputs, and captures what comes a second time."""

    def __init__(self, device: torch.device, *, enabled: bool = True) -> None:
        self.device = device
        self.enabled = enabled and device.type == "cuda"
        self._seen: Counter[Hashable] = Counter()
        self._made: OrderedDict[Hashable, Captured] = OrderedDict()
        self._pool: Any = None
        self._aside: Any = None

    def run(self, key: Hashable, inputs: Sequence[Tensor], work: Work) -> tuple[Tensor, ...]:
        """`work(*inputs)` on the device. Equal keys promise inputs of equal shapes and equal work.

        What comes back is written over by the next run.
        """
        if not self.enabled:
            return whole(work(*(x.to(self.device, non_blocking=True) for x in inputs)))
        captured = self._made.get(key)
        if captured is None:
            self._seen[key] += 1
            placed = tuple(x.to(self.device, non_blocking=True) for x in inputs)
            # Many sizes come only once, and capturing costs more than one run.
            if self._seen[key] == 1:
                return whole(work(*placed))
            captured = self._capture(key, placed, work)
        self._made.move_to_end(key)
        # A graph reads fixed addresses, so the new inputs are copied into the captured ones.
        for held, x in zip(captured.inputs, inputs, strict=True):
            held.copy_(x, non_blocking=True)
        for graph in captured.graphs:
            graph.replay()
        return captured.outputs

    def _capture(self, key: Hashable, inputs: tuple[Tensor, ...], work: Work) -> Captured:
        # One pool for all: graphs run one after another, and what they return is copied before the next. It
        # is gone with the last graph that uses it, such as a first one whose capture failed.
        if not self._made:
            self._pool = torch.cuda.graph_pool_handle()
        # All are captured on one queue: memory that one allocates is free for those of the same queue alone.
        if self._aside is None:
            self._aside = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        aside = self._aside
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            # A run before the capture: compiling kernels and choosing algorithms are not allowed
            # within one.
            whole(work(*inputs))
        torch.cuda.current_stream(self.device).wait_stream(aside)
        # Each yield ends one graph, so that the first can run while the next is launched.
        graphs, steps, outputs = [], work(*inputs), None
        with torch.cuda.stream(aside), _uncollected():
            while outputs is None:
                graphs.append(torch.cuda.CUDAGraph())
                graphs[-1].capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    next(steps)
                except StopIteration as end:
                    outputs = end.value
                finally:
                    graphs[-1].capture_end()
        self._made[key] = captured = Captured(tuple(graphs), inputs, outputs)
        if len(self._made) > MOST:
            self._made.popitem(last=False)
        return captured


def whole(steps: Steps[T]) -> T:
    """Run all steps at once and return what the last one gives."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class Lane:
    """A stream of the device with graphs of its own; one caller at a time uses it.

    With `aside`, work here has priority over what other lanes have queued already.
    """

    def __init__(self, device: torch.device, *, graphs: bool, aside: bool = False) -> None:
        self.device, self.graphs = device, Graphs(device, enabled=graphs)
        self._lock = threading.Lock()
        self._stream = None
        if aside and device.type == "cuda":
            # A stream of higher priority: a short query need not wait for a long batch.
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            # What is on its way there, such as the weights, comes first.
            self._stream.wait_stream(torch.cuda.current_stream(device))
        many = device.type == "cuda" and torch.cuda.device_count() > 1
        self._plain = self._stream is None and not many

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The time of one caller, on the device of the lane, whichever is current."""
        with self._lock:
            if self._plain:
                yield
                return
            with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
                yield


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the garbage collector from freeing device memory during a capture, which would break it."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def room_for(n: int, *, least: int = 8, share: int = 8) -> int:
    """A size that `n` fits into, at most `least` or a `share`th larger, so that few sizes serve all."""
    # Steps are a fraction of the power of two above n, so the waste is bounded at every size.
    step = max(least, (1 << (n - 1).bit_length()) // (2 * share))
    return -(-n // step) * step


def graph_rows(device: torch.device, weights: DeviceWeights, *, most: int) -> int:
    """Rows of the largest batch that runs as a graph, whose intermediate results stay in memory."""
    if device.type != "cuda" or not weights.layers:
        return GRAPH_ROWS
    layer = weights.layers[-1]
    # Bytes of a row's intermediate results: qkv, hidden units and three rows of states in 2-byte
    # floats.
    row = 2 * (len(layer.qkv.weight) + len(layer.up.weight) + 3 * len(layer.out.weight))
    room = int(GRAPH_SHARE * torch.cuda.get_device_properties(device).total_memory) // row
    return max(GRAPH_ROWS, min(most, room))
