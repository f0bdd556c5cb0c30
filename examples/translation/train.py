"""Train translators, variants × seeds side by side, and translate the validation and the test set with each.

python examples/translation/train.py --data multi30k --variant base shared+factorised --seed 0 1 2 --out runs
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from beam import Beam, translate
from corpus import Segmentations, learn_tokenizer, read_lines, read_pairs, segmented
from table import EVERY
from tokenizers import Tokenizer
from torch import Tensor, nn
from translator import METHODS, WEIGHTS, Plan, Translator, describe, planned

from decoupled.errors import DecoupledError
from decoupled.lab.bench.report import commit
from decoupled.model.jsonable import to_json
from decoupled.train.data.batches import Batch
from decoupled.train.loop import checkpoint
from decoupled.train.loop.loop import Phase, Report, accelerator_for, fit, suits
from decoupled.train.objectives.base import Objective
from decoupled.train.recipe import Optimiser, Recipe, override

RECIPE = Recipe(
    name="translation",
    optimiser=Optimiser(
        lr=7e-4, epochs=22, tokens=4096, warmup=0.1, decay=0.01, ema=0.998, schedule="cosine"
    ),
)
"""Of the package's loop. Its moving average of the weights does what averaging checkpoints does."""


class NextToken(Objective):
    """Cross-entropy of each target token after those before it, against smoothed labels.

    With `agree`, every pair is read twice, and what dropout makes of it shall differ little (R-Drop): half of
    the divergence in both directions counts so much.
    """

    def __init__(self, student: Translator, *, smoothing: float, agree: float = 0.0) -> None:
        nn.Module.__init__(self)
        self.student, self.smoothing, self.agree = student, smoothing, agree
        self.__dict__["teacher"] = None

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Sources are the queries of the batch, targets its passages; padding counts for nothing."""
        real = batch.passage_real[:, 1:]
        given = (batch.query_ids, batch.query_real, batch.passage_ids[:, :-1])
        after = batch.passage_ids[:, 1:].masked_fill(~real, -100)
        if self.agree:
            *given, after = (torch.cat([x, x]) for x in (*given, after))
        logits = self.student(*given)
        loss = F.cross_entropy(
            logits.flatten(0, 1), after.flatten(), label_smoothing=self.smoothing
        )
        if not self.agree:
            return loss, {}
        divergence = disagreement(*(part[real] for part in logits.chunk(2)))
        return loss + self.agree * divergence, {"task": loss.detach(), "agree": divergence.detach()}


def disagreement(a_NV: Tensor, b_NV: Tensor) -> Tensor:
    """Mean over the rows of half the divergence of two predictions in both directions."""
    a_NV, b_NV = (x.float().log_softmax(-1) for x in (a_NV, b_NV))
    return ((a_NV.exp() - b_NV.exp()) * (a_NV - b_NV)).sum(-1).mean() / 2


def run(args: argparse.Namespace, variant: str, seed: int) -> None:
    """Train one translator, or go on training it; then translate with it."""
    place = folder_of(args, variant, seed)
    device = accelerator_for(Recipe(precision="fp32"), args.device).device
    recipe = override(RECIPE, {**suits(device.type), "seed": seed, **dict(args.set)})
    plan = planned(variant, asked_plan(args))
    told = {"plan": to_json(plan), "limit": args.limit, "languages": args.languages}
    told |= {"smoothing": args.smoothing, "agree": args.agree, "bpe_dropout": args.bpe_dropout}
    checkpoint.same_run(place, told, recipe)
    pairs = read_pairs(args.data, "train", tuple(args.languages))[: args.limit]
    tokenizer = tokenizer_of(place, pairs, plan.vocab)
    torch.manual_seed(seed)
    translator = Translator(describe(replace(plan, vocab=tokenizer.get_vocab_size()))).initialise()
    ways = segmented(tokenizer, pairs, args.bpe_dropout, place / "segments.npz")
    report = train(translator, Segmentations(ways, device), recipe, args, place)
    translator.save(place)
    for name in args.translate:
        texts = read_lines(args.data, name, args.languages[0])[: args.limit]
        beam, tokens = asked_beam(args), args.decode_tokens
        lines = translate(translator.eval(), tokenizer, texts, beam, tokens=tokens)
        (place / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    made = {**told, "variant": variant, "seed": seed, "report": vars(report)}
    made |= {"optimiser": to_json(recipe.optimiser, later=True), "beam": vars(asked_beam(args))}
    made |= outcome(translator, place, device)
    (place / "result.json").write_text(json.dumps(made, indent=1), encoding="utf-8")
    checkpoint.clear(place)
    (place / "segments.npz").unlink()


def outcome(translator: Translator, place: Path, device: torch.device) -> dict[str, Any]:
    """What a translator holds, and where it was made."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "commit": commit(),
        "command": " ".join(["examples/translation/train.py", *sys.argv[1:]]),
        "device": gpu,
        "torch": torch.__version__,
        "vocabulary": translator.spec.target.embedding.vocab,
        "parameters": sum(p.numel() for p in translator.parameters()),
        "matrices": translator.matrices(),
        "bytes": (place / WEIGHTS).stat().st_size,
    }


def train(
    translator: Translator,
    batches: Segmentations,
    recipe: Recipe,
    args: argparse.Namespace,
    place: Path,
) -> Report:
    """With the package's own loop; the translator then holds the averaged weights."""

    def show(line: dict[str, Any]) -> None:
        print(place.name, json.dumps(line), file=sys.stderr, flush=True)

    objective = NextToken(translator, smoothing=args.smoothing, agree=args.agree)
    phase = Phase(objective=objective, batches=batches, recipe=recipe, folder=place, progress=show)
    return fit(phase, accelerator_for(recipe, args.device))


def tokenizer_of(place: Path, pairs: Sequence[tuple[str, str]], vocab: int) -> Tokenizer:
    """That of the run, learnt from both languages the first time."""
    path = place / "tokenizer.json"
    if not path.is_file():
        learn_tokenizer([text for pair in pairs for text in pair], vocab).save(str(path))
    return Tokenizer.from_file(str(path))


def side_by_side(args: argparse.Namespace, runs: list[tuple[str, int]]) -> list[str]:
    """Each run in a process of its own, `--jobs` at a time; the names of those that failed or had no time."""
    given, began = sys.argv[1:], time.monotonic()
    waiting, running, failed = list(runs), {}, []
    while waiting or running:
        if args.within is not None and time.monotonic() - began > 60 * args.within:
            failed += [f"{variant}-{seed}" for variant, seed in waiting]
            waiting.clear()
        while waiting and len(running) < args.jobs:
            variant, seed = waiting.pop(0)
            one = [*given, "--variant", variant, "--seed", str(seed), "--jobs", "0"]
            running[f"{variant}-{seed}"] = subprocess.Popen([sys.executable, __file__, *one])
        time.sleep(0.2)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            failed += [name] if running.pop(name).returncode else []
    return failed


def folder_of(args: argparse.Namespace, variant: str, seed: int) -> Path:
    """Where a run keeps everything."""
    return args.out / f"{variant}-{seed}"


def asked_plan(args: argparse.Namespace) -> Plan:
    """The plan that the methods of a variant begin with."""
    return Plan(
        vocab=args.vocab,
        width=args.width,
        ffn=4 * args.width,
        heads=args.heads,
        layers=(args.layers, args.layers),
        dropout=args.dropout,
    )


def asked_beam(args: argparse.Namespace) -> Beam:
    """How translations are searched for."""
    return Beam(width=args.beam, penalty=args.penalty)


def setting(text: str) -> tuple[str, Any]:
    """`optimiser.lr=1e-3` as a field of the recipe and its value."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def parser() -> argparse.ArgumentParser:
    """The options; `--variant` and `--seed` take several values."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add, plan, beam = made.add_argument, Plan(), Beam()
    add(
        "--data", type=Path, required=True, help="folder with train.en, train.de, val.en … (or .xz)"
    )
    add("--out", type=Path, default=Path("runs"))
    names = f"base, all, or methods joined by +: {', '.join(METHODS)}"
    add("--variant", nargs="+", default=["base"], help=names)
    add("--seed", nargs="+", type=int, default=[0])
    add("--jobs", type=int, default=1, help="runs at a time")
    add("--within", type=float, metavar="MINUTES", help="begin no run after so long")
    add("--languages", nargs=2, default=["en", "de"])
    add(
        "--translate",
        nargs="+",
        default=["val", "test_2016_flickr"],
        help="sets of sentences",
    )
    add("--limit", type=int, help="sentences of each set")
    add("--device", help="cpu leaves a GPU alone")
    for name, default in (("vocab", plan.vocab), ("width", plan.width), ("heads", plan.heads)):
        add(f"--{name}", type=int, default=default)
    add("--layers", type=int, default=plan.layers[0], help="of encoder and decoder each")
    add("--dropout", type=float, default=plan.dropout)
    add("--bpe-dropout", type=float, default=0.0)
    add("--smoothing", type=float, default=0.1, help="share of a label that all tokens get")
    add("--agree", type=float, default=0.0, help="weight of R-Drop; twice the arithmetic")
    add("--beam", type=int, default=beam.width)
    add("--penalty", type=float, default=beam.penalty)
    add("--decode-tokens", type=int, default=4096, help="source tokens that are searched at a time")
    add("--set", nargs="+", type=setting, default=[], metavar="FIELD=VALUE", help="of the recipe")
    return made


def main() -> None:
    """Train what is not trained yet."""
    args = parser().parse_args()
    args.variant = EVERY if args.variant == ["all"] else args.variant
    runs = [(variant, seed) for seed in args.seed for variant in args.variant]
    for variant, _ in runs:
        planned(variant, asked_plan(args))
    left = [one for one in runs if not (folder_of(args, *one) / "result.json").is_file()]
    if args.jobs == 0:
        run(args, *left[0])
        return
    failed = side_by_side(args, left)
    if failed:
        sys.exit(f"not done: {', '.join(failed)}; repeat the command to go on with them")


if __name__ == "__main__":
    try:
        main()
    except DecoupledError as error:
        sys.exit(str(error))
