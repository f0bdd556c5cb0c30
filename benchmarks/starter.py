r"""Train the starter model: a joint teacher that ranks and reads, then its split, compressed student.

    python benchmarks/starter.py --base MINILM --train train-v1.1.json --dev dev-v1.1.json \
        --mined mined.npz --out OUT

BM25's candidates are mined where there is no `mined.npz` yet. About ten minutes on one H200. Writes the model
to OUT/starter and what was measured to OUT/starter.json. `--limit` training
questions are enough to try it out.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_report import commit, options
from decoupled import Model
from decoupled.train.reader import HEADS, train_reader
from decoupled.train.recipe import READER, READER_STUDENT, Recipe, override
from decoupled.train.reshape import with_projection, with_vector
from starter_figures import read

FOLDERS = dict.fromkeys(("base", "train", "dev", "mined", "out"), Path)
DEFAULTS = {"split": 3, "projection": 96, "vector": 128, "bits": 8, "pairs": 384, "judged": 1000}
DEFAULTS |= {"teacher_epochs": 3, "epochs": 5, "teacher_negatives": 3, "negatives": 1, "seed": 0}
DEFAULTS |= {"teacher_lr": 2e-4, "lr": 2e-4}
"""Pairs in a batch, development questions to rank, negatives of a question (other ones each epoch)."""


def main() -> None:
    """Teacher, student, figures, weights."""
    args = options(__doc__, **FOLDERS, **DEFAULTS, limit=int)
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    base = Model.open(args.base)
    questions, judges = read(args, base)
    print(f"{len(questions.texts)} passages, {len(questions.pairs)} questions", flush=True)
    figures: dict[str, Any] = {
        "arguments": {k: str(v) for k, v in vars(args).items() if v is not None}
    }
    figures["commit"] = commit()

    whole = Model.split(base.with_heads(*HEADS, seed=args.seed), at=0)
    groups = questions.groups(args.teacher_epochs, args.teacher_negatives, seed=args.seed)
    recipe = settled(READER, args.teacher_lr, args.teacher_negatives, args)
    teacher = train_reader(whole, questions, groups, recipe=recipe, progress=print)
    figures["teacher"] = judges.measure(teacher)
    print(f"teacher {figures['teacher']}", flush=True)

    split = with_vector(Model.split(teacher, at=args.split), args.vector)
    start, first = with_projection(split, args.projection), args.teacher_epochs
    groups = questions.groups(args.epochs, args.negatives, first=first, seed=args.seed)
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
    print(f"student {figures['student']}", flush=True)
    figures["seconds"] = round(time.perf_counter() - started, 1)
    (args.out / "starter.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")


def settled(recipe: Recipe, lr: float, negatives: int, args: argparse.Namespace) -> Recipe:
    """The recipe at this rate, with batches of so many pairs."""
    batch = max(1, args.pairs // (1 + negatives))
    optimiser = replace(recipe.optimiser, lr=lr, batch=batch)
    return replace(recipe, optimiser=optimiser, seed=args.seed)


if __name__ == "__main__":
    main()
