"""Time and memory of one query against stored passages, beside the joint model on the same texts."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from decoupled.index.encode import encode_texts
from decoupled.measure.latency import interleaved
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model
from decoupled.model.parts.head import HeadKind
from decoupled.model.states import Ragged
from decoupled.model.tokens import Ids
from decoupled.runtime.torch import TorchRuntime
from decoupled.search import cross
from decoupled.train.data.examples import Examples


def timed(
    joint: Model,
    model: Model,
    examples: Examples,
    *,
    head: HeadKind,
    codec: str,
    candidates: int,
    rounds: int,
) -> dict[str, Any]:
    """Milliseconds of one query against `candidates` passages, joint and split in turns, and their memory."""
    # A query of median length, and passages around the median length.
    query = _middle(examples.queries, 1)[0]
    passages = _middle(examples.passages, candidates)
    runs = {"joint": query_run(joint, query, passages, head, codec)}
    if model.spec.split:
        runs["split"] = query_run(model, query, passages, head, codec)
    device = model.device
    wait = torch.cuda.synchronize if device.type == "cuda" else None
    latencies = interleaved(runs, rounds=rounds, wait=wait)
    held = memory(runs.get("split", runs["joint"]), device)
    return {
        "latency_ms": {name: latency.to_json() for name, latency in latencies.items()},
        "memory": {"peak": held.peak, "requested": held.requested},
        "candidates": len(passages),
        "device": str(device),
        "threads": torch.get_num_threads(),
    }


def _middle(texts: Ragged, count: int) -> list[Ids]:
    """Texts whose lengths are around the median."""
    order = np.argsort(texts.lengths, kind="stable")
    first = max(0, (len(order) - count) // 2)
    return [np.asarray(texts[i]) for i in order[first : first + count]]


def query_run(
    model: Model, query: Ids, passages: Sequence[Ids], head: HeadKind, codec: str
) -> Callable[[], object]:
    """A query against its passages: stored ones, or the texts where the model is not split."""
    runtime, stored = TorchRuntime(model), None
    if model.spec.split:
        states = encode_texts(runtime, "passage", passages).states
        fitted = fit_codec(codec, states)
        runtime, stored = TorchRuntime(model, fitted), fitted.encode(states)

    def run() -> object:
        query_states = encode_texts(runtime, "query", [query]).states
        if stored is not None:
            return cross.score(runtime, query_states, stored, (head,))
        texts = encode_texts(runtime, "passage", passages, query_length=len(query)).states
        return cross.score(runtime, query_states, texts, (head,))

    return run


# Memory -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes beyond what was there before."""

    peak: int
    """Most bytes held at once: by the allocator on CUDA; elsewhere in living tensors, batch after batch."""
    requested: int
    """Sum over all operations, as the profiler of DeFormer counts: not what a machine needs."""


def memory(run: Callable[[], object], device: torch.device | str = "cpu") -> Memory:
    """The memory of one call, without gradients."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    watcher = _Watcher()
    with torch.no_grad(), nullcontext() if cuda else _one_thread(), watcher:
        kept = run()
    del kept
    peak = watcher.peak
    if cuda:
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
    return Memory(peak=peak, requested=watcher.requested)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Batches stay in the calling thread, the only one that a watcher sees."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation and the storages that it makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self.requested = self._held = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        inputs = {id(s) for s in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if id(storage) not in inputs and storage not in self._known:
                self._count(storage)
        return result

    def _count(self, storage: Any) -> None:
        size = storage.nbytes()
        self._known.add(storage)
        self._held += size
        self.requested += size
        self.peak = max(self.peak, self._held)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self._held -= size


def _storages(values: Any) -> list[Any]:
    return [x.untyped_storage() for x in tree_leaves(values) if isinstance(x, torch.Tensor)]
