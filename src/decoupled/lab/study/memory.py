"""Memory of a computation in torch: what it holds at most, and all that it asks for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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
        given = {id(s) for s in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if id(storage) not in given and storage not in self._known:
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
