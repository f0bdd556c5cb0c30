"""Does the CUDA runtime give the reference's numbers? Random models against torch in fp32, PASS or FAIL each.

    python tests/cuda_checks.py [--smoke]

Exits 1 where a case fails. Needs torch, tokenizers and safetensors alone, as a bare GPU machine has them;
where pytest is installed, `tests/runtime/test_cuda_device.py` runs the same.
"""

import sys
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoupled.index.encode import encode_texts
from decoupled.lab.bench.shapes import Shape, write_checkpoint
from decoupled.lab.script import options
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model
from decoupled.model.spec import HeadSpec
from decoupled.model.states import Ragged, States
from decoupled.runtime.base import Runtime
from decoupled.runtime.cuda.runtime import CudaRuntime
from decoupled.runtime.torch import TorchRuntime
from decoupled.train.reshape import with_projection

CASES: dict[str, dict[str, Any]] = {
    "exact": {},
    "exact, heads of 32": {"heads": 8},
    "exact, int8": {"codec": "int8"},
    "exact, int4": {"codec": "int4"},
    "exact, project+int8": {"codec": "project:64+int8"},
    "learned projection, int8": {"codec": "int8", "projection": 64},
    "tables at the split": {"codec": "int8", "tables": "add_ln"},
    "one-way": {"one_way": True},
    "one-way, int8": {"codec": "int8", "one_way": True},
    "one-way, project+int8": {"codec": "project:48+int8", "one_way": True},
    "spans": {"head": "span"},
    "spans, project+int8": {"head": "span", "codec": "project:64+int8"},
    "spans, one-way": {"head": "span", "one_way": True, "codec": "int8"},
    "joint model (split 0)": {"split": 0},
    "several chunks": {"codec": "int8", "rows": 3000},
}
LEAST_AGREEMENT = 0.99
"""Rank correlation with the fp32 reference, or that of plain torch in bf16 if it is less."""
MOST_TIMES = 3.0
"""Largest error against the one that plain torch makes in bf16 on the same model."""


def main() -> None:
    """Every case, and the exit status."""
    smoke = options(__doc__, smoke=False).smoke
    passed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in CASES:
            try:
                result = verify(name, Path(folder), "cpu" if smoke else "cuda", smoke=smoke)
            except Exception:
                result = {"passed": False, "error": traceback.format_exc()}
            sys.stdout.write(f"{'PASS' if result['passed'] else 'FAIL'}  {name:28} {result}\n")
            passed += result["passed"]
    sys.stdout.write(f"{passed} of {len(CASES)} passed\n")
    sys.exit(passed < len(CASES))


@torch.no_grad()
def verify(name: str, folder: Path, device: str, *, smoke: bool = False) -> dict[str, Any]:
    """Did a case pass, and how near it came."""
    width = 64 if smoke else 256
    shape = Shape(name="checked", layers=4, width=width, heads=4, ffn=4 * width, split=2)
    return check(CASES[name], shape, device, folder, 24 if smoke else 240)


def check(
    case: dict[str, Any], shape: Shape, device: str, folder: Path, passages: int
) -> dict[str, Any]:
    """Errors and rank correlation of one case: all passages from device memory, and a few as a graph."""
    head = case.get("head", "rank")
    model = model_of(case, replace(shape, heads=case.get("heads", shape.heads)), folder).to(device)
    reference = TorchRuntime(model)
    draw = np.random.default_rng(1)
    lengths = draw.integers(1, 190, passages)
    lengths[:4] = (1, 63, 64, 65)
    texts = [draw.integers(1000, 20000, n).astype(np.int32) for n in lengths]
    asks = draw.integers(1000, 20000, 17).astype(np.int32)
    query = encode_texts(reference, "query", [asks]).states
    states = encode_texts(reference, "passage", texts, query_length=len(asks)).states
    codec = fit_codec(case["codec"], states) if "codec" in case else None
    stored = codec.encode(states) if codec else states
    reference.codec = codec
    fast = CudaRuntime(model, codec, device=torch.device(device))
    fast.chunk_rows = case.get("rows", fast.chunk_rows)
    alone = encode_texts(fast, "passage", texts, query_length=len(asks)).states
    few = stored.select(np.arange(min(40, passages)))

    def logits(runtime: Runtime, passages: Any) -> np.ndarray:
        return runtime.cross(query, passages, (head,))[head].values

    expected = logits(reference, stored)
    kept = fast.keep(stored) if codec else stored
    got = logits(fast, kept)
    # The same as two queries of one batch, the second one twice as long.
    other = encode_texts(reference, "query", [np.concatenate([asks, asks])]).states
    both, owner = States.concat([query, other]), np.arange(passages) % 2
    for _ in range(3):  # plain, captured, replayed
        mixed = fast.cross(both, kept, (head,), owner=owner)[head]
        queries = encode_texts(fast, "query", [asks, asks[:5], asks[:9]]).states
    mixed = mixed.select(np.flatnonzero(owner == 0))
    alone_ = Ragged(got, fast.cross(query, kept, (head,))[head].lengths)
    found = {
        "mixed_error": error(alone_.select(np.flatnonzero(owner == 0)).values, mixed.values),
        "states_error": error(states.values, alone.values),
        "queries_error": error(query.values, queries.select([0]).values),
        "error": error(expected, got),
        "most": float(np.abs(expected - got).max()),
        "agreement": agreement(expected, got),
    }
    fast._crossing.graphs._made.clear()  # as where the first capture failed
    for _ in range(3):
        got = logits(fast, few)
    found["graph_error"] = error(logits(reference, few), got)
    asked = encode_texts(fast, "query", [asks]).states
    for _ in range(3):  # a query that nobody read before
        waiting = fast.encode("query", [asks], vectors=False).states
        read = fast.cross(waiting, few, (head,))[head].values
    found["waiting_error"] = error(fast.cross(asked, few, (head,))[head].values, read)
    found["threads_error"] = disturbed(fast, asks, lambda: logits(fast, few))
    model.to(device, torch.bfloat16)
    plain = logits(reference, stored)
    found["torch_bf16_error"] = error(expected, plain)
    found["torch_bf16_agreement"] = agreement(expected, plain)
    margin = 1.2 / passages  # one swapped pair counts for more among few
    least = min(LEAST_AGREEMENT, found["torch_bf16_agreement"] - margin)
    worst = max(found[f"{what}error"] for what in ("", "graph_", "mixed_", "waiting_"))
    worst += found["threads_error"]
    passed = found["agreement"] >= least
    passed = passed and max(found["states_error"], found["queries_error"]) < 0.05
    passed = passed and worst <= MOST_TIMES * found["torch_bf16_error"] + 1e-3
    return {"passed": bool(passed), **{k: round(v, 5) for k, v in found.items()}}


def disturbed(fast: CudaRuntime, asks: np.ndarray, work: Callable[[], np.ndarray]) -> float:
    """How much two callers change what each gets alone, while both read queries and pairs."""

    def both(count: int) -> list[np.ndarray]:
        return [x for n in range(count) for x in (encoded(4 + n % 9), work())]

    def encoded(length: int) -> np.ndarray:
        return encode_texts(fast, "query", [asks[:length]]).states.values

    both(18)  # what is captured the second time
    alone = both(18)
    with ThreadPoolExecutor(2) as callers:
        found = callers.map(both, [18, 18])
    return max(float(np.abs(a - b).max()) for own in found for a, b in zip(alone, own, strict=True))


def model_of(case: dict[str, Any], shape: Shape, folder: Path) -> Model:
    """The model of a case, with weights that let every layer change its input as a trained one does."""
    whole = Model.open(write_checkpoint(shape, folder / str(shape.heads)))
    if "head" in case:
        spec = replace(whole.spec, heads=(HeadSpec(kind=case["head"]),))
        whole = whole.rebuild(spec, {"did": "another head"})
    randomise(whole.net)
    at, tables = case.get("split", shape.split), case.get("tables", "none")
    one_way = "auto" if case.get("one_way") else ()
    model = Model.split(whole, at=at, cross_embed=tables, one_way=one_way)
    return with_projection(model, case["projection"]) if "projection" in case else model


def randomise(net: torch.nn.Module) -> None:
    """Fresh weights hardly change anything; these do."""
    draw = torch.Generator().manual_seed(0)
    for name, tensor in net.named_parameters():
        noise = torch.randn(tensor.shape, generator=draw)
        if tensor.dim() == 1:
            around = 1 if "norm" in name and name.endswith("weight") else 0
            tensor.copy_(around + 0.1 * noise)
        elif "embedding" in name:
            tensor.copy_(noise)
        else:
            tensor.copy_(noise * 1.2 / tensor.shape[1] ** 0.5)


def error(expected: np.ndarray, got: np.ndarray) -> float:
    """Root mean square of the difference, over the spread of what is expected; NaN stays NaN."""
    return float(np.sqrt(((expected - got) ** 2).mean()) / expected.std())


def agreement(expected: np.ndarray, got: np.ndarray) -> float:
    """Spearman's rank correlation of all logits."""
    ranks = [np.argsort(np.argsort(x.ravel())) for x in (expected, got)]
    return float(np.corrcoef(*ranks)[0, 1])


if __name__ == "__main__":
    main()
