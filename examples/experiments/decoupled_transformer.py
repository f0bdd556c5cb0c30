"""Decoupled Transformer on SQuAD: joint, split, and split with narrower states, with and without int8.

    python examples/experiments/decoupled_transformer.py --data DATA --base MINILM --seeds 0 1 2 --json OUT

Per seed: the joint model learns from the labels; its split at layer --at learns by the recipe `decoupled`,
as it is and with a projection to a half, a third, a quarter and an eighth of the width. Every model is judged
with its states as they are and as int8 codes. Finished runs are kept in --work and never repeated, and one
that was cut goes on. The JSON is written after every run: F1, its loss against the joint model of the seed
(paired bootstrap), bytes of a passage of 150 tokens, and milliseconds a pair: torch on this machine, 100
passages to a query, all models in turns. --limit reads the first questions of each file alone.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from presets import PRESETS, Place, Run
from torch import Tensor
from worker import execute

from decoupled.lab.script import options, typed, write_report
from decoupled.model.codec.codec import bytes_per_token
from decoupled.model.model import Model
from decoupled.train.loop.forward import autocast, fake_quantise

QUERY_TOKENS, PASSAGE_TOKENS, PASSAGES = 20, 150, 100
SETTINGS = ("at", "epochs", "lr", "batch", "limit")
"""Options that decide a run."""


def main() -> None:
    """Every run that is not finished, then the times."""
    args = options(
        __doc__,
        data=Path("data"),
        base=Path,
        at=3,
        seeds=[int],
        limit=int,
        epochs=3.0,
        lr=4e-4,
        batch=192,
        narrower=[int],
        rounds=20,
    )
    work = args.work or Path("build/decoupled")
    place = Place(
        data=args.data,
        base=args.base,
        cache=work / "-".join(f"{name}-{getattr(args, name)}" for name in SETTINGS),
        command=typed(),
        limit=args.limit,
    )
    models: dict[str, Any] = {}
    for seed in args.seeds or [0]:
        for run in runs(args, place, seed):
            place.folder(run.name).mkdir(parents=True, exist_ok=True)
            result = place.result(run.name) or execute(run, place, log_of(place, run))
            models[run.name] = row(run, result)
            write_report(args, report(args, models))
    first = {name: models[name] for name in models if name.endswith(f"-s{(args.seeds or [0])[0]}")}
    for name, times in milliseconds(place, list(first), args.rounds).items():
        models[name]["ms_a_pair"] = times
    write_report(args, report(args, models))


def runs(args: argparse.Namespace, place: Place, seed: int) -> Iterator[Run]:
    """The runs of a seed, the joint model first."""
    settings = {
        **PRESETS["sets"]["budget"],
        "optimiser.epochs": args.epochs,
        "optimiser.lr": args.lr,
        "optimiser.batch": args.batch,
        "watch.save_every": 200,
        "precision": "bf16" if torch.cuda.is_available() else "fp32",
    }
    joint = f"joint-s{seed}"
    yield Run(name=joint, dataset="squad", set=settings, seed=seed)
    width = Model.open(args.base).spec.encoder.width
    for times in (1, *(args.narrower or (2, 3, 4, 8))):
        yield Run(
            name=f"split-{times}x-s{seed}",
            dataset="squad",
            split=args.at,
            start=joint,
            teacher=joint,
            recipe="decoupled",
            projection=None if times == 1 else width // times,
            bits=(None, 8),
            set=settings,
            seed=seed,
        )


def log_of(place: Place, run: Run) -> Callable[[Any], None]:
    """A function that appends to the log of a run."""

    def log(line: Any) -> None:
        with (place.folder(run.name) / "output.txt").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    return log


def row(run: Run, result: dict[str, Any]) -> dict[str, Any]:
    """What the report says of a run."""
    spec = result["spec"]
    width = run.projection or spec["encoder"]["width"]
    bytes_of = {
        code: bytes_per_token(name, width) * PASSAGE_TOKENS
        for code, name in (("fp", "fp16"), ("int8", "int8"))
        if run.split and code in result["test"]
    }
    return {
        "seed": run.seed,
        "split": run.split,
        "width": width,
        "tables": spec.get("cross_embed", "none"),
        "test": result["test"],
        f"bytes_of_{PASSAGE_TOKENS}_tokens": bytes_of,
        "parameters": result["parameters"],
        "pairs": result["pairs"],
        "steps": result["steps"],
        "train_seconds": result["train_seconds"],
        "recipe": result["recipe"],
    }


def report(args: argparse.Namespace, models: dict[str, Any]) -> dict[str, Any]:
    """The models, and mean and deviation of each over its seeds."""
    by_name: dict[str, dict[str, list[float]]] = {}
    for name, model in models.items():
        for code, metrics in model["test"].items():
            rows = by_name.setdefault(f"{name.rpartition('-s')[0]} {code}", {"f1": [], "lost": []})
            rows["f1"].append(metrics["f1"])
            rows["lost"] += [metrics["lost"]["mean"]] if "lost" in metrics else []
    overall = {
        name: {
            metric: {"mean": np.mean(each), "deviation": np.std(each), "seeds": len(each)}
            for metric, each in rows.items()
            if each
        }
        for name, rows in by_name.items()
    }
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    settings = {name: getattr(args, name) for name in SETTINGS}
    return {"kind": "decoupled", "device": device, **settings, "overall": overall, "models": models}


# Time ---------------------------------------------------------------------------------------------


@torch.inference_mode()
def milliseconds(place: Place, names: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Median milliseconds a pair of each model and code, all of them in turns, round after round."""
    reads = {
        (name, code): read
        for name in names
        for code, read in readers(place.onto_gpu(Model.load(place.folder(name) / "model")))
    }
    times: dict[tuple[str, str], list[float]] = {key: [] for key in reads}
    for number in range(rounds + 3):
        for key, read in reads.items():
            wait()
            begun = time.perf_counter()
            read()
            wait()
            # The first rounds warm up.
            times[key] += [time.perf_counter() - begun] if number >= 3 else []
    found: dict[str, dict[str, float]] = {}
    for (name, code), seconds in times.items():
        found.setdefault(name, {})[code] = round(1e3 * float(np.median(seconds)) / PASSAGES, 5)
    return found


def readers(model: Model) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is timed: joint, all layers of all pairs; split, decoding and the cross layers."""
    net, device = model.net, model.device
    draw = torch.Generator().manual_seed(0)

    def text(count: int, tokens: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(5, model.spec.encoder.embedding.vocab, (count, tokens), generator=draw)
        return ids.to(device), torch.ones(count, tokens, dtype=torch.bool, device=device)

    query, real = text(1, min(QUERY_TOKENS, model.spec.text.query_tokens))
    passage, passage_real = text(PASSAGES, min(PASSAGE_TOKENS, model.spec.text.passage_tokens))
    precision = "bf16" if device.type == "cuda" else "fp32"

    def encoded() -> tuple[Tensor, Tensor]:
        with autocast(device, precision):
            question = net.input("query", query, real)[0].expand(PASSAGES, -1, -1)
            return question, net.input("passage", passage, passage_real, query.shape[1])[0]

    def cross(question: Tensor, states: Tensor) -> Any:
        with autocast(device, precision):
            real_BQ = real.expand(PASSAGES, -1)
            return net.cross(question, real_BQ, states, passage_real, ["span"])

    if not model.spec.split:
        yield "fp", lambda: cross(*encoded())
        return
    question, states = encoded()
    half = states.half()
    yield "fp", lambda: cross(question, half.to(question.dtype))
    rounded = fake_quantise(states, 8).float()
    scale = (rounded.abs().amax(-1, keepdim=True) / 127).clamp(min=6e-8)
    codes = (rounded / scale).round().to(torch.int8)
    yield "int8", lambda: cross(question, (codes * scale).to(question.dtype))


def wait() -> None:
    """Until the GPU, where there is one, has done all that it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
