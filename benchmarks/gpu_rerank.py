"""Reranking on one GPU, piece by piece: how near to the machine's ceiling, in how much memory, against whom.

    python benchmarks/gpu_rerank.py --output benchmarks/results     # writes gpu_rerank.json there

`decoupled bench --preset gpu` races whole queries; this times the cross component alone against the joint
forward alone, counts the arithmetic, and weighs both. Shapes, texts and CrossEncoder
are those of the race; the states of the passages lie in GPU memory, `int8` or `project:W/4+int8`. A section
that fails says why and stops nothing. `--smoke` runs all of it on a CPU in a tiny size.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gpu_checks
from bench_report import commit, typed
from decoupled.index.encode import encode_texts
from decoupled.lab.bench.clock import Clock, in_use, peak_since, reset_peak
from decoupled.lab.bench.contenders import NARROW
from decoupled.lab.bench.peers import cross_encoder
from decoupled.lab.bench.report import machine
from decoupled.lab.bench.results import joint_flops, query_flops
from decoupled.lab.bench.shapes import (
    PASSAGE_TOKENS,
    QUERY_TOKENS,
    SHAPES,
    Shape,
    texts,
    write_checkpoint,
)
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model
from decoupled.model.states import States
from decoupled.runtime.cuda.runtime import CudaRuntime
from decoupled.runtime.torch import TorchRuntime
from decoupled.search import cross

Runs = dict[str, Callable[[], Any]]
KINDS = ("exact", "one-way")


def main() -> None:
    """Every section in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for gpu_rerank.json")
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU: does it run?")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--seconds", type=float, default=180, help="start nothing optional later")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        base, device = Subject(bench, "BERT-base"), bench.clock.device
        bench.section("ceilings", lambda: ceilings(bench.clock, size=256 if args.smoke else 8192))
        bench.section("checks", lambda: gpu_checks.verify(device, smoke=args.smoke))
        bench.section("BERT-base", lambda: ours(bench, base))
        bench.section("BERT-base joint", lambda: joint(bench, base, compiled=args.compile))
        bench.section("BERT-base CrossEncoder", lambda: peer(bench, base))
        bench.section("memory", lambda: memory(bench, base))
        for name in ("MiniLM-L6",) if args.smoke else ("MiniLM-L6", "MiniLM-L12", "BERT-large"):
            bench.section(name, lambda n=name: other(bench, Subject(bench, n)), optional=True)
        if args.compile:
            name = "BERT-base CrossEncoder compiled"
            bench.section(name, lambda: peer(bench, base, compiled=True), optional=True)


class Bench:
    """Settings, the clock, and what was found so far, written down after every section."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder, self.smoke = args, folder, args.smoke
        self.clock = Clock("cpu" if args.smoke else "cuda")
        self.device = torch.device(self.clock.device)
        self.tops = (4, 8, 16) if self.smoke else (20, 100, 1000)
        self.rounds = 2 if self.smoke else 15
        self.named = "cpu" if self.smoke else torch.cuda.get_device_name(self.device)
        self.results: dict[str, Any] = {}
        self.started = time.perf_counter()

    def section(self, name: str, work: Callable[[], Any], *, optional: bool = False) -> None:
        """Run, keep what comes back, write it down; a failure is kept too."""
        elapsed = time.perf_counter() - self.started
        late = optional and elapsed > self.args.seconds
        print(f"-- {name}: {'left out' if late else ''} {elapsed:.0f} s", flush=True)
        if late:
            return
        try:
            self.results[name] = work()
        except Exception:
            self.results[name] = {"failed": traceback.format_exc()}
        print(json.dumps(self.results[name], indent=1), flush=True)
        report = {
            "command": typed(),
            "commit": commit(),
            "machine": {"device": self.named, **machine()},
            "seconds": round(time.perf_counter() - self.started, 1),
            **self.results,
        }
        self.args.output.mkdir(parents=True, exist_ok=True)
        path = self.args.output / "gpu_rerank.json"
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


class Subject:
    """One shape: its checkpoint, its split models, and passages whose states the device keeps."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.bench, self.shape = bench, SHAPES["tiny" if bench.smoke else name]
        self.folder = write_checkpoint(self.shape, bench.folder / name)
        self.models = {
            kind: Model.split(
                self.folder, at=self.shape.split, one_way="auto" if kind == "one-way" else ()
            )
            for kind in KINDS
        }
        self.texts = texts(2 * bench.tops[-1])
        self.codecs = f"project:{self.shape.width // NARROW}+int8", "int8"
        self.runtimes = cache(self._runtimes)

    @cached_property
    def states(self) -> States:
        """Of all passages, through the runtime itself."""
        runtime = CudaRuntime(self.models["exact"], device=self.bench.device)
        ids = [windows[0].ids for windows in runtime.tokenizer.windows(self.texts.passages)]
        return encode_texts(runtime, "passage", ids).states

    def _runtimes(self, codec: str) -> dict[str, tuple[CudaRuntime, Any]]:
        """For each kind of upper layers a runtime and the passages that it keeps."""
        fitted = fit_codec(codec, self.states.select(np.arange(min(200, len(self.states)))))
        encoded = fitted.encode(self.states)
        made = {
            kind: CudaRuntime(model, fitted, device=self.bench.device)
            for kind, model in self.models.items()
        }
        return {kind: (runtime, runtime.keep(encoded)) for kind, runtime in made.items()}

    def rerank(self, runtime: CudaRuntime, kept: Any, top: int) -> Callable[[], list[str]]:
        """Query text in, ids in ranked order out; each call another query and other passages."""
        draw, queries = np.random.default_rng(top), cycle(self.texts.queries)
        names = np.asarray(self.texts.ids[: len(kept)])

        def run() -> list[str]:
            rows = draw.choice(len(kept), top, replace=False)
            states = encode_texts(runtime, "query", [runtime.tokenizer.query(next(queries))]).states
            logits = cross.score(runtime, states, kept.select(rows), ("rank",))["rank"]
            order = np.argsort(-logits.values[:, 0], kind="stable")
            return names[rows[order]].tolist()

        return run

    def crossing(self, runtime: CudaRuntime, kept: Any, top: int) -> Callable[[], Any]:
        """The cross component alone, on a query that is encoded already."""
        ids = [runtime.tokenizer.query(self.texts.queries[0])]
        states = encode_texts(runtime, "query", ids).states
        some = kept.select(np.random.default_rng(0).choice(len(kept), top, replace=False))
        return lambda: cross.score(runtime, states, some, ("rank",))


# Ours ---------------------------------------------------------------------------------------------


def ours(bench: Bench, subject: Subject) -> dict[str, Any]:
    """Cross component and whole rerank for every codec, kind and number of candidates, beside their floor."""
    found: dict[str, Any] = {}
    for codec in subject.codecs:
        made = subject.runtimes(codec)
        works: Runs = {}
        for kind, (runtime, kept) in made.items():
            for top in bench.tops:
                works[f"cross {top} {kind}"] = subject.crossing(runtime, kept, top)
                works[f"rerank {top} {kind}"] = subject.rerank(runtime, kept, top)
        found[codec] = times = bench.clock.compare(works, rounds=bench.rounds, warm=4)
        for kind in KINDS:
            for top in bench.tops:
                add_rates(bench, times[f"cross {top} {kind}"], subject.shape, kind, top)
    return found


def add_rates(bench: Bench, times: dict[str, float], shape: Shape, kind: str, top: int) -> None:
    """The arithmetic of a run beside its time, and how near it came to the ceiling."""
    one_way, best = kind == "one-way", bench.results["ceilings"]["tflops"]
    flops = top * query_flops(shape, QUERY_TOKENS, PASSAGE_TOKENS, one_way=one_way)
    rate = flops / times["device_ms"] / 1e9
    times |= {"gflop": round(flops / 1e9, 2), "floor_ms": round(flops / best / 1e9, 4)}
    times |= {"tflops": round(rate, 2), "share_of_ceiling": round(rate / best, 4)}


# What it is compared with -------------------------------------------------------------------------


def ceilings(clock: Clock, *, size: int) -> dict[str, float]:
    """What the device reaches at best: bf16 matrix products on random data, and copies."""
    a, b = (torch.randn(size, size, device=clock.device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.empty(size * size * 16, dtype=torch.bfloat16, device=clock.device).normal_()
    target = torch.empty_like(source)
    works: Runs = {"product": lambda: torch.mm(a, b), "copy": lambda: target.copy_(source)}
    times = {name: t["device_ms"] for name, t in clock.compare(works, rounds=20).items()}
    return {
        "tflops": round(2 * size**3 / times["product"] / 1e9, 3),
        "copy_gb_s": round(2 * source.numel() * 2 / times["copy"] / 1e6, 1),
    }


class Joint:
    """The checkpoint in transformers: bf16, SDPA, no mask since nothing is padded."""

    def __init__(self, subject: Subject, top: int) -> None:
        from transformers import AutoModelForSequenceClassification

        device, tokenizer = subject.bench.device, subject.models["exact"].tokenizer
        net = AutoModelForSequenceClassification.from_pretrained(
            subject.folder, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
        self.net = net.to(device).eval()
        query = tokenizer.query(subject.texts.queries[0])
        passages = [w[0].ids for w in tokenizer.windows(subject.texts.passages[:top])]
        ids = np.stack([np.concatenate([query, p]) for p in passages]).astype(np.int64)
        assert ids.shape == (top, QUERY_TOKENS + PASSAGE_TOKENS)
        self.ids = torch.from_numpy(ids).to(device)
        self.types = torch.zeros_like(self.ids)
        self.types[:, len(query) :] = 1

    @torch.inference_mode()
    def forward(self, batch: int) -> torch.Tensor:
        """Logits of all pairs, `batch` at a time."""
        parts = zip(self.ids.split(batch), self.types.split(batch), strict=True)
        return torch.cat([self.net(input_ids=i, token_type_ids=t).logits for i, t in parts])


def joint(bench: Bench, subject: Subject, *, compiled: bool) -> dict[str, Any]:
    """The joint forward alone, eager at several batch sizes, and compiled at the best of them."""
    top, rounds = bench.tops[-1], max(2, bench.rounds // 3)
    model = Joint(subject, top)
    sizes = {f"eager {batch}": batch for batch in (top // 8, top // 4, top)}
    works: Runs = {name: lambda b=batch: model.forward(b) for name, batch in sizes.items()}
    found = bench.clock.compare(works, rounds=rounds)
    if compiled:
        batch = sizes[min(found, key=lambda name: found[name]["device_ms"])]
        model.net.compile()
        work: Runs = {f"compiled {batch}": lambda: model.forward(batch)}
        found |= bench.clock.compare(work, rounds=rounds)
        plain = TorchRuntime(Model.split(subject.folder, at=subject.shape.split))
        plain.model.to(bench.device, torch.bfloat16)
        states = encode_texts(plain, "query", [plain.tokenizer.query(subject.texts.queries[0])])
        some = subject.states.select(np.arange(top))
        work = {"cross in plain torch": lambda: plain.cross(states.states, some, ("rank",))}
        found |= bench.clock.compare(work, rounds=2, warm=1)
    flops = top * joint_flops(subject.shape, QUERY_TOKENS + PASSAGE_TOKENS)
    for times in found.values():
        times["tflops"] = round(flops / times["device_ms"] / 1e9, 2)
    return found


def peer(
    bench: Bench, subject: Subject, *, compiled: bool = False, sizes: tuple[int, ...] = ()
) -> dict[str, Any]:
    """`CrossEncoder` from texts to ranking, over batch sizes."""
    _, few, top = bench.tops
    given = replace(subject.texts, passages=subject.texts.passages[:top])
    made = cross_encoder(subject.folder, given, bench.clock.device, compiled=compiled)
    sizes = sizes or ((256,) if compiled else (32, 64, 128, 256, 512))
    query = subject.texts.queries[0]

    def ranked(count: int, batch: int) -> Callable[[], list[str]]:
        return lambda: replace(made, batch=batch).rank(query, count, count)

    works: Runs = {
        f"rerank {top} at {n}": ranked(top, n) for n in (sizes if not bench.smoke else (8,))
    }
    works[f"rerank {few} at {few}"] = ranked(few, few)
    return bench.clock.compare(works, rounds=2 if bench.smoke else 3, warm=1)


def other(bench: Bench, subject: Subject) -> dict[str, Any]:
    """Another shape: our side in full, the joint forward eager, CrossEncoder at two batch sizes."""
    return {
        "ours": ours(bench, subject),
        "joint": joint(bench, subject, compiled=False),
        "CrossEncoder": peer(bench, subject, sizes=(128, 256)),
    }


def memory(bench: Bench, subject: Subject) -> dict[str, Any]:
    """Peak allocation of a rerank: the joint model in one batch and in small ones, and ours."""
    found: dict[str, Any] = {}
    fitted = fit_codec(subject.codecs[0], subject.states.select(np.arange(bench.tops[1])))

    def kept(kind: str, encoded: Any) -> Callable[[], Any]:
        runtime = CudaRuntime(subject.models[kind], fitted, device=bench.device)
        return subject.rerank(runtime, runtime.keep(encoded), len(encoded))

    for top in bench.tops[1:]:
        encoded = fitted.encode(subject.states.select(np.arange(top)))
        for batch in sorted({min(top, 128), top}):
            found[f"joint {top}, {batch} at a time"] = peak(
                bench.clock.device,
                lambda t=top: Joint(subject, t),
                lambda made, b=batch: made.forward(b),
            )
        for kind in KINDS:
            found[f"rerank {top} {kind}, states included"] = peak(
                bench.clock.device, lambda k=kind, e=encoded: kept(k, e), lambda run: run()
            )
    return found


def peak(device: str, make: Callable[[], Any], use: Callable[[Any], Any]) -> dict[str, float]:
    """Megabytes that a thing made and used takes at most, and those it holds at rest."""
    gc.collect()
    before = in_use(device)
    thing = make()
    use(thing)
    reset_peak(device)
    rest = in_use(device) - before
    use(thing)
    most = peak_since(device) - before
    return {"peak_mb": round(most / 2**20, 1), "at_rest_mb": round(rest / 2**20, 1)}


if __name__ == "__main__":
    main()
