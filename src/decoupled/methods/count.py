"""Parameters, bytes and arithmetic of a model: what methods save, before anything is trained."""

from collections.abc import Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

from decoupled.measure.counts import weights_in, work
from decoupled.measure.pairs import Pair
from decoupled.measure.table import ResultTable
from decoupled.methods.importance import score_of
from decoupled.methods.method import Method, Weights
from decoupled.model.folder import WEIGHTS
from decoupled.model.model import Model
from decoupled.model.spec import ModelSpec
from decoupled.train.data.prepare import prepare

TOKENS = (16, 128)
"""Tokens of the query and the passage that the arithmetic is counted for."""


def parameters(spec: ModelSpec) -> int:
    """Numbers that the model holds: weights, biases, codes; scales of codes are not counted."""
    return sum(weights_in(n, prod(t.shape), t.dtype) for n, t in spec.tensors().items())


def weight_bytes(spec: ModelSpec) -> int:
    """Bytes of the tensors as they are saved, scales included."""
    sizes = {"float32": 4, "int8": 1, "uint8": 1}
    return sum(prod(t.shape) * sizes[t.dtype] for t in spec.tensors().values())


def pair_macs(spec: ModelSpec, query: int, passage: int) -> dict[str, int]:
    """Multiply-adds once per passage, once per query, and for each pair as the first head reads it."""
    return asdict(work(spec, query=query, passage=passage))


def compare_sizes(
    before: Model,
    after: Model,
    files: tuple[int | None, int | None],
    *,
    methods: Sequence[Method] = (),
    check_pairs: Sequence[Pair] | None = None,
    task: str = "pairs",
) -> dict[str, dict[str, Any]]:
    """Parameters, bytes and arithmetic of both models, and their scores on judged pairs."""
    sparse = any(method.name == "prune-weights" for method in methods)
    compared: dict[str, dict[str, Any]] = {}
    for name, model, in_file in zip(("before", "after"), (before, after), files, strict=True):
        macs = pair_macs(model.spec, *TOKENS)
        facts: dict[str, Any] = {
            "parameters": parameters(model.spec),
            "weight_bytes": weight_bytes(model.spec),
            "file_bytes": in_file,
            "layers": len(model.spec.layers),
            "passage_macs": macs["passage"],
            "online_macs": macs["query"] + macs["cross"],
        }
        if sparse:
            # The folder holds zeros as they are; this is what a format for them would take.
            facts["sparse_bytes"] = sparse_bytes(model.net.state_dict())
        if check_pairs is not None:
            ready = prepare(check_pairs, model, task, train=False)
            facts["score"] = round(score_of(model, ready), 4)
        compared[name] = facts
    return compared


def file_bytes(path: Path) -> int | None:
    """Bytes of the weights in a model folder; None for a checkpoint of another kind."""
    file = path / WEIGHTS
    return file.stat().st_size if file.is_file() else None


def size_table(facts: dict[str, Any]) -> ResultTable:
    """A table of what `compare_sizes` returns, before and after side by side."""

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2f}"

    before, after = facts["before"], facts["after"]
    rows = []
    for name, was in before.items():
        ratio = f"{after[name] / was:.2f}" if was else ""
        rows.append((name.replace("_", " "), number(was), number(after[name]), ratio))
    query, passage = facts["tokens"]
    size = f"{after['parameters']:,} parameters in {after['file_bytes']:,} bytes"
    return ResultTable(
        title=f"one query of {query} and one passage of {passage} tokens",
        columns=("", "before", "after", "ratio"),
        rows=rows,
        notes=[f"{facts['model']}: {size}"],
    )


def sparse_bytes(weights: Weights) -> int:
    """Bytes of the tensors, each stored as its values and a bitmap where that takes less."""
    total = 0
    for tensor in weights.values():
        # A bit for each weight says where the stored values go.
        sparse = int((tensor != 0).sum()) * tensor.element_size() + -(-tensor.numel() // 8)
        total += min(tensor.nbytes, sparse)
    return total
