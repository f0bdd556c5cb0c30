"""Latency, bytes, parameters and arithmetic of smaller models on a CPU, after real removal.

    python benchmarks/shrink_speed.py --results train_shrink.json --json shrink_squad.json
    python benchmarks/shrink_speed.py --data DATA --questions 500 --json results.json

The first form takes the specs and scores of the suite's preset `shrink` (mean and deviation over seeds);
weights are random, since they do not change how long anything takes. `decoupled report` draws what it writes,
with the models that no other beats. The second form applies methods to the starter model, without training,
and scores them on the first questions of SQuAD 1.1's dev set. Both runtimes of a CPU are timed: torch, and
OpenVINO without calibration. Models take turns, in several rounds, so that a busy moment of the machine hits
all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench_report import machine_now, percentiles, table, write_report
from decoupled.index.documents import read_pairs
from decoupled.model.jsonable import from_json
from decoupled.model.model import Model, folder
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.spec import ModelSpec
from decoupled.model.states import States
from decoupled.runtime import cpu
from decoupled.runtime.base import Runtime
from decoupled.runtime.openvino.calibrate import read_ranges
from decoupled.runtime.openvino.graph import Range
from decoupled.runtime.openvino.runtime import THREADS, OpenVinoRuntime
from decoupled.runtime.torch import TorchRuntime
from decoupled.train.data.prepare import prepare
from decoupled.train.shrink.base import apply
from decoupled.train.shrink.count import pair_macs, parameters, weight_bytes
from decoupled.train.shrink.measure import score_of
from decoupled.train.shrink.names import parse

QUERY, PASSAGE = 16, 128
BATCHES = (1, 32)
TRAIN, DEV = "squad1/train-v1.1.json.xz", "squad1/dev-v1.1.json.xz"
UNTRAINED: dict[str, tuple[str, ...]] = {
    "starter": (),
    "int8 dynamic": ("quantise",),
    "int8 static": ("quantise:inputs=static",),
    "int8 weights only": ("quantise:inputs=float",),
    "int4 weights only": ("quantise:bits=4,inputs=float,group=64",),
    "vocabulary 20k, int8 static": ("reduce-vocabulary:size=20000", "quantise:inputs=static"),
    "factorised 256, int8": ("factorise-embedding:rank=256", "quantise"),
    "heads -10%, neurons -10%, int8": (
        "prune-heads:share=0.1,examples=300",
        "prune-neurons:share=0.1,examples=300",
        "quantise",
    ),
    "heads -10%, neurons -20%, int8": (
        "prune-heads:share=0.1,examples=300",
        "prune-neurons:share=0.2,examples=300",
        "quantise",
    ),
    # Of 30,522 pieces the training questions and paragraphs use fewer than 27,000.
    "vocabulary in use, neurons -5%, int8": (
        "reduce-vocabulary:size=28800",
        "prune-neurons:share=0.05,examples=300",
        "quantise",
    ),
    "vocabulary in use, heads -10%, neurons -10%, int8": (
        "reduce-vocabulary:size=27000",
        "prune-heads:share=0.1,examples=300",
        "prune-neurons:share=0.1,examples=300",
        "quantise",
    ),
}
"""What can be done to the starter model without training it again."""


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

    @property
    def spec(self) -> ModelSpec:
        """Its description."""
        return self.net.spec

    def report(self) -> dict[str, Any]:
        """Everything about it, as JSON."""
        macs = pair_macs(self.spec, QUERY, PASSAGE)
        joint = not self.spec.split
        return {
            "name": self.name,
            "score": self.score,
            "spread": self.spread,
            "seeds": self.seeds,
            "split": self.spec.split,
            "layers": len(self.spec.layers),
            "parameters": parameters(self.spec),
            "weight_bytes": weight_bytes(self.spec),
            "passage_macs": 0 if joint else macs["passage"],
            "online_macs": macs["query"] + macs["cross"],
            **{name: percentiles([1e3 * s for s in found]) for name, found in self.times.items()},
        }


def main() -> None:
    """Collect the models, measure them in rounds, report and draw."""
    args = arguments()
    cpu.protect()
    torch.set_num_threads(args.threads)
    os.environ[THREADS] = str(args.threads)
    rows = list(of_results(args) if args.results else of_starter(args))
    first = {row.spec: row for row in reversed(rows)}  # models of one shape take one time
    for _ in range(args.rounds):
        for row in first.values():
            measure(row, args.repeats)
    for row in rows:
        row.times = first[row.spec].times
    found = [row.report() for row in rows]
    tokens = {"query": QUERY, "passage": PASSAGE, "machine": machine_now()}
    about = {"kind": "smaller" if args.results else "starter", "dataset": args.dataset}
    write_report(args, {**about, "tokens": tokens, "metric": args.metric, "models": found})
    show(found)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, help="runs and specs, of train_collect.py --specs")
    parser.add_argument("--dataset", default="squad", help="of the results")
    parser.add_argument("--metric", default="f1")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--questions", type=int, default=500, help="to score the starter on")
    parser.add_argument(
        "--only", action="append", default=[], help="names of methods on the starter"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10, help="of each model in each round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


# Models -------------------------------------------------------------------------------------------


def of_results(args: argparse.Namespace) -> Iterator[Row]:
    """A model of each spec of a suite's results, with the scores of its seeds."""
    told = json.loads(args.results.read_text(encoding="utf-8"))
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in told["runs"]:
        if run["run"]["dataset"] == args.dataset:
            groups.setdefault(re.sub(r"-s\d+$", "", run["name"]), []).append(run)
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
    model = Model.load(folder.starter_model())
    pairs = list(islice(read_pairs(args.data / DEV), args.questions))
    # Methods decide on a part of the training set that has something of every article.
    others = list(islice(read_pairs(args.data / TRAIN), 0, None, 12))
    judge = prepare(pairs, model, "squad", train=False)
    sample = prepare(others, model, "squad")
    for name, texts in UNTRAINED.items():
        if args.only and name not in args.only:
            continue
        made = model
        for text in texts:
            made = apply(made, parse(text), sample)
        score = round(score_of(made, judge), 2)
        print(f"{name}: {args.metric} {score}", flush=True)
        ranges = {} if texts else read_ranges(folder.starter_model())
        yield Row(name=name, net=made.net.eval(), score=score, ranges=ranges)


# Times --------------------------------------------------------------------------------------------


def measure(row: Row, repeats: int) -> None:
    """Seconds of a query against 1 and 32 passages, and of encoding 32 passages, on each runtime."""
    for prefix, runtime in runtimes(row.net, row.ranges):
        for batch in BATCHES:
            online, encode = steps(runtime, batch)
            row.times.setdefault(f"{prefix}online_{batch}", []).extend(timed(online, repeats))
            if batch == BATCHES[-1] and row.spec.split:
                row.times.setdefault(f"{prefix}encode_{batch}", []).extend(timed(encode, repeats))


def runtimes(net: PairEncoder, ranges: dict[str, Range]) -> Iterator[tuple[str, Runtime]]:
    """Torch and OpenVINO; made anew each time, or they would fill the memory."""
    tokenizer = folder.read_tokenizer(folder.starter_model(), net.spec)
    yield "", TorchRuntime(Model(net, tokenizer, []))
    tensors = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    yield "openvino_", OpenVinoRuntime(net.spec, tensors, tokenizer)
    if ranges:
        yield "calibrated_", OpenVinoRuntime(net.spec, tensors, tokenizer, ranges=ranges)


def steps(runtime: Runtime, batch: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What a query waits for, and what was done when its passages were stored."""
    spec = runtime.spec
    ids = np.arange(1000, 1000 + PASSAGE).clip(max=spec.encoder.embedding.vocab - 1)
    ids = ids.astype(np.int32)
    head = spec.heads[-1].kind

    def encode() -> States:
        return runtime.encode("passage", [ids] * batch, query_length=QUERY).states

    stored = encode()

    def online() -> Any:
        query = runtime.encode("query", [ids[:QUERY]]).states
        return runtime.cross(query, stored if spec.split else encode(), [head])

    return online, encode


def timed(act: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each repeat, after two that do not count."""
    found = []
    for _ in range(repeats + 2):
        started = time.perf_counter()
        act()
        found.append(time.perf_counter() - started)
    return found[2:]


# Report -------------------------------------------------------------------------------------------


def show(found: list[dict[str, Any]]) -> None:
    """A table, with size and speed against the first model."""
    first = found[0]
    rows = [
        (
            row["name"],
            str(row["score"]),
            f"{row['parameters'] / 1e6:.2f}",
            f"{row['weight_bytes'] / 1e6:.1f}",
            f"{first['weight_bytes'] / row['weight_bytes']:.2f}",
            f"{row['online_macs'] / 1e6:.0f}",
            str(row["online_1"]["p50_ms"]),
            str(row["online_32"]["p50_ms"]),
            f"{first['online_32']['p50_ms'] / row['online_32']['p50_ms']:.2f}",
            str(row["openvino_online_32"]["p50_ms"]),
        )
        for row in found
    ]
    head = (
        "model",
        "score",
        "M par",
        "MB",
        "smaller",
        "M MACs",
        "1: ms",
        "32: ms",
        "faster",
        "OpenVINO",
    )
    print(table(head, rows))


if __name__ == "__main__":
    main()
