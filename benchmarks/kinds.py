"""What kinds for long texts and for several texts bring: SQuAD as tasks that they are made for.

    python benchmarks/kinds.py windows --data DATA --out OUT --kinds plain compressive --seeds 0 1 2
    python benchmarks/kinds.py collect --out OUT --json kinds.json

DATA holds train-v1.1.json.xz and dev-v1.1.json.xz of SQuAD. Every kind begins with the bundled model and is
trained with the same steps of the same batches, or with --steps 0 judged as it is. A kind is `plain`, what
the task itself offers, or methods as `shrink -m` takes them, joined by `+`. One JSON a run is left in OUT;
`collect` makes one file of them.

windows   paragraphs in windows of 64 tokens; F1 also of answers whose sentence begins in the window before.
          `overlap`: each window begins in the middle of the one before; `whole`: 448 tokens in one window,
          as for `tree`, whose nodes are the sentences
long      as many neighbouring paragraphs of an article in one passage as --tokens hold
speed     no task: time and memory of the input component by length, full against hashed attention, and of a
          step of training by depth, plain, recomputed and reversible
hops      two-hop questions made of SQuAD by template: "the subject of folder 17" stands for the title of an
          article, and another passage says which subject that is; four passages are read for a question
"""

import json
import lzma
import random
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import decoupled as dc
from bench_report import options, write_report
from decoupled.index.documents import Pair, Span
from decoupled.lab.bench.report import commit
from decoupled.measure.metrics import best_over
from decoupled.model.folder import starter_model
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.sentences import sentences
from decoupled.model.tokens import Tokenizer
from decoupled.runtime.torch import TorchRuntime
from decoupled.search.request import Request
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import linked, tokenise
from decoupled.train.data.tasks import TASKS
from decoupled.train.recipe import Optimiser, Recipe
from decoupled.train.run import Data, train_model
from decoupled.train.shrink.base import apply
from decoupled.train.shrink.names import parse

WINDOW = 64
Article = list[dict[str, Any]]
Found = dict[str, Any]


def main() -> None:
    """Every kind with every seed, or one file of what others left."""
    sizes = {"steps": 400, "batch": 32, "dev": 2000, "tokens": 2048, "lr": 5e-5}
    given = {"data": Path("data"), "out": Path("build/kinds"), "device": "cuda", **sizes}
    lists = {"kinds": ["plain"], "seeds": [0]}
    args = options(__doc__, *TASKS_HERE, "speed", "collect", **given, **lists)
    if args.what == "speed":
        write_report(args, {"lengths": lengths(args), "depths": depths(args)})
        return
    if args.what == "collect":
        rows = [json.loads(path.read_text()) for path in sorted(args.out.glob("*.json"))]
        args.json.write_text(json.dumps({"runs": rows}, indent=1) + "\n", encoding="utf-8")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for kind in args.kinds:
            row = {"task": args.what, "kind": kind, "seed": seed, **run(args, kind, seed)}
            name = re.sub(r"\W+", "-", f"{args.what}-{args.tokens}-{kind}-{seed}")
            (args.out / f"{name}.json").write_text(json.dumps(row) + "\n", encoding="utf-8")
            print(json.dumps(row), flush=True)


def run(args: Any, kind: str, seed: int) -> Found:
    """Train and judge one kind."""
    task = TASKS_HERE[args.what](args)
    model = task.model(kind).to(args.device)
    if not args.steps:
        return {"tokens": args.tokens, "commit": commit(), "before": task.score(model)}
    train = task.examples(model, seed)
    half = args.device == "cuda"
    optimiser = Optimiser(lr=args.lr, epochs=1, batch=max(1, args.batch // train.per_group))
    recipe = Recipe(optimiser=optimiser, precision="bf16" if half else "fp32", seed=seed)
    drawn = np.random.default_rng(seed).permutation(train.groups)
    train = train.select(drawn[: args.steps * optimiser.batch])
    before, began = task.score(model), time.perf_counter()
    if half:
        torch.cuda.reset_peak_memory_stats()
    trained, _ = train_model(model, Data(task=TASKS["squad2"], train=train, tune=None), recipe)
    seconds = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() >> 20 if half else None
    sizes = {"steps": args.steps, "batch": args.batch, "tokens": args.tokens}
    cost = {"seconds": round(seconds, 1), "peak_mib": peak, "commit": commit()}
    return {**sizes, **cost, "before": before, "after": task.score(trained)}


def articles(args: Any, part: str) -> list[Article]:
    """The articles of SQuAD, each as its paragraphs."""
    with lzma.open(args.data / f"{part}-v1.1.json.xz") as file:
        data = json.load(file)["data"]
    return [[{**p, "title": a["title"].replace("_", " ")} for p in a["paragraphs"]] for a in data]


def asked(qa: Found, passage: str, shift: int = 0) -> Pair:
    """A question of SQuAD about a passage, in which its answers lie so many characters further."""
    spans = tuple(Span(text=x["text"], start=x["answer_start"] + shift) for x in qa["answers"])
    return Pair(query=qa["question"], passage=passage, answers=spans, id=qa["id"], group=qa["id"])


class Windows:
    """Paragraphs in short windows."""

    def __init__(self, args: Any) -> None:
        self.args = args

    def model(self, kind: str) -> Model:
        """The bundled one, with windows of that kind."""
        start = Model.load(starter_model())
        room = WINDOW - 1
        if kind == "whole":
            return start
        if kind in ("plain", "overlap"):
            stride = room // 2 if kind == "overlap" else room
            return Model.split(start, at=start.spec.split, passage_tokens=WINDOW, stride=stride)
        return changed(start, kind if kind.startswith("tree") else f"{kind},tokens={WINDOW}")

    def examples(self, model: Model, seed: int) -> Examples:
        """Every window of the paragraphs of some questions; those without the answer have none."""
        return tokenise(self.pairs("train", seed), model.tokenizer, TASKS["squad2"], train=False)

    def pairs(self, part: str, seed: int) -> Iterator[Pair]:
        """Questions in random order."""
        rows = [(p, qa) for a in articles(self.args, part) for p in a for qa in p["qas"]]
        random.Random(seed).shuffle(rows)
        count = self.args.dev if part == "dev" else self.args.steps * self.args.batch
        yield from (asked(qa, paragraph["context"]) for paragraph, qa in rows[:count])

    def score(self, model: Model) -> Found:
        """F1 of all, and of answers whose sentence begins in the window before theirs."""
        pairs = list(self.pairs("dev", 0))
        f1 = scores(model, [[pair] for pair in pairs])[:, 1]
        apart = np.array([straddles(pair, model.tokenizer) for pair in pairs])
        return {"f1": f1.mean(), "f1_before": f1[apart].mean(), "of": [len(f1), int(apart.sum())]}


def straddles(pair: Pair, tokenizer: Tokenizer) -> bool:
    """Does the sentence of the answer begin in a window before that of the answer?"""
    short = replace(tokenizer.spec, passage_tokens=WINDOW, stride=WINDOW - 1)
    start, at = pair.answers[0].start, 0
    for sentence in sentences(pair.passage):
        if at + len(sentence) > start:
            break
        at += len(sentence)
    windows = Tokenizer(tokenizer.json, short).windows([pair.passage])[0]
    return any(at < w.start <= start for w in windows)


class Long(Windows):
    """Neighbouring paragraphs in one passage."""

    def model(self, kind: str) -> Model:
        """The bundled one with longer windows."""
        longer = changed(Model.load(starter_model()), f"lengthen:tokens={self.args.tokens}")
        return longer if kind == "plain" else changed(longer, kind)

    def examples(self, model: Model, seed: int) -> Examples:
        """One passage a question."""
        self.lengths = model.tokenizer.lengths
        return tokenise(self.pairs("train", seed), model.tokenizer, TASKS["squad2"], train=True)

    def pairs(self, part: str, seed: int) -> Iterator[Pair]:
        """The paragraph of a question, and what fits of those around it."""
        draw, room = random.Random(seed), self.args.tokens - 16
        rows = [
            (a, n, qa)
            for a in articles(self.args, part)
            for n, p in enumerate(a)
            for qa in p["qas"]
        ]
        draw.shuffle(rows)
        count = self.args.dev if part == "dev" else self.args.steps * self.args.batch
        for article, n, qa in rows[:count]:
            size = self.lengths([p["context"] for p in article])
            first = last = n
            total = size[n]
            while sides := [
                s for s in (first - 1, last + 1) if 0 <= s < len(article) and total + size[s] < room
            ]:
                side = draw.choice(sides)
                total += size[side] + 1
                first, last = min(first, side), max(last, side)
            texts = [p["context"] for p in article[first : last + 1]]
            shift = sum(len(text) + 1 for text in texts[: n - first])
            yield asked(qa, "\n".join(texts), shift)

    def score(self, model: Model) -> Found:
        """Of all answers."""
        return mean(scores(model, [[pair] for pair in self.pairs("dev", 0)]))


class Hops:
    """Questions that need two passages."""

    def __init__(self, args: Any) -> None:
        self.args = args

    def model(self, kind: str) -> Model:
        """The bundled one, with hops or without."""
        start = Model.load(starter_model())
        return start if kind == "plain" else changed(start, kind)

    def examples(self, model: Model, seed: int) -> Examples:
        """Four passages a question, read together where the model has hops."""
        pairs = [pair for question in self.questions("train", seed) for pair in question]
        found = tokenise(pairs, model.tokenizer, TASKS["squad2"], train=True)
        hops = any(block.part.kind == "hop" for block in model.spec.encoder.blocks)
        return linked(found) if hops else found

    def questions(self, part: str, seed: int) -> list[list[Pair]]:
        """For each the passages to read, titles in front of them as an index shows them."""
        draw, rows = random.Random(seed), []
        for p in (p for a in articles(self.args, part) for p in a if len(p["context"]) <= 900):
            named = (
                (qa, re.search(re.escape(p["title"]), qa["question"], re.I)) for qa in p["qas"]
            )
            rows += [(p, qa, found.span()) for qa, found in named if found]
        alike: dict[str, list[Any]] = {}
        for row in rows:
            alike.setdefault(_opening(row[1]), []).append(row)
        count = self.args.dev if part == "dev" else self.args.steps * self.args.batch // 4
        made: list[list[Pair]] = []
        while len(made) < count:
            draw.shuffle(rows)
            for p, qa, (first, last) in rows[: count - len(made)]:
                others = [o for o, *_ in alike[_opening(qa)] if o["title"] != p["title"]]
                if others:
                    made.append(self._passages(draw, p, draw.choice(others), qa, (first, last)))
                    made[-1] = [replace(pair, id=f"{len(made)}") for pair in made[-1]]
        return made

    def _passages(
        self, draw: random.Random, p: Found, other: Found, qa: Found, named: tuple[int, int]
    ) -> list[Pair]:
        one, two = draw.sample(range(10, 99), 2)
        question = qa["question"]
        question = f"{question[: named[0]]}the subject of folder {one}{question[named[1] :]}"
        answer = asked(
            {**qa, "question": question}, f"{p['title']}. {p['context']}", len(p["title"]) + 2
        )
        texts = [f"{other['title']}. {other['context']}"]
        texts += [
            f"Folder {n}. Folder {n} holds notes about {x['title']}."
            for n, x in ((one, p), (two, other))
        ]
        found = [answer, *(replace(answer, passage=text, answers=()) for text in texts)]
        return draw.sample(found, 4)

    def score(self, model: Model) -> Found:
        """Answers over the four passages, read alone and together."""
        made = self.questions("dev", 0)
        hops = any(block.part.kind == "hop" for block in model.spec.encoder.blocks)
        found = {"alone": mean(scores(model, made))}
        return found | ({"together": mean(scores(model, made, hops=2))} if hops else {})


def scores(model: Model, questions: list[list[Pair]], **how: Any) -> npt.NDArray[np.float64]:
    """Exact match and F1 of each question, as `ask` answers it from its passages."""
    engine, rows = dc.Engine(TorchRuntime(model), remember=1 << 28), []
    for start in range(0, len(questions), 64):
        some = questions[start : start + 64]
        requests = [
            Request(
                query=q[0].query,
                head="span",
                k=1,
                texts=tuple(p.passage for p in q),
                threshold=0.0,
                **how,
            )
            for q in some
        ]
        for pairs, found in zip(some, engine.run(requests), strict=True):
            assert not isinstance(found, Exception), found
            gold = [answer.text for pair in pairs for answer in pair.answers]
            rows.append(best_over(gold, found[0].text if len(found) else ""))
    return 100 * np.array(rows)


def mean(rows: npt.NDArray[np.float64]) -> Found:
    """Over all questions."""
    exact, f1 = rows.mean(0)
    return {"f1": f1, "exact": exact, "of": len(rows)}


def _opening(qa: Found) -> str:
    """The first two words of a question."""
    return " ".join(qa["question"].lower().split()[:2])


# Speed --------------------------------------------------------------------------------------------


def lengths(args: Any) -> list[Found]:
    """The layers below the split over one text of random tokens."""
    sizes = [512, 1024, 2048, 4096, 8192, 16384]
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
    for depth in (3, 6, 12, 24):
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
    for _ in range(10):
        work()
    if cuda:
        torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20 if cuda else 0.0
    return (time.perf_counter() - began) * 100, peak


def changed(model: Model, methods: str) -> Model:
    """The model under methods of `shrink`, one after the other."""
    for method in methods.split("+"):
        model = apply(model, parse(method))
    return model


TASKS_HERE = {"windows": Windows, "long": Long, "hops": Hops}

if __name__ == "__main__":
    main()
