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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench_report import commit
from decoupled.index.documents import Pair, read_pairs, read_passages
from decoupled.measure.answers import best_over
from decoupled.model.model import Model
from decoupled.model.parts.head import HeadDense, HeadSpec
from decoupled.model.spec import VectorSpec, with_split
from decoupled.model.states import Ragged, batches_by_length
from decoupled.model.tokens import Window
from decoupled.train.data.batches import Batches
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import answer_rows, tokenise
from decoupled.train.data.tasks import TASKS
from decoupled.train.evaluate import How, best_spans, evaluate_examples, rank_metrics
from decoupled.train.forward import Pass
from decoupled.train.loop import Phase, accelerator_for, fit
from decoupled.train.objectives.codec import Codec, start_projection
from decoupled.train.objectives.reader import Neighbours, Reader, read_groups
from decoupled.train.recipe import READER_STUDENT, Optimiser, Recipe, Squeeze, Watch
from decoupled.train.reshape import with_projection
from decoupled.train.run import compile_layers

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISION = "bf16" if DEVICE == "cuda" else "fp32"


def main() -> None:
    """Teacher, student, figures, weights."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    base = Model.open(args.base)
    world = World(args, base)
    say(started, f"{len(world.texts)} passages, {len(world.train)} questions")
    heads = (
        HeadSpec(kind="span", null=True),
        HeadSpec(kind="rank", dense=HeadDense(activation="tanh")),
    )
    figures: dict[str, Any] = {"arguments": {k: str(v) for k, v in vars(args).items()}}
    figures["commit"] = commit()

    teacher = Model.split(base.with_heads(*heads, seed=args.seed), at=0)
    groups = world.groups(args.teacher_epochs, args.teacher_negatives)
    recipe = make_recipe(args.teacher_lr, args.teacher_negatives, args)
    begun = time.perf_counter()
    train(teacher, groups, Reader(teacher.net.to(DEVICE), TASKS["squad"], recipe), recipe)
    taught = time.perf_counter() - begun
    figures["teacher"] = world.measure(teacher)
    say(started, f"teacher {figures['teacher']}")

    if args.deadline:
        # A student's pair costs its teacher's and a third: take as many epochs as there is time for.
        share = (1 + args.negatives) / (1 + args.teacher_negatives)
        left = args.deadline - (time.perf_counter() - started) - 75
        args.epochs = max(
            1, min(args.epochs, int(left / (1.35 * taught * share / args.teacher_epochs)))
        )
        figures["arguments"]["epochs"] = str(args.epochs)
        say(started, f"{args.epochs} epochs fit")
    spec = with_split(
        teacher.spec, args.split, positions=args.positions, cross_embed=args.cross_embed
    )
    student = teacher.rebuild(
        replace(spec, vector=VectorSpec(width=args.vector)), {"did": "split", "at": args.split}
    )
    student = with_projection(student, args.projection).to(DEVICE)
    groups = world.groups(args.epochs, args.negatives, first=args.teacher_epochs)
    recipe = make_recipe(args.lr, args.negatives, args)
    weights, squeeze = READER_STUDENT.reader, Squeeze(bits=args.bits)
    recipe = replace(recipe, reader=weights, squeeze=squeeze)
    batches = Batches(groups, torch.device(DEVICE), pad=student.spec.text.pad)
    task = replace(TASKS["squad"], null=True)
    start_projection(student.net, batches, task, recipe)
    warm_up(student, world.groups(1, args.negatives), task, recipe)
    neighbours = world.neighbours(base, groups)
    objective = Reader(
        student.net,
        task,
        recipe,
        teacher=teacher.net.requires_grad_(False),
        neighbours=neighbours,
    )
    train(student, groups, objective, recipe)
    history = [
        {"did": "read", "from": "all-MiniLM-L6-v2"},
        {"did": "train", "by": "benchmarks/starter.py", **figures["arguments"]},
    ]
    Model(student.net, student.tokenizer, history).save(args.out / "starter", compact=True)
    figures["student"] = world.measure(student)
    say(started, f"student {figures['student']}")
    figures["seconds"] = round(time.perf_counter() - started, 1)
    (args.out / "starter.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")


def arguments() -> argparse.Namespace:
    """What can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--base", "--train", "--dev", "--mined", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--split", type=int, default=3)
    parser.add_argument("--positions", default="restart")
    parser.add_argument("--cross-embed", default="none")
    parser.add_argument("--projection", type=int, default=96)
    parser.add_argument("--vector", type=int, default=128)
    parser.add_argument("--bits", type=int, default=8)
    parser.add_argument("--teacher-epochs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--teacher-negatives", type=int, default=3)
    parser.add_argument(
        "--negatives", type=int, default=1, help="for each question, other ones each epoch"
    )
    parser.add_argument("--pairs", type=int, default=384, help="pairs in a batch")
    parser.add_argument("--teacher-lr", type=float, default=2e-4)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--limit", type=int, default=None, help="training questions, to try it out")
    parser.add_argument("--judged", type=int, default=1000, help="development questions to rank")
    parser.add_argument("--deadline", type=float, default=None, help="seconds to be done in")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def say(started: float, message: str) -> None:
    """A line of progress."""
    print(f"{time.perf_counter() - started:7.1f} s  {message}", flush=True)


def make_recipe(lr: float, negatives: int, args: argparse.Namespace) -> Recipe:
    """One epoch over groups that already hold every epoch."""
    batch = max(1, args.pairs // (1 + negatives))
    return Recipe(
        name="reader",
        optimiser=Optimiser(lr=lr, epochs=1.0, batch=batch, warmup=0.06),
        precision=PRECISION,
        seed=args.seed,
        watch=Watch(log_every=500),
    )


def train(model: Model, groups: Examples, objective: Reader, recipe: Recipe) -> None:
    """Run the loop over all groups once."""
    model.net.to(DEVICE)
    if DEVICE == "cuda":
        compile_layers(model.net)
    batches = Batches(groups, torch.device(DEVICE), pad=model.spec.text.pad)
    plan = Phase(
        objective=objective,
        batches=batches,
        recipe=recipe,
        progress=lambda line: print(json.dumps(line), flush=True),
    )
    report = fit(plan, accelerator_for(recipe)).to_json()
    print(json.dumps({"report": report}), flush=True)


def warm_up(model: Model, groups: Examples, task: Any, recipe: Recipe) -> None:
    """First phase of the compression: the projection alone, on the positives of a quarter epoch."""
    own = Optimiser(lr=1e-3, epochs=0.1, batch=recipe.optimiser.batch, decay=0.0)
    plan = Phase(
        objective=Codec(model.net, task, recipe),
        batches=Batches(groups, torch.device(DEVICE), pad=model.spec.text.pad),
        recipe=replace(recipe, optimiser=own),
        name="codec",
    )
    fit(plan, accelerator_for(recipe))


class World:
    """SQuAD tokenised once: training questions with mined negatives, others with their candidates."""

    def __init__(self, args: argparse.Namespace, base: Model) -> None:
        self.args = args
        train_texts = [p.text for p in read_passages(args.train)]
        self.train_count = len(set(train_texts))
        self.texts = list(dict.fromkeys([*train_texts, *(p.text for p in read_passages(args.dev))]))
        self.number = {text: n for n, text in enumerate(self.texts)}
        mined = np.load(args.mined)
        if mined["counts"].tolist() != [len(train_texts), len(self.texts)]:
            raise SystemExit(f"{args.mined} was mined from other passages: {mined['counts']}")
        self.train: list[Pair] = list(read_pairs(args.train))[: args.limit]
        self.dev: list[Pair] = list(read_pairs(args.dev))[: args.limit]
        self.negatives, self.candidates = mined["train"], mined["dev"]
        tokenizer = base.tokenizer
        self.windows: list[list[Window]] = tokenizer.windows(self.texts)
        self.first = np.concatenate([[0], np.cumsum([len(w) for w in self.windows])[:-1]])
        self.passages = Ragged.stack([w.ids for found in self.windows for w in found])
        self.train_queries = Ragged.stack(tokenizer.queries([p.query for p in self.train]))
        self.dev_queries = Ragged.stack(tokenizer.queries([p.query for p in self.dev]))
        self.squad = tokenise(self.dev, tokenizer, TASKS["squad"], train=False)

    def groups(self, epochs: int, negatives: int, first: int = 0) -> Examples:
        """Every training question once per epoch, with other negatives each time."""
        rows: list[tuple[int, int, int, int, int]] = []
        for epoch in range(first, first + epochs):
            draw = np.random.default_rng([self.args.seed, epoch])
            for number, pair in enumerate(self.train):
                rows += self.group(number, pair, negatives, draw)
        table = np.asarray(rows, np.int32)
        return Examples(
            queries=self.train_queries,
            passages=self.passages,
            query_of=table[:, 0],
            passage_of=table[:, 1],
            label=table[:, 2:4],
            score=table[:, 4].astype(np.float32),
            question=table[:, 0],
            part=table[:, 0],
            per_group=1 + negatives,
            share="query",
        )

    def group(
        self, number: int, pair: Pair, negatives: int, draw: np.random.Generator
    ) -> list[tuple[int, int, int, int, int]]:
        """The question's own window with its answer, then windows of passages without the answer."""
        gold = self.number[pair.passage]
        answer = pair.answers[0].text.lower()
        own = None
        for shift, window in enumerate(self.windows[gold]):
            label = answer_rows(pair, window)
            if label is not None:
                own = (number, int(self.first[gold]) + shift, *label, 1)
                break
        if own is None:
            return []
        found = [own]
        hard = [int(i) for i in draw.permutation(self.negatives[number]) if i >= 0 and i != gold]
        while len(found) <= negatives:
            if not hard:
                # Nothing is left that a search confused with it: any other one to train on will do.
                other = int(draw.integers(self.train_count))
            elif answer in self.texts[other := hard.pop()].lower():
                continue
            if other == gold:
                continue
            shift = int(draw.integers(len(self.windows[other])))
            found.append((number, int(self.first[other]) + shift, 0, 0, 0))
        return found

    @torch.inference_mode()
    def neighbours(self, base: Model, groups: Examples) -> Neighbours:
        """Vectors of the base encoder read as the sentence encoder that it is: whole depth, mean of all."""
        whole = Model.split(base, at=len(base.spec.layers), positions="restart").to(DEVICE)
        start = np.asarray(base.spec.text.query_prefix, np.int32)
        texts = [np.concatenate([start, ids.astype(np.int32)])[:256] for ids in self.passages]
        return Neighbours(
            queries=embed(whole, list(self.train_queries)),
            passages=embed(whole, texts),
            query_of=torch.from_numpy(groups.query_of).long().to(DEVICE),
            passage_of=torch.from_numpy(groups.passage_of).long().to(DEVICE),
        )

    def measure(self, model: Model) -> dict[str, float]:
        """SQuAD F1 on the gold passages, ranking of BM25 candidates, recall of the vectors."""
        model.net.to(DEVICE).eval()
        found: dict[str, float] = {}
        for bits in (None, 8) if model.spec.projection else (None,):
            name = f"f1_int{bits}" if bits else "f1"
            scores = evaluate_examples(
                model.net, self.squad, TASKS["squad"], How(precision=PRECISION, bits=bits)
            )
            found[name] = round(scores["f1"], 2)
            if not bits:
                found["exact"] = round(scores["exact"], 2)
        found |= self.ranking(model) | self.recall(model)
        model.net.train()
        return found

    def judged(self) -> tuple[Examples, float]:
        """Some development questions with BM25's first hundred, and how many have their passage there."""
        draw = np.random.default_rng(0)
        chosen = np.sort(draw.permutation(len(self.dev))[: self.args.judged])
        rows = []
        for question in chosen.tolist():
            gold = self.number[self.dev[question].passage]
            for other in self.candidates[question]:
                if other >= 0:
                    rows.append((question, int(self.first[other]), int(other == gold)))
        table = np.asarray(rows, np.int32)
        found = len({r[0] for r in rows if r[2]}) / len(chosen)
        pairs = Examples(
            queries=self.dev_queries,
            passages=self.passages,
            query_of=table[:, 0],
            passage_of=table[:, 1],
            label=np.stack([table[:, 2], np.zeros(len(table), np.int32)], 1),
            score=table[:, 2].astype(np.float32),
            question=table[:, 0],
            part=table[:, 0],
        )
        return pairs, found

    @torch.inference_mode()
    def ranking(self, model: Model) -> dict[str, float]:
        """MRR@10 of BM25 and of the rank head over its candidates, and answers read from all of them."""
        pairs, found = self.judged()
        text = model.spec.text
        ends = {"before": len(text.passage_prefix), "after": len(text.passage_suffix)}
        batches = Batches(pairs, torch.device(DEVICE), pad=text.pad)
        how = Pass(bits=8 if model.spec.projection else None)
        rows = []
        for batch in batches.walk(batches.ordered(1 << 18)):
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
                out = read_groups(model.net, batch, how)
            best, first, last = best_spans(out.span.float(), batch.real[1], **ends)
            null = out.span[:, 0].double().sum(-1)
            rank = out.rank[:, 0].double()
            rows.append(torch.stack([batch.rows.double(), best, first, last, null, rank]))
        table = torch.cat(rows, 1).cpu().numpy()
        _, best, first, last, null, rank = table[:, np.argsort(table[0])]
        order = np.arange(len(pairs), dtype=np.float64)
        result = {"bm25_recall@100": round(found, 4)}
        for name, score in {"bm25_mrr@10": -order, "mrr@10": rank}.items():
            value = rank_metrics(score, pairs.label[:, 0], pairs.question)["mrr@10"]
            result[name] = round(value * found, 2)
        sure = -np.logaddexp(0.0, -rank)
        ways = {"span": best, "null": best - null, "rank": best + sure, "both": best - null + sure}
        for name, score in ways.items():
            exact, f1 = self.answered(pairs, score, first, last)
            result |= {f"open_{name}_exact": round(exact, 2), f"open_{name}_f1": round(f1, 2)}
        return result

    def answered(self, pairs: Examples, score: Any, first: Any, last: Any) -> tuple[float, float]:
        """Exact match and F1 of the best span over all candidates of each question."""
        flat = [window for found in self.windows for window in found]
        scores = []
        for question in np.unique(pairs.question):
            rows = np.flatnonzero(pairs.question == question)
            row = rows[score[rows].argmax()]
            window = flat[pairs.passage_of[row]]
            begin, end = window.offsets[int(first[row]), 0], window.offsets[int(last[row]), 1]
            golds = [answer.text for answer in self.dev[question].answers]
            scores.append(best_over(golds, window.text[begin:end]))
        exact, f1 = np.mean(scores, 0) * 100
        return float(exact), float(f1)

    @torch.inference_mode()
    def recall(self, model: Model) -> dict[str, float]:
        """Share of development questions whose passage is among the hundred nearest of all."""
        vectors = embed(model, list(self.passages), side="passage")
        queries = embed(model, list(self.dev_queries))
        gold = torch.tensor([self.number[p.passage] for p in self.dev], device=DEVICE)
        owner = torch.from_numpy(
            np.repeat(np.arange(len(self.windows)), [len(w) for w in self.windows])
        ).to(DEVICE)
        hits = []
        for start in range(0, len(queries), 1024):
            scores = queries[start : start + 1024].float() @ vectors.float().T
            top = owner[scores.topk(min(100, scores.shape[1])).indices]
            hits.append((top == gold[start : start + 1024, None]).any(1))
        return {"dense_recall@100": round(float(torch.cat(hits).float().mean()), 4)}


@torch.inference_mode()
def embed(model: Model, texts: Sequence[np.ndarray], side: Any = "query") -> torch.Tensor:
    """Unit vectors of tokenised texts, half precision."""
    lengths = np.fromiter((len(t) for t in texts), np.int64, len(texts))
    batches = batches_by_length(lengths, 65536)
    found = torch.zeros(len(texts), model.spec.vector_width, dtype=torch.half, device=DEVICE)
    for batch in batches:
        padded, real = Ragged.stack([texts[i] for i in batch]).pad()
        ids = torch.from_numpy(padded.astype(np.int64)).to(DEVICE)
        mask = torch.from_numpy(real).to(DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            h = model.net.hidden(side, ids, mask)
        found[torch.from_numpy(batch).to(DEVICE)] = model.net.pool(h.float(), mask).half()
    return found


if __name__ == "__main__":
    main()
