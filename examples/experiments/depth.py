"""Adaptive depth where no late interaction stands in front: layers run against loss, by rule.

    python examples/experiments/depth.py --data DATA --tasks nli squad --at 1 --json depth.json

Per task: the encoder of the bundled model learns the task jointly, is split at layer --at and distilled, and
gets exits after every cross layer but the last, trained on the frozen model (`alone`) or with all of it
(`whole`). Thresholds are chosen on a twentieth of the training data for a loss of 0, 0.5, 1 and 2 points
there; the figures are of the test set, read pair by pair as an engine does. `layers_run` is the share of the
cross layers. `--bundled` takes the bundled model as it is and trains its exits alone: minutes on a CPU.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from presets import DATASETS, PRESETS, Place, examples

from decoupled.lab.script import options, typed, write_report
from decoupled.methods.exits.depth import DEPTH, AdaptiveRuntime, Depth, calibrated, signals
from decoupled.methods.exits.model import with_exits
from decoupled.model.folder import starter_model
from decoupled.model.model import Model
from decoupled.train.data.batches import Batches
from decoupled.train.data.tasks import TASKS
from decoupled.train.evaluate import evaluate_examples
from decoupled.train.recipe import DISTILL, PLAIN, override
from decoupled.train.run import Data, Setting, train_model, with_head

MOST = (0.0, 0.005, 0.01, 0.02)
"""Losses that are allowed on the pairs that choose the thresholds."""


def main() -> None:
    """Every task in turn."""
    args = options(
        __doc__,
        data=Path("data"),
        tasks=[str],
        at=1,
        epochs=3.0,
        batch=128,
        lr=3e-4,
        limit=int,
        test=1000,
        seed=0,
        bundled=False,
    )
    results: dict[str, Any] = {"kind": "depth", "at": args.at, "tasks": {}}
    for name in args.tasks or ["nli", "squad"]:
        results["tasks"][name] = one_task(args, name)
        write_report(args, results)


def one_task(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Figures of every way to train exits and of every rule."""
    work = args.work or Path("build/depth")
    place = Place(
        data=args.data, base=starter_model(), cache=work, command=typed(), limit=args.limit
    )
    task = TASKS[DATASETS[name]["task"]]
    start = with_head(place.bare(Model.load(starter_model()), name), task, args.seed)
    train, test = (examples(place, name, part, start.tokenizer) for part in ("train", "test"))
    train, tune = train.divide(0.05, seed=0)
    test = test.select(np.random.default_rng(0).permutation(test.groups)[: args.test])
    budget = {**PRESETS["sets"]["budget"], "optimiser.batch": args.batch, "optimiser.lr": args.lr}
    budget |= {"optimiser.epochs": args.epochs, "seed": args.seed}
    budget |= {"precision": "bf16" if torch.cuda.is_available() else "fp32"}
    fit = partial(train_model, data=Data(task=task, train=train), setting=Setting())
    if args.bundled:
        split = Model.load(starter_model())
    else:
        joint, _ = fit(start, recipe=override(PLAIN, budget))
        split = Model.split(joint, at=args.at)
        split, _ = fit(split, recipe=override(DISTILL, budget), teacher=joint)
    with_all = with_exits(split, (task.head,), halts=True)
    found: dict[str, Any] = {}
    for how in ("alone",) if args.bundled else ("alone", "whole"):
        changes = budget | {"whole": how == "whole", "optimiser.epochs": args.epochs / 3}
        changes |= {"optimiser.lr": args.lr if how == "whole" else 3e-3}
        model = fit(with_all, recipe=override(DEPTH, changes))[0]
        sure, halts, right = signals(model.net, Batches.of(tune, model.spec, model.device), task)
        rules = {f"layer {e.layer}": Depth(rule="layer", layer=e.layer) for e in model.spec.exits}
        rules["all"] = Depth(rule="layer", layer=len(model.spec.layers))
        for most in MOST:
            rules[f"confidence {most}"] = calibrated("confidence", sure, right, most)
            assert halts is not None
            rules[f"halt {most}"] = calibrated("halt", halts, right, most)
        found[how] = {}
        for rule, depth in rules.items():
            runtime = AdaptiveRuntime(model, depth)
            metrics = evaluate_examples(runtime, test, task)
            metrics |= {"exits": runtime.shares, "thresholds": depth.thresholds}
            found[how][rule] = metrics
    return {"head": task.head, "pairs": [len(train), len(tune), len(test)], **found}


if __name__ == "__main__":
    main()
