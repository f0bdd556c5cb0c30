"""What the GPU benchmark works with: its settings and results so far, and a model of one shape."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench_report import commit
from decoupled.index.encode import encode_texts
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model
from decoupled.model.states import States
from decoupled.runtime.cuda.runtime import CudaRuntime
from decoupled.search import cross
from gpu_clock import Clock
from gpu_setup import Shape, Texts, one_way, save_checkpoint
from gpu_table import machine, shown


@dataclass
class Bench:
    """Settings, the clock, and what was found so far, written down after every section."""

    args: argparse.Namespace
    device: torch.device
    clock: Clock
    folder: Path
    results: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    @property
    def smoke(self) -> bool:
        """A dry run on a CPU?"""
        return self.args.smoke

    @property
    def tops(self) -> tuple[int, ...]:
        """Candidates to rerank."""
        return (4, 8, 16) if self.smoke else (20, 100, 1000)

    @property
    def rounds(self) -> int:
        """Repetitions of what takes milliseconds."""
        return 2 if self.smoke else 15

    @property
    def elapsed(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self.started

    def section(self, name: str, work: Callable[[], Any], *, optional: bool = False) -> None:
        """Run, keep what comes back, write it down; a failure is kept too."""
        if optional and self.elapsed > self.args.seconds:
            print(f"-- {name}: left out, {self.elapsed:.0f} s are gone", flush=True)
            return
        print(f"-- {name} ({self.elapsed:.0f} s)", flush=True)
        try:
            self.results[name] = work()
        except Exception:
            self.results[name] = {"failed": traceback.format_exc()}
            print(traceback.format_exc(), flush=True)
        self.write()

    def write(self) -> None:
        """All results so far, with what is needed to repeat them."""
        report = {
            "command": f"python {' '.join(shown(sys.argv))}",
            "commit": self.args.commit or commit(),
            "machine": machine(self.device),
            "seconds": round(self.elapsed, 1),
            **self.results,
        }
        self.args.output.mkdir(parents=True, exist_ok=True)
        path = self.args.output / "gpu_rerank.json"
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


class Subject:
    """One shape: its checkpoint, its split models, and a corpus of passages on the device."""

    def __init__(self, bench: Bench, name: str, shape: Shape) -> None:
        self.bench, self.name, self.shape = bench, name, shape
        self.folder = save_checkpoint(bench.folder / name, shape)
        self.exact = Model.split(self.folder, at=shape.split)
        self.models = {"exact": self.exact, "one-way": one_way(self.exact)}
        self.texts = Texts()
        self.queries = [self.texts.query() for _ in range(8)]
        self.passages = self.texts.passages(2 * bench.tops[-1])
        self._made: dict[str, dict[str, tuple[CudaRuntime, Any]]] = {}

    @cached_property
    def states(self) -> States:
        """Of all passages, through the runtime itself."""
        runtime = CudaRuntime(self.exact, device=self.bench.device)
        ids = [windows[0].ids for windows in runtime.tokenizer.windows(self.passages)]
        return encode_texts(runtime, "passage", ids).states

    def codec_names(self) -> tuple[str, ...]:
        """Codes that need a matrix, and codes that do not."""
        return f"project:{self.shape.code_width}+int8", "int8"

    def runtimes(self, *, codec: str) -> dict[str, tuple[CudaRuntime, Any]]:
        """For each kind of upper layers a runtime and the passages that it keeps; made once."""
        if codec in self._made:
            return self._made[codec]
        some = self.states.select(np.arange(min(200, len(self.states))))
        fitted = fit_codec(codec, some)
        encoded = fitted.encode(self.states)
        found = {}
        for kind, model in self.models.items():
            runtime = CudaRuntime(model, fitted, device=self.bench.device)
            found[kind] = runtime, runtime.keep(encoded)
        self._made[codec] = found
        return found

    def rerank(self, runtime: CudaRuntime, kept: Any, top: int) -> Callable[[], list[str]]:
        """Query text in, ids in ranked order out; each call another query and other passages."""
        draw = np.random.default_rng(top)
        names = np.asarray([f"p{n}" for n in range(len(kept))])
        calls = iter(range(10**9))

        def run() -> list[str]:
            query = self.queries[next(calls) % len(self.queries)]
            rows = draw.choice(len(kept), top, replace=False)
            ids = [runtime.tokenizer.query(query)]
            states = encode_texts(runtime, "query", ids).states
            logits = cross.score(runtime, states, kept.select(rows), ("rank",))["rank"]
            order = np.argsort(-logits.values[:, 0], kind="stable")
            return names[rows[order]].tolist()

        return run

    def crossing(self, runtime: CudaRuntime, kept: Any, top: int) -> Callable[[], Any]:
        """The cross component alone, on a query that is encoded already."""
        ids = [runtime.tokenizer.query(self.queries[0])]
        states = encode_texts(runtime, "query", ids).states
        some = kept.select(np.random.default_rng(0).choice(len(kept), top, replace=False))
        return lambda: cross.score(runtime, states, some, ("rank",))
