"""Time and memory of one query against stored passages, beside the joint model on the same texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from decoupled.index.encode import encode_texts
from decoupled.lab.study.memory import memory
from decoupled.measure.latency import Latency, interleaved
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model
from decoupled.model.spec import HeadKind
from decoupled.model.states import Ragged
from decoupled.model.tokens import Ids
from decoupled.runtime.torch import TorchRuntime
from decoupled.search import cross
from decoupled.train.data.examples import Examples


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is timed."""

    examples: Examples
    head: HeadKind
    codec: str = "int8"
    candidates: int = 20
    """Passages that a query is scored against."""
    rounds: int = 5


def timed(setup: Setup, joint: Model, model: Model) -> dict[str, Any]:
    """Milliseconds of one query against some passages, joint and split in turns, and their memory."""
    query, passages = _typical(setup)
    runs: dict[str, Callable[[], object]] = {
        "joint": _joint_run(joint, query, passages, setup.head)
    }
    if model.spec.split:
        runs["split"] = _split_run(model, query, passages, setup.head, setup.codec)
    device = model.device
    wait = torch.cuda.synchronize if device.type == "cuda" else None
    found: dict[str, Latency] = interleaved(runs, rounds=setup.rounds, wait=wait)
    held = memory(runs.get("split", runs["joint"]), device)
    return {
        "latency_ms": {name: latency.to_json() for name, latency in found.items()},
        "memory": {"peak": held.peak, "requested": held.requested},
        "candidates": len(passages),
        "device": str(device),
        "threads": torch.get_num_threads(),
    }


def _typical(setup: Setup) -> tuple[Ids, list[Ids]]:
    """A query of median length, and passages around the median length."""
    made = setup.examples

    def middle(texts: Ragged, count: int) -> list[Ids]:
        order = np.argsort(texts.lengths, kind="stable")
        first = max(0, (len(order) - count) // 2)
        return [np.asarray(texts[i]) for i in order[first : first + count]]

    return middle(made.queries, 1)[0], middle(made.passages, setup.candidates)


def _joint_run(
    model: Model, query: Ids, passages: Sequence[Ids], head: HeadKind
) -> Callable[[], object]:
    runtime = TorchRuntime(model)

    def run() -> object:
        asked = encode_texts(runtime, "query", [query])
        texts = encode_texts(runtime, "passage", passages, query_length=len(query))
        return cross.score(runtime, asked.states, texts.states, (head,))

    return run


def _split_run(
    model: Model, query: Ids, passages: Sequence[Ids], head: HeadKind, codec: str
) -> Callable[[], object]:
    bare = TorchRuntime(model)
    states = encode_texts(bare, "passage", passages).states
    made = fit_codec(codec, states)
    stored = made.encode(states)
    runtime = TorchRuntime(model, made)

    def run() -> object:
        asked = encode_texts(runtime, "query", [query])
        return cross.score(runtime, asked.states, stored, (head,))

    return run
