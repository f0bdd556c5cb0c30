"""What kinds for long texts and for several texts bring: SQuAD as tasks that they are made for.

    python examples/experiments/kinds.py windows --data DATA --out OUT --kinds plain compressive --seeds 0 1 2
    python examples/experiments/kinds.py collect --out OUT --json kinds_tasks.json

DATA holds train-v1.1.json.xz and dev-v1.1.json.xz of SQuAD. Every kind begins with the bundled model and is
trained with the same steps of the same batches, or with --steps 0 judged as it is. A kind is `plain`, what
the task itself offers, or methods as `shrink -m` takes them, joined by `+`. One JSON a run is left in OUT;
`collect` makes one file of them.

windows   paragraphs in windows of 64 tokens; F1 also of answers whose sentence begins in the window before.
          `overlap`: each window begins in the middle of the one before; `whole`: 448 tokens in one window
long      as many neighbouring paragraphs of an article in one passage as --tokens hold
tree      neighbouring paragraphs under the title of their article, as one passage of --tokens; with a kind
          `tree` title, paragraphs and sentences are nodes
parses    MNLI: DATA holds mnli-train.jsonl.xz and mnli-test.jsonl.xz, whose rows have a parse as `structure`
tagged    no task: makes these files in OUT, of train.tsv.xz and test.tsv.xz in DATA, with the phrases that
          TextBlob's tagger and chunker find in premises
speed     no task: time and memory of the input component by length, full against hashed attention, and of a
          step of training by depth, plain, recomputed and reversible; up to --longest and --deepest
hops      two-hop questions made of SQuAD by template: "the subject of folder 17" stands for the title of an
          article, and another passage says which subject that is. Of the four passages of a question one has
          the sentence of the answer, one the same sentence about another subject with another answer, and two
          say which folder is whose: without them either answer is as good
"""

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kind_tasks import KIND_TASKS, Found, changed, tagged
from torch.nn.attention import SDPBackend, sdpa_kernel

from decoupled.lab.bench.report import commit
from decoupled.lab.script import options, typed, write_report
from decoupled.methods.names import parse
from decoupled.model.folder import starter_model
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.train.recipe import Compression, Distillation, Optimiser, Recipe
from decoupled.train.run import Data, train_model


def main() -> None:
    """Every kind with every seed, or one file of what others left."""
    sizes = {"steps": 400, "batch": 32, "dev": 2000, "tokens": 2048, "lr": 5e-5}
    sizes |= {"longest": 16384, "deepest": 24, "repeats": 10}
    given = {"data": Path("data"), "out": Path("build/kinds"), "device": "cuda", **sizes}
    lists = {"kinds": ["plain"], "seeds": [0]}
    args = options(__doc__, *KIND_TASKS, "tagged", "speed", "collect", **given, **lists)
    if args.what == "speed":
        write_report(args, {"lengths": lengths(args), "depths": depths(args)})
        return
    if args.what == "collect":
        rows = [json.loads(path.read_text()) for path in sorted(args.out.glob("*.json"))]
        args.json.write_text(json.dumps({"runs": rows}, indent=1) + "\n", encoding="utf-8")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    if args.what == "tagged":
        tagged(args)
        return
    for seed in args.seeds:
        for kind in args.kinds:
            row = {"task": args.what, "kind": kind, "seed": seed, "command": typed()}
            row |= run(args, kind, seed)
            name = re.sub(r"\W+", "-", f"{args.what}-{args.tokens}-{kind}-{seed}")
            (args.out / f"{name}.json").write_text(json.dumps(row) + "\n", encoding="utf-8")
            print(json.dumps(row), flush=True)


def run(args: Any, kind: str, seed: int) -> Found:
    """Train and judge one kind."""
    task = KIND_TASKS[args.what](args)
    model = task.model(kind).to(args.device)
    if not args.steps:
        return {"tokens": args.tokens, "commit": commit(), "before": task.score(model)}
    train = task.examples(model, seed)
    half = args.device == "cuda"
    optimiser = Optimiser(lr=args.lr, epochs=1, batch=max(1, args.batch // train.per_group))
    recipe = Recipe(
        optimiser=optimiser,
        precision="bf16" if half else "fp32",
        seed=seed,
        # The projection of the bundled model stays as it is.
        settings=Distillation(projection=Compression(phases=1, start="random")),
    )
    drawn = np.random.default_rng(seed).permutation(train.groups)
    train = train.select(drawn[: args.steps * optimiser.batch])
    began = time.perf_counter()
    if half:
        torch.cuda.reset_peak_memory_stats()
    trained, _ = train_model(model, Data(task=task.task, train=train, tune=None), recipe)
    seconds = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() >> 20 if half else None
    sizes = {"steps": args.steps, "batch": args.batch, "tokens": args.tokens}
    cost = {"seconds": round(seconds, 1), "peak_mib": peak, "commit": commit()}
    return {**sizes, **cost, "after": task.score(trained)}


# Speed --------------------------------------------------------------------------------------------


def lengths(args: Any) -> list[Found]:
    """The layers below the split over one text of random tokens."""
    sizes = [n for n in (512, 1024, 2048, 4096, 8192, 16384) if n <= args.longest]
    base = changed(Model.load(starter_model()), f"lengthen:tokens={sizes[-1] + 8}")
    fused = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    kinds = {
        "full": "",
        "full, eager": "",
        **{f"lsh rounds={n}": f"lsh:rounds={n}" for n in (1, 2, 4)},
    }
    rows = []
    for name, methods in kinds.items():
        net = (changed(base, methods) if methods else base).net.to(args.device)
        kernels = [SDPBackend.MATH] if "eager" in name else fused
        for tokens in sizes:
            row: Found = {"attention": name, "tokens": tokens}
            for part in ("encode", "train"):
                net.train(part == "train")
                with sdpa_kernel(kernels):
                    ms, mb = measured(args, net, (1, tokens), net.spec.split, train=part == "train")
                row |= {f"{part}_ms": ms, f"{part}_mb": mb}
            rows.append(row)
    return rows


def depths(args: Any) -> list[Found]:
    """A step over 16 texts of 448 random tokens, by the number of layers."""
    base, rows = Model.split(Model.load(starter_model()), at=0), []
    for depth in (n for n in (3, 6, 12, 24) if n <= args.deepest):
        layers = tuple(base.spec.layers[n % 6].in_slot(n) for n in range(depth))
        encoder = replace(base.spec.encoder, layers=layers)
        plain = base.rebuild(replace(base.spec, encoder=encoder, projection=None, vector=None), {})
        for name in ("plain", "checkpoint-gradients", "reversible"):
            made = changed(plain, name) if name == "reversible" else plain
            net = made.net.to(args.device).train()
            method = parse(name if name == "checkpoint-gradients" else "chunk-ffn")
            with method.hook(net, None):
                ms, mb = measured(args, net, (16, 448), depth, train=True)
            rows.append({"layers": depth, "training": name, "ms": ms, "mb": mb})
            net.to("cpu")
    return rows


def measured(
    args: Any, net: PairEncoder, shape: tuple[int, int], layers: int, *, train: bool
) -> tuple[float, float]:
    """Milliseconds and MiB of reading texts, or of a step."""
    cuda = args.device == "cuda"
    ids = torch.randint(1000, 20000, shape, device=args.device)
    real = torch.ones_like(ids, dtype=torch.bool)

    def work() -> None:
        with (
            torch.inference_mode(not train),
            torch.autocast(args.device, torch.bfloat16, enabled=cuda),
        ):
            states = net.hidden("passage", ids, real, split=layers, padded=False)
            if train:
                states.float().square().mean().backward()
        net.zero_grad(set_to_none=True)

    work()
    work()
    before = 0
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    began = time.perf_counter()
    for _ in range(args.repeats):
        work()
    if cuda:
        torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20 if cuda else 0.0
    return (time.perf_counter() - began) * 1e3 / args.repeats, peak


if __name__ == "__main__":
    main()
