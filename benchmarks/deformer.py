"""DeFormer's tables 1 and 2: what a split saves in arithmetic and memory, printed there and measured here.

    python benchmarks/deformer.py --json benchmarks/results/deformer.json

Random weights of BERT-base and BERT-large, one pair of the paper's own lengths, in torch, fp32. The paper's
memory is its profiler's sum over all operations (`requested`); what a machine holds at once is `peak`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from decoupled.lab.bench.shapes import SHAPES
from decoupled.lab.script import options, write_report
from decoupled.lab.study.timing import memory, query_run
from decoupled.measure.counts import published_flops, published_speedup
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


if __name__ == "__main__":
    write_report(options(__doc__), tables())
