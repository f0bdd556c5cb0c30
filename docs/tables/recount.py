"""What can be counted again without a run: results must say what today's code counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from decoupled.lab.bench.shapes import SHAPES
from decoupled.lab.study.published import published_flops, published_speedup
from decoupled.methods.count import TOKENS, pair_macs, parameters
from decoupled.model.jsonable import from_json
from decoupled.model.spec import ModelSpec, TextSpec
from decoupled.model.split import with_split
from results import read


def faults() -> list[str]:
    """Counts in results that are others today."""
    counted = (*shrunk(), *deformer())
    return [f"{where} says {old}, counted now {new}" for where, old, new in counted if old != new]


def shrunk() -> Iterator[tuple[str, Any, Any]]:
    """Parameters, and multiply-adds, of every model whose spec a file holds."""
    for name in ("train_kinds.json", "train_shrink.json"):
        found = read(name)
        specs = {n: from_json(ModelSpec, spec) for n, spec in found["specs"].items()}
        for run in found["runs"]:
            spec = specs.get(run["name"].removesuffix(f"-s{run['run']['seed']}"))
            if spec is not None:
                where = f"{name}, {run['name']}"
                yield f"{where}, parameters", run["parameters"], parameters(spec)
                # The other file counted rows of the last layer that no head reads; no page shows that.
                if name == "train_kinds.json":
                    yield f"{where}, macs", run["macs"], pair_macs(spec, *TOKENS)


def deformer() -> Iterator[tuple[str, Any, Any]]:
    """Arithmetic of DeFormer's tables."""
    found = read("deformer.json")
    for name, row in found["tasks"].items():
        query, passage = row["tokens"]
        now = published_speedup(described("BERT-base"), 9, query=query, passage=passage)
        yield f"deformer.json, {name}", row["speedup"], round(now, 2)
    query, passage = found["tasks"]["SQuAD"]["tokens"]
    for name, row in found["models"].items():
        spec = with_split(described(name.partition(",")[0]), row["split"])
        now = published_flops(spec, query=query, passage=passage)
        yield f"deformer.json, {name}", row["gflops"], round(now / 1e9, 2)


def described(shape: str) -> ModelSpec:
    """The spec of a shape, without a vocabulary."""
    text = TextSpec(query_prefix=(), query_suffix=(), passage_prefix=(), passage_suffix=())
    return ModelSpec(family="bert", encoder=SHAPES[shape].encoder(), text=text, heads=())
