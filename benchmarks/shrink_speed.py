"""Latency, bytes, parameters and arithmetic of smaller models on a CPU, after real removal.

    python benchmarks/shrink_speed.py --results train_shrink.json --json shrink_squad.json
    python benchmarks/shrink_speed.py --data DATA --questions 500 --json shrink_starter.json

The first form takes the specs and scores of the suite's preset `shrink` (mean and deviation over seeds) under
random weights; `decoupled lab report` draws what it writes. The second applies methods to the starter model
without training (`UNTRAINED`), and scores them on the first questions of SQuAD 1.1's dev set.
Both runtimes of a CPU are timed: torch, and OpenVINO without calibration. Models take turns, so that a busy
moment of the machine hits all of them.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench_report import clocked, percentiles
from decoupled import Model, read_pairs
from decoupled.lab.script import options, write_report
from decoupled.methods.count import pair_macs, parameters, weight_bytes
from decoupled.methods.importance import score_of
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.model.folder import read_tokenizer, starter_model
from decoupled.model.jsonable import from_json
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.spec import ModelSpec
from decoupled.runtime import cpu
from decoupled.runtime.base import Runtime
from decoupled.runtime.openvino.calibrate import read_ranges
from decoupled.runtime.openvino.graph import Range
from decoupled.runtime.openvino.runtime import OpenVinoRuntime
from decoupled.runtime.torch import TorchRuntime
from decoupled.train.data.prepare import prepare

QUERY, PASSAGE = 16, 128
FEWER = ["prune-heads:share=0.1,examples=300", "prune-neurons:share=0.1,examples=300"]
UNTRAINED = {
    "starter": [],
    "int8 dynamic": ["quantise"],
    "int8 static": ["quantise:inputs=static"],
    "int8 weights only": ["quantise:inputs=float"],
    "int4 weights only": ["quantise:bits=4,inputs=float,group=64"],
    "vocabulary 20k, int8 static": ["reduce-vocabulary:size=20000", "quantise:inputs=static"],
    "factorised 256, int8": ["factorise-embedding:rank=256", "quantise"],
    "heads -10%, neurons -10%, int8": [*FEWER, "quantise"],
    "heads -10%, neurons -20%, int8": [FEWER[0], FEWER[1].replace("0.1", "0.2"), "quantise"],
    "vocabulary in use, neurons -5%, int8": [
        "reduce-vocabulary:size=28800",
        FEWER[1].replace("0.1", "0.05"),
        "quantise",
    ],
    "vocabulary in use, heads -10%, neurons -10%, int8": [
        "reduce-vocabulary:size=27000",
        *FEWER,
        "quantise",
    ],
}
"""Methods that make the starter smaller without training."""


@dataclass
class Row:
    """A model to measure, and what is known of it."""

    name: str
    net: PairEncoder
    score: float | None = None
    spread: float | None = None
    seeds: int = 1
    ranges: dict[str, Range] = field(default_factory=dict)
    """Of its activations, where it is calibrated: then OpenVINO is timed with them as well."""
    times: dict[str, list[float]] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """Everything about it, as JSON."""
        spec = self.net.spec
        macs = pair_macs(spec, QUERY, PASSAGE)
        return {
            **{name: getattr(self, name) for name in ("name", "score", "spread", "seeds")},
            "split": spec.split,
            "layers": len(spec.layers),
            "parameters": parameters(spec),
            "weight_bytes": weight_bytes(spec),
            "passage_macs": macs["passage"] if spec.split else 0,
            "online_macs": macs["query"] + macs["cross"],
            **{name: percentiles(found) for name, found in self.times.items()},
        }


def main() -> None:
    """Collect the models, measure them in rounds, report."""
    source = {"results": Path, "dataset": "squad", "metric": "f1", "data": Path("data")}
    how = {"questions": 500, "only": [str], "rounds": 3, "repeats": 10, "threads": 1}
    how |= {"kind": "smaller"}  # what `decoupled lab report` draws
    args = options(__doc__, **source, **how)
    cpu.protect()
    torch.set_num_threads(args.threads)
    os.environ[cpu.THREADS] = str(args.threads)
    rows = list(of_results(args) if args.results else of_starter(args))
    first = {row.net.spec: row for row in reversed(rows)}  # models of one shape take one time
    for _ in range(args.rounds):
        for row in first.values():
            measure(row, args.repeats)
    for row in rows:
        row.times = first[row.net.spec].times
    about = {"kind": args.kind if args.results else "starter", "dataset": args.dataset}
    about |= {"tokens": {"query": QUERY, "passage": PASSAGE}, "metric": args.metric}
    write_report(args, {**about, "models": [row.report() for row in rows]})


def of_results(args: argparse.Namespace) -> Iterator[Row]:
    """A model of each spec of a suite's results, with the scores of its seeds."""
    told = json.loads(args.results.read_text(encoding="utf-8"))
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in told["runs"]:
        if run["run"]["dataset"] == args.dataset:
            groups.setdefault(run["name"].removesuffix(f"-s{run['run']['seed']}"), []).append(run)
    for name, found in groups.items():
        codes = "int8" if "int8" in found[0]["test"] else "fp"
        scores = [line["test"][codes][args.metric] for line in found]
        yield Row(
            name=name.removeprefix(f"{args.dataset}-"),
            net=PairEncoder(from_json(ModelSpec, told["specs"][name])).eval(),
            score=round(float(np.mean(scores)), 2),
            spread=round(float(np.std(scores, ddof=1)), 2) if len(scores) > 1 else None,
            seeds=len(scores),
        )


def of_starter(args: argparse.Namespace) -> Iterator[Row]:
    """The starter model under methods that need no training, scored on real questions."""
    model = Model.load(starter_model())
    dev, train = (args.data / f"squad1/{part}-v1.1.json.xz" for part in ("dev", "train"))
    judge = prepare(islice(read_pairs(dev), args.questions), model, "squad", train=False)
    # Methods decide on a part of the training set that has something of every article.
    sample = prepare(islice(read_pairs(train), 0, None, 12), model, "squad")
    for name, texts in UNTRAINED.items():
        if not args.only or name in args.only:
            methods = map(parse, texts)
            made = reduce(lambda smaller, method: apply(smaller, method, sample), methods, model)
            ranges = {} if texts else read_ranges(starter_model())
            score = round(score_of(made, judge), 2)
            yield Row(name=name, net=made.net.eval(), score=score, ranges=ranges)


def measure(row: Row, repeats: int) -> None:
    """Milliseconds of a query against 1 and 32 passages, and of encoding 32 passages, on each runtime."""
    spec = row.net.spec
    ids = np.arange(1000, 1000 + PASSAGE, dtype=np.int32).clip(max=spec.encoder.embedding.vocab - 1)

    def encode(runtime: Runtime, batch: int) -> Any:
        return runtime.encode("passage", [ids] * batch, query_length=QUERY).states

    def online(runtime: Runtime, batch: int, stored: Any) -> Any:
        query = runtime.encode("query", [ids[:QUERY]]).states
        passages = stored if spec.split else encode(runtime, batch)
        return runtime.cross(query, passages, [spec.heads[-1].kind])

    def timed(name: str, run: Callable[..., Any], *args: Any) -> None:
        found: list[float] = []
        for _ in range(repeats + 2):  # two that do not count
            clocked(found, lambda: run(*args))
        row.times.setdefault(name, []).extend(found[2:])

    for prefix, runtime in runtimes(row.net, row.ranges):
        for batch in (1, 32):
            timed(f"{prefix}online_{batch}", online, runtime, batch, encode(runtime, batch))
        if spec.split:
            timed(f"{prefix}encode_{batch}", encode, runtime, batch)


def runtimes(net: PairEncoder, ranges: dict[str, Range]) -> Iterator[tuple[str, Runtime]]:
    """Torch and OpenVINO; made anew each time, or they would fill the memory."""
    tokenizer = read_tokenizer(starter_model(), net.spec)
    yield "", TorchRuntime(Model(net, tokenizer, []))
    tensors = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    yield "openvino_", OpenVinoRuntime(net.spec, tensors, tokenizer)
    if ranges:
        yield "calibrated_", OpenVinoRuntime(net.spec, tensors, tokenizer, ranges=ranges)


if __name__ == "__main__":
    main()
