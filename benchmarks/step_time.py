"""Time of one training step, eager and compiled, by batch size; and the kernels that it spends it in.

python benchmarks/step_time.py --data DATA --base MINILM --cache build/train --output OUT
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

from decoupled.model.model import Model
from decoupled.train.data.batches import Batches
from decoupled.train.loop import accelerator_for, optimiser_for
from decoupled.train.objectives.distill import Guide, Objective
from decoupled.train.recipe import recipe_named
from decoupled.train.run import compile_layers, with_head
from task_data import opened, prepared

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> None:
    """Measure, print a table, write JSON."""
    args = arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    base, task = opened(args.base, "squad", args.smoke)
    examples = prepared(
        "squad", "train", data=args.data, base=args.base, kept=args.cache, limit=args.limit
    )
    rows = []
    for compiled in (False, True):
        for size in args.batch:
            rows.append(measure(args, base, task, examples, size, compiled))
            print(json.dumps(rows[-1]), flush=True)
    (args.output / "step_time.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


def measure(args, base: Model, task, examples, size: int, compiled: bool) -> dict[str, object]:
    """Milliseconds a step of a distilled k=3 student, after warm-up."""
    recipe = recipe_named("deformer")
    recipe = replace(
        recipe,
        precision="bf16" if DEVICE.type == "cuda" else "fp32",
        optimiser=replace(recipe.optimiser, batch=size),
    )
    accelerator = accelerator_for(recipe)
    teacher = with_head(base, task, 0).to(DEVICE)
    student = Model.split(teacher, at=3).to(DEVICE)
    for net in (teacher.net, student.net) if compiled else ():
        compile_layers(net)
    student.net.train()
    objective = Objective(student.net, task, recipe, Guide(teacher=teacher.net.eval()))
    raw = optimiser_for(student.net, recipe.optimiser, DEVICE)
    module, optimiser = accelerator.prepare(objective, raw)
    batches = Batches(examples, DEVICE, pad=base.spec.text.pad)
    epoch = batches.epoch(0, 0, size=size, tokens=None)[: args.warm + args.steps]

    def step(batch) -> None:
        loss, _ = module(batch)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(student.net.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    begun = time.perf_counter()
    walk = batches.walk(epoch)
    for _ in range(args.warm):
        step(next(walk))
    wait()
    started = time.perf_counter()
    for batch in walk:
        step(batch)
    wait()
    seconds = time.perf_counter() - started
    steps = len(epoch) - args.warm
    tokens = sum(batches.tokens(groups) for groups in epoch[args.warm :])
    profile(args, step, batches.walk(epoch[:4]), f"{size}-{'compiled' if compiled else 'eager'}")
    return {
        "batch": size,
        "compiled": compiled,
        "warm_s": round(started - begun, 1),
        "ms": round(1000 * seconds / steps, 2),
        "tokens_per_s": round(tokens / seconds),
        "recompiles": len(torch._dynamo.utils.compile_times(repr="csv")[1]) if compiled else 0,
    }


def profile(args, step, batches, name: str) -> None:
    """The kernels of a few steps by their time."""
    if DEVICE.type != "cuda":
        return
    kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as watched:
        for batch in batches:
            step(batch)
        wait()
    table = watched.key_averages().table(
        sort_by="self_device_time_total", row_limit=30, max_name_column_width=70
    )
    (args.output / f"profile-{name}.txt").write_text(table, encoding="utf-8")


def wait() -> None:
    """Until the device is done."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def arguments() -> argparse.Namespace:
    """What can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("build/train"))
    parser.add_argument("--output", type=Path, default=Path("build/results"))
    parser.add_argument("--batch", type=int, nargs="+", default=[96, 384])
    parser.add_argument("--warm", type=int, default=12)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--smoke", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
