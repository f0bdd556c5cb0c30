"""DeFormer's tables 1 and 2: what a split saves in arithmetic and memory, printed there and measured here.

    python benchmarks/deformer.py --json benchmarks/results/deformer.json

Random weights of BERT-base and BERT-large, one pair of the paper's own lengths, in torch, fp32. The paper's
memory is its profiler's sum over all operations (`requested`); what a machine holds at once is `peak`.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from decoupled.lab.bench.shapes import SHAPES
from decoupled.lab.script import options, write_report
from decoupled.lab.study.published import published_flops, published_speedup
from decoupled.lab.study.timing import query_run
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.head import HeadSpec
from decoupled.model.spec import ModelSpec, TextSpec
from decoupled.model.split import with_split
from decoupled.model.tokens import Tokenizer

TASKS = {
    "SQuAD": (27, 293, 3.2, 70.3),
    "RACE": (32, 480, 3.4, 72.9),
    "BoolQ": (17, 303, 3.5, 72.0),
    "MNLI": (33, 87, 2.2, 56.4),
    "QQP": (58, 42, 2.0, 50.0),
}
"""Tokens that are read with each query and those that are stored; speed-up and memory saved, as printed."""
SPLIT = 9
MODELS = {"BERT-large": (0, 204.1, 1549.6), "BERT-base": (0, 58.4, 584.2)}
"""Table 2: GFLOPs and MB as printed."""
DECOMPOSED = (20, 47.7, 359.7)
"""Of BERT-large. The paper does not say where it was split; 20 of 24 comes nearest to its arithmetic."""
MB = 1e6


def tables() -> dict[str, Any]:
    """Both tables: printed beside counted and measured values."""
    base = encoder("BERT-base")
    tasks = {}
    for name, (query, passage, speed, saved) in TASKS.items():
        joint, split = (bytes_of(base, at, query, passage) for at in (0, SPLIT))
        tasks[name] = {
            "tokens": [query, passage],
            "printed": {"speedup": speed, "memory_saved": saved},
            "speedup": round(published_speedup(base.spec, SPLIT, query=query, passage=passage), 2),
            "requested_saved": round(100 * (1 - split["requested"] / joint["requested"]), 1),
            "peak_saved": round(100 * (1 - split["peak"] / joint["peak"]), 1),
        }
    query, passage, *_ = TASKS["SQuAD"]
    rows = [(name, name, *of) for name, of in MODELS.items()]
    rows.append(("BERT-large, split", "BERT-large", *DECOMPOSED))
    models = {}
    for name, shape, at, flops, held in rows:
        model = base if shape == "BERT-base" else encoder(shape)
        counted = published_flops(with_split(model.spec, at), query=query, passage=passage)
        models[name] = {
            "split": at,
            "printed": {"gflops": flops, "memory_mb": held},
            "gflops": round(counted / 1e9, 2),
            **{f"{n}_mb": round(b / MB, 1) for n, b in bytes_of(model, at, query, passage).items()},
        }
    return {"tasks": tasks, "models": models}


def encoder(shape: str) -> Model:
    """Random weights of a shape with a head for spans."""
    words = {f"w{n}": n for n in range(8)}
    table = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
    written = {"version": "1.0", "added_tokens": [], "model": table}
    text = TextSpec(query_prefix=(), query_suffix=(), passage_prefix=(), passage_suffix=())
    heads = (HeadSpec(kind="span"),)
    spec = ModelSpec(family="bert", encoder=SHAPES[shape].encoder(), text=text, heads=heads)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Model(PairEncoder(spec).eval(), Tokenizer(json.dumps(written), spec.text))


def bytes_of(model: Model, at: int, query: int, passage: int) -> dict[str, int]:
    """Bytes of one query against one passage, stored in fp32 where the model is split."""
    ids = [np.ones(n, np.int32) for n in (query, passage)]
    run = query_run(Model.split(model, at=at), ids[0], [ids[1]], "span", "fp32")
    return vars(memory(run))


# Memory -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes beyond what was there before."""

    peak: int
    """Most bytes held at once in living tensors, batch after batch."""
    requested: int
    """Sum over all operations, as the profiler of DeFormer counts: not what a machine needs."""


def memory(run: Callable[[], object]) -> Memory:
    """The memory of one call on the CPU, without gradients."""
    watcher = _Watcher()
    with torch.no_grad(), _one_thread(), watcher:
        run()
    return Memory(peak=watcher.peak, requested=watcher.requested)


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


if __name__ == "__main__":
    write_report(options(__doc__), tables())
