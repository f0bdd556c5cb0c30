r"""Train the starter model: a joint teacher that ranks and reads, then its split, compressed student.

    python benchmarks/starter.py --base MINILM --train train-v1.1.json --dev dev-v1.1.json \
        --mined mined.npz --out OUT

`mined.npz` comes from `mine_candidates.py`. About ten minutes on one H200. Writes OUT/starter (the model, its
weights in parts under 15 MiB) and OUT/starter.json (what was measured).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_report import commit
from decoupled import Model
from decoupled.train.reader import HEADS, train_reader
from decoupled.train.recipe import READER, READER_STUDENT, Recipe, override
from decoupled.train.reshape import with_projection, with_vector
from starter_figures import read

DEFAULTS = {
    "--split": 3,
    "--projection": 96,
    "--vector": 128,
    "--bits": 8,
    "--teacher-epochs": 3,
    "--epochs": 5,
    "--teacher-negatives": 3,
    "--negatives": 1,  # for each question, other ones each epoch
    "--pairs": 384,  # in a batch
    "--teacher-lr": 2e-4,
    "--lr": 2e-4,
    "--judged": 1000,  # development questions to rank
    "--seed": 0,
}


def main() -> None:
    """Teacher, student, figures, weights."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    base = Model.open(args.base)
    questions, judges = read(args, base)
    say(started, f"{len(questions.texts)} passages, {len(questions.pairs)} questions")
    figures: dict[str, Any] = {"arguments": {k: str(v) for k, v in vars(args).items()}}
    figures["commit"] = commit()

    whole = Model.split(base.with_heads(*HEADS, seed=args.seed), at=0)
    groups = questions.groups(args.teacher_epochs, args.teacher_negatives, seed=args.seed)
    recipe = settled(READER, args.teacher_lr, args.teacher_negatives, args)
    begun = time.perf_counter()
    teacher = train_reader(whole, questions, groups, recipe=recipe, progress=print)
    taught = time.perf_counter() - begun
    figures["teacher"] = judges.measure(teacher)
    say(started, f"teacher {figures['teacher']}")

    if args.deadline:
        # A student's pair costs its teacher's and a third: take as many epochs as there is time for.
        share = (1 + args.negatives) / (1 + args.teacher_negatives)
        left = args.deadline - (time.perf_counter() - started) - 75
        fit = int(left / (1.35 * taught * share / args.teacher_epochs))
        args.epochs = max(1, min(args.epochs, fit))
        figures["arguments"]["epochs"] = str(args.epochs)
        say(started, f"{args.epochs} epochs fit")
    split = with_vector(Model.split(teacher, at=args.split), args.vector)
    start = with_projection(split, args.projection)
    groups = questions.groups(
        args.epochs, args.negatives, first=args.teacher_epochs, seed=args.seed
    )
    recipe = settled(READER_STUDENT, args.lr, args.negatives, args)
    recipe = override(recipe, {"squeeze.bits": args.bits})
    student = train_reader(
        start, questions, groups, teacher=teacher, retriever=base, recipe=recipe, progress=print
    )
    history = [
        {"did": "read", "from": "all-MiniLM-L6-v2"},
        {"did": "train", "by": "benchmarks/starter.py", **figures["arguments"]},
    ]
    Model(student.net, student.tokenizer, history).save(args.out / "starter", compact=True)
    figures["student"] = judges.measure(student)
    say(started, f"student {figures['student']}")
    figures["seconds"] = round(time.perf_counter() - started, 1)
    (args.out / "starter.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")


def settled(recipe: Recipe, lr: float, negatives: int, args: argparse.Namespace) -> Recipe:
    """The recipe at this rate, with batches of so many pairs."""
    batch = max(1, args.pairs // (1 + negatives))
    optimiser = replace(recipe.optimiser, lr=lr, batch=batch)
    return replace(recipe, optimiser=optimiser, seed=args.seed)


def arguments() -> argparse.Namespace:
    """What can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--base", "--train", "--dev", "--mined", "--out"):
        parser.add_argument(name, type=Path, required=True)
    for name, value in DEFAULTS.items():
        parser.add_argument(name, type=type(value), default=value)
    parser.add_argument("--limit", type=int, help="training questions, to try it out")
    parser.add_argument("--deadline", type=float, help="seconds to be done in")
    return parser.parse_args()


def say(started: float, message: str) -> None:
    """A line of progress."""
    print(f"{time.perf_counter() - started:7.1f} s  {message}", flush=True)


if __name__ == "__main__":
    main()
