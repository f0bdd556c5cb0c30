"""Time of one query against stored passages, beside the joint model on the same texts."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from decoupled.index.encode import encode_texts
from decoupled.measure.latency import Latency, summarise
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
    """Milliseconds of one query against `candidates` passages, joint and split in turns."""
    # A query of median length, and passages around the median length.
    query = _middle(examples.queries, 1)[0]
    passages = _middle(examples.passages, candidates)
    runs = {"joint": query_run(joint, query, passages, head, codec)}
    if model.spec.split:
        runs["split"] = query_run(model, query, passages, head, codec)
    device = model.device
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    latencies = interleaved(runs, rounds=rounds, wait=wait)
    return {
        "latency_ms": {name: latency.to_json() for name, latency in latencies.items()},
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


def interleaved(
    alternatives: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 10,
    warmup: int = 2,
    wait: Callable[[], object] = lambda: None,
) -> dict[str, Latency]:
    """Times of alternatives that run in turning order, once a round; `wait` is for devices that work on."""
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    names = list(alternatives)
    for number in range(warmup + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            started = time.perf_counter()
            alternatives[name]()
            wait()
            if number >= warmup:
                times[name].append((time.perf_counter() - started) * 1e3)
    return {name: summarise(spent) for name, spent in times.items()}
