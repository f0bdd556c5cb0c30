"""Reranking on one GPU against what users run today: same weights, same texts, one run.

    python benchmarks/gpu_rerank.py --output results/

Weights are random, in the shapes of MiniLM-L6, MiniLM-L12, BERT-base and BERT-large; 20-token queries,
150-token passages. The states of the passages lie in GPU memory, `int8` or `project:W/4+int8`. Every section
is apart: one that fails says why and stops nothing. `--smoke` runs all of it on a CPU in a tiny size.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gpu_checks
import gpu_steps
from decoupled.index.encode import encode_texts
from decoupled.model.codec import fit_codec
from decoupled.model.model import Model
from decoupled.runtime.cuda.runtime import CudaRuntime
from decoupled.runtime.torch import TorchRuntime
from gpu_clock import Clock, ceilings
from gpu_peers import Joint, cross_encoder
from gpu_setup import (
    PASSAGE_TOKENS,
    QUERY_TOKENS,
    SHAPES,
    TINY,
    Shape,
    cross_bytes,
    cross_flops,
    joint_flops,
)
from gpu_subject import Bench, Subject
from gpu_table import machine, short_table

KINDS = ("exact", "one-way")


def main() -> None:
    """Every section in turn, then a short table."""
    args = arguments()
    device = torch.device("cpu" if args.smoke else "cuda")
    torch.set_grad_enabled(False)
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, device, Clock(device), Path(folder))
        size = 256 if args.smoke else 8192
        bench.section("ceilings", lambda: ceilings(bench.clock, size=size))
        bench.section("checks", lambda: gpu_checks.verify(device, smoke=args.smoke))
        shapes = {"BERT-base": TINY, "MiniLM-L6": TINY} if args.smoke else SHAPES
        subject = Subject(bench, "BERT-base", shapes["BERT-base"])
        bench.section("BERT-base", lambda: ours(bench, subject))
        bench.section(
            "BERT-base joint", lambda: joint(bench, subject, compiled=not args.no_compile)
        )
        bench.section("BERT-base CrossEncoder", lambda: peers(bench, subject, compiled=False))
        bench.section("memory", lambda: memory(bench, subject))
        bench.section("profile", lambda: profile(bench, subject))
        bench.section("steps", lambda: gpu_steps.measure(bench.clock, subject.shape, bench.rounds))
        bench.section("chunks", lambda: chunk_sizes(bench, subject), optional=True)
        for name, shape in shapes.items():
            if name != "BERT-base":
                bench.section(name, lambda n=name, s=shape: other(bench, n, s), optional=True)
        if not args.no_compile:
            bench.section(
                "BERT-base CrossEncoder compiled",
                lambda: peers(bench, subject, compiled=True),
                optional=True,
            )
        print(f"\n{bench.elapsed:.0f} s in all; {machine(device)}\n")
        print(short_table(bench.results))


def quiet() -> None:
    """No progress bars of checkpoints that are written and read: they would bury the results."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Reranking on one GPU, against the joint model.")
    parser.add_argument("--output", type=Path, required=True, help="folder for JSON and profile")
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU: does it run?")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--seconds", type=float, default=180, help="start nothing optional later")
    parser.add_argument("--commit", help="what to note where there is no git")
    return parser.parse_args()


def ours(bench: Bench, subject: Subject) -> dict[str, Any]:
    """Cross component and whole rerank, for every codec, kind and number of candidates."""
    found: dict[str, Any] = {}
    for codec in subject.codec_names():
        made = subject.runtimes(codec=codec)
        works: dict[str, Callable[[], Any]] = {}
        for kind, (runtime, kept) in made.items():
            for top in bench.tops:
                works[f"cross {top} {kind}"] = subject.crossing(runtime, kept, top)
                works[f"rerank {top} {kind}"] = subject.rerank(runtime, kept, top)
        times = bench.clock.compare(works, rounds=bench.rounds, warm=4)
        token_bytes = made["exact"][0].codec.bytes_per_token
        for kind in KINDS:
            for top in bench.tops:
                add_rates(
                    bench, times[f"cross {top} {kind}"], subject, kind, codec, top, token_bytes
                )
        found[codec] = times
    return found


def add_rates(
    bench: Bench,
    times: dict[str, float],
    subject: Subject,
    kind: str,
    codec: str,
    top: int,
    token_bytes: int,
) -> None:
    """The floor of the work and how near it was come, beside the times."""
    spec = subject.models[kind].spec
    width = subject.shape.code_width if codec.startswith("project") else None
    flops = cross_flops(spec, top, code_width=width)
    moved = cross_bytes(spec, top, token_bytes=token_bytes)
    best = bench.results.get("ceilings", {})
    times["gflop"] = round(flops / 1e9, 2)
    times["tflops"] = round(flops / times["device_ms"] / 1e9, 2)
    if "tflops" in best:
        times["floor_ms"] = round(
            max(flops / best["tflops"] / 1e9, moved / best["copy_gb_s"] / 1e6), 4
        )
        times["share_of_ceiling"] = round(times["tflops"] / best["tflops"], 4)


def joint(bench: Bench, subject: Subject, *, compiled: bool) -> dict[str, Any]:
    """The joint forward alone, eager at several batch sizes, and compiled at the best of them."""
    top = bench.tops[-1]
    model = Joint(subject.folder, bench.device, torch.bfloat16)
    inputs = model.inputs(subject.exact.tokenizer, subject.queries[0], subject.passages[:top])
    assert inputs["input_ids"].shape == (top, QUERY_TOKENS + PASSAGE_TOKENS)
    works = {
        f"eager {batch}": lambda b=batch: model.forward(inputs, b)
        for batch in (top // 8, top // 4, top)
    }
    found: dict[str, Any] = bench.clock.compare(works, rounds=max(2, bench.rounds // 3))
    best = min(found, key=lambda name: found[name]["device_ms"])
    batch = int(best.split()[1])
    if compiled:
        model.compile()
        work = {f"compiled {batch}": lambda: model.forward(inputs, batch)}
        found |= bench.clock.compare(work, rounds=max(2, bench.rounds // 3))
        reference = TorchRuntime(Model.split(subject.folder, at=subject.shape.split))
        reference.model.to(bench.device, torch.bfloat16)
        query = subject.queries[0]
        ids = [reference.tokenizer.query(query)]
        states = encode_texts(reference, "query", ids).states
        some = subject.states.select(np.arange(top))
        work = {"cross in plain torch": lambda: reference.cross(states, some, ("rank",))}
        found |= bench.clock.compare(work, rounds=2, warm=1)
    flops = joint_flops(subject.exact.spec, QUERY_TOKENS + PASSAGE_TOKENS, top)
    for times in found.values():
        times["tflops"] = round(flops / times["device_ms"] / 1e9, 2)
    return found


def peers(bench: Bench, subject: Subject, *, compiled: bool) -> dict[str, Any]:
    """`CrossEncoder` from texts to ranking, over batch sizes."""
    rerank = cross_encoder(subject.folder, bench.device, torch.bfloat16, compiled=compiled)
    top = bench.tops[-1]
    sizes = (4, 8) if bench.smoke else (256,) if compiled else (32, 64, 128, 256, 512)
    query, passages = subject.queries[0], subject.passages
    works = {
        f"rerank {top} at {size}": lambda s=size: rerank(query, passages[:top], s) for size in sizes
    }
    if not compiled:
        few = bench.tops[1]
        works[f"rerank {few} at {few}"] = lambda: rerank(query, passages[:few], few)
    return bench.clock.compare(works, rounds=2 if bench.smoke else 3, warm=1)


def memory(bench: Bench, subject: Subject) -> dict[str, Any]:
    """Peak allocation of a rerank: the joint model in one batch and in small ones, and ours."""
    found: dict[str, Any] = {}
    codec = subject.codec_names()[0]
    fitted = fit_codec(codec, subject.states.select(np.arange(min(200, len(subject.states)))))
    for top in bench.tops[1:]:
        encoded = fitted.encode(subject.states.select(np.arange(top)))

        def make_joint(top: int = top) -> tuple[Joint, dict[str, Any]]:
            model = Joint(subject.folder, bench.device, torch.bfloat16)
            texts = subject.passages[:top]
            return model, model.inputs(subject.exact.tokenizer, subject.queries[0], texts)

        for batch in sorted({min(top, 128), top}):
            found[f"joint {top}, {batch} at a time"] = bench.clock.peak(
                make_joint, lambda made, b=batch: made[0].forward(made[1], b)
            )
        for kind in KINDS:

            def make_ours(kind: str = kind, encoded: Any = encoded) -> Callable[[], Any]:
                runtime = CudaRuntime(subject.models[kind], fitted, device=bench.device)
                kept = runtime.keep(encoded)
                return subject.rerank(runtime, kept, len(kept))

            found[f"rerank {top} {kind}, states included"] = bench.clock.peak(
                make_ours, lambda run: run()
            )
    return found


def profile(bench: Bench, subject: Subject) -> dict[str, str]:
    """Where the cross component's time goes, kernel by kernel, in a file."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    activities = [ProfilerActivity.CPU]
    order = "self_cpu_time_total"
    if bench.clock.cuda:
        activities.append(ProfilerActivity.CUDA)
        order = "self_cuda_time_total"
    files = {}
    for codec in subject.codec_names():
        for kind, (runtime, kept) in subject.runtimes(codec=codec).items():
            work = subject.crossing(runtime, kept, bench.tops[-1])
            for _ in range(3):
                work()
            with record(activities=activities) as seen:
                for _ in range(5):
                    work()
                bench.clock.wait()
            name = f"profile-{kind}-{codec.split('+')[0].replace(':', '')}.txt"
            bench.args.output.mkdir(parents=True, exist_ok=True)
            shown_rows = seen.key_averages().table(
                sort_by=order, row_limit=20, max_name_column_width=80
            )
            (bench.args.output / name).write_text(shown_rows, encoding="utf-8")
            files[f"{kind} {codec}"] = name
    return files


def chunk_sizes(bench: Bench, subject: Subject) -> dict[str, Any]:
    """How many rows to give the device at a time."""
    found: dict[str, Any] = {}
    sizes = (50, 400) if bench.smoke else (8448, 16896, 33792, 67584, 135168, 1 << 20)
    for codec in subject.codec_names():
        made = subject.runtimes(codec=codec)
        works = {}
        for kind, (runtime, kept) in made.items():
            work = subject.crossing(runtime, kept, bench.tops[-1])
            for rows in sizes:

                def run(runtime: CudaRuntime = runtime, rows: int = rows, work: Any = work) -> None:
                    usual, runtime.chunk_rows = runtime.chunk_rows, rows
                    work()
                    runtime.chunk_rows = usual

                works[f"{kind} {rows} rows"] = run
        found[codec] = bench.clock.compare(works, rounds=max(2, bench.rounds // 3), warm=2)
    return found


def other(bench: Bench, name: str, shape: Shape) -> dict[str, Any]:
    """Another shape: our side in full, the joint forward eager, CrossEncoder at one batch size."""
    subject = Subject(bench, name, shape)
    found = {"ours": ours(bench, subject), "joint": joint(bench, subject, compiled=False)}
    rerank = cross_encoder(subject.folder, bench.device, torch.bfloat16)
    top = bench.tops[-1]
    texts = subject.passages[:top]
    works = {
        f"rerank {top} at {size}": lambda s=size: rerank(subject.queries[0], texts, s)
        for size in ((8,) if bench.smoke else (128, 256))
    }
    found["CrossEncoder"] = bench.clock.compare(works, rounds=2, warm=1)
    return found


if __name__ == "__main__":
    main()
