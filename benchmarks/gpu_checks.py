"""Does the CUDA runtime give the reference's numbers? Random models against torch in fp32."""

from __future__ import annotations

import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoupled.index.encode import encode_texts
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model
from decoupled.model.spec import ProjectionSpec
from decoupled.runtime.cuda.runtime import CudaRuntime
from decoupled.runtime.torch import TorchRuntime
from gpu_setup import Shape, one_way, save_checkpoint

CASES: tuple[dict[str, Any], ...] = (
    {"name": "exact"},
    {"name": "exact, heads of 32", "heads": 8},
    {"name": "exact, int8", "codec": "int8"},
    {"name": "exact, int4", "codec": "int4"},
    {"name": "exact, project+int8", "codec": "project:64+int8"},
    {"name": "exact, residual codes", "codec": "residual:2"},
    {"name": "learned projection, int8", "codec": "int8", "squeeze": 64},
    {"name": "tables at the split", "codec": "int8", "tables": "add_ln"},
    {"name": "one-way", "one_way": True},
    {"name": "one-way, int8", "codec": "int8", "one_way": True},
    {"name": "one-way, project+int8", "codec": "project:64+int8", "one_way": True},
    {"name": "spans", "head": "span"},
    {"name": "spans, project+int8", "head": "span", "codec": "project:64+int8"},
    {"name": "spans, one-way", "head": "span", "one_way": True, "codec": "int8"},
    {"name": "joint model (split 0)", "split": 0},
    {"name": "several chunks", "codec": "int8", "rows": 3000},
)
LEAST_AGREEMENT = 0.99
"""Rank correlation with the fp32 reference, or what plain torch reaches in bf16 if that is less."""
MOST_TIMES = 3.0
"""Largest error against the one that plain torch makes in bf16 on the same model."""


def verify(device: torch.device, *, smoke: bool = False) -> list[dict[str, Any]]:
    """Run every case, and print PASS or FAIL for each; a failure stops nothing."""
    shape = Shape(
        layers=4, width=64 if smoke else 256, heads=4, inner=128 if smoke else 1024, split=2
    )
    passages = 24 if smoke else 240
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            try:
                result = one(case, shape, device, Path(folder), passages)
            except Exception:
                result = {"passed": False, "error": traceback.format_exc()}
                print(result["error"], flush=True)
            results.append({"case": case["name"], **result})
            word = "PASS" if result["passed"] else "FAIL"
            detail = {k: v for k, v in result.items() if k not in ("passed", "error")}
            print(f"{word}  {case['name']:28} {detail}", flush=True)
    return results


def one(
    case: dict[str, Any], shape: Shape, device: torch.device, folder: Path, passages: int
) -> dict[str, Any]:
    """Errors and rank correlation of one case: all passages from device memory, and a few as a graph."""
    head = case.get("head", "rank")
    model = _model(case, replace(shape, heads=case.get("heads", shape.heads)), folder).to(device)
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
    fast = CudaRuntime(model, codec, device=device)
    fast.chunk_rows = case.get("rows", fast.chunk_rows)
    alone = encode_texts(fast, "passage", texts, query_length=len(asks)).states.values
    few = stored.select(np.arange(min(40, passages)))
    kept = fast.keep(stored) if codec else stored
    found: dict[str, Any] = {"states_error": error(states.values, alone)}
    expected = reference.cross(query, stored, (head,))[head]
    got = fast.cross(query, kept, (head,))[head]
    found |= {
        "error": error(expected.values, got.values),
        "most": most(expected.values, got.values),
    }
    found["agreement"] = agreement(expected.values, got.values)
    for _ in range(3):  # plain, captured, replayed
        got = fast.cross(query, few, (head,))[head]
    expected_few = reference.cross(query, few, (head,))[head].values
    found["graph_error"] = error(expected_few, got.values)
    model.to(device, torch.bfloat16)
    plain = reference.cross(query, stored, (head,))[head]
    found["torch_bf16_error"] = error(expected.values, plain.values)
    found["torch_bf16_agreement"] = agreement(expected.values, plain.values)
    margin = 1.2 / passages  # one swapped pair counts for more among few
    most_error = MOST_TIMES * found["torch_bf16_error"] + 1e-3
    passed = (
        found["agreement"] >= min(LEAST_AGREEMENT, found["torch_bf16_agreement"] - margin)
        and max(found["error"], found["graph_error"]) <= most_error
        and found["states_error"] < 0.05
    )
    return {"passed": bool(passed), **{k: round(v, 5) for k, v in found.items()}}


def _model(case: dict[str, Any], shape: Shape, folder: Path) -> Model:
    place = folder / f"{case.get('head', 'rank')}-{shape.heads}"
    if not place.exists():
        save_checkpoint(place, shape, head=case.get("head", "rank"))
    at = case.get("split", shape.split)
    model = Model.split(place, at=at, cross_embed=case.get("tables", "none"))
    if "squeeze" in case:
        spec = replace(model.spec, projection=ProjectionSpec(width=case["squeeze"]))
        model = model.rebuild(spec, {"did": "squeeze"})
    return one_way(model) if case.get("one_way") else model


def error(expected: np.ndarray, got: np.ndarray) -> float:
    """Root mean square of the difference, over the spread of what is expected; NaN stays NaN."""
    return float(np.sqrt(((expected - got) ** 2).mean()) / expected.std())


def most(expected: np.ndarray, got: np.ndarray) -> float:
    """The largest difference of a logit."""
    return float(np.abs(expected - got).max())


def agreement(expected: np.ndarray, got: np.ndarray) -> float:
    """Spearman's rank correlation of all logits."""
    places = [np.argsort(np.argsort(x.ravel())) for x in (expected, got)]
    return float(np.corrcoef(*places)[0, 1])
