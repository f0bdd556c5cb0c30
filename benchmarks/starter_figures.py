"""What the starter model is measured by: reading, ranking BM25's candidates, and recall of its vectors."""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoupled import read_pairs, read_passages
from decoupled.index.documents import Pair
from decoupled.index.record import Record
from decoupled.index.store.lance import LanceStore
from decoupled.measure.metrics import best_over
from decoupled.model.model import Model
from decoupled.model.states import Ragged
from decoupled.train.data.batches import Batches
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import prepare
from decoupled.train.evaluate import How, best_spans, evaluate_examples, rank_metrics
from decoupled.train.forward import Pass, autocast
from decoupled.train.objectives.reader import read_groups
from decoupled.train.reader import Questions, vectors_of

NEGATIVES, CANDIDATES = 16, 100
"""That BM25 finds for a training question, and for a development question."""


def read(args: argparse.Namespace, base: Model) -> tuple[Questions, "Judges"]:
    """SQuAD: training questions with mined negatives, others with their candidates."""
    train = [p.text for p in read_passages(args.train)]
    texts = list(dict.fromkeys([*train, *(p.text for p in read_passages(args.dev))]))
    pairs, others = (list(read_pairs(path)) for path in (args.train, args.dev))
    counts = [len(train), len(texts)]
    if not args.mined.exists():
        found = {"train": search(train, pairs, NEGATIVES), "dev": search(texts, others, CANDIDATES)}
        np.savez_compressed(args.mined, **found, counts=np.array(counts))
    mined = np.load(args.mined)
    if mined["counts"].tolist() != counts:
        raise SystemExit(f"{args.mined} was mined from other passages: {mined['counts']}")
    pairs, others, drawn_from = pairs[: args.limit], others[: args.limit], len(set(train))
    questions = Questions(pairs, texts, mined["train"], base.tokenizer, drawn_from=drawn_from)
    queries = Ragged.stack(base.tokenizer.queries([pair.query for pair in others]))
    return questions, Judges(questions, others, mined["dev"], queries, args.judged)


def search(texts: Sequence[str], pairs: Sequence[Pair], k: int) -> np.ndarray:
    """`[pairs,k]` numbers of the texts that BM25 ranks first; -1 where fewer were found."""
    found = np.full((len(pairs), k), -1, np.int32)
    bare = {"offsets": np.zeros((0, 2), np.int32), "states": np.zeros((0, 1), np.uint8)}
    records = [Record(id=str(number), text=text, **bare) for number, text in enumerate(texts)]
    with tempfile.TemporaryDirectory() as folder:
        store = LanceStore.create(Path(folder) / "s", token_bytes=1)
        for start in range(0, len(records), 5000):
            store.append(records[start : start + 5000], part=str(start))
        store.compact()
        ids = [entry.id for entry in store.snapshot.scan()]
        number_of = {
            int(row): int(i) for row, i in zip(store.snapshot.locate(ids), ids, strict=True)
        }
        for number, pair in enumerate(pairs):
            rows = store.snapshot.lexical(pair.query, k).rows
            found[number, : len(rows)] = [number_of[int(row)] for row in rows]
    return found


@dataclass
class Judges:
    """Development questions, BM25's candidates for each, and the passages of the training questions."""

    questions: Questions
    dev: Sequence[Pair]
    candidates: np.ndarray
    queries: Ragged
    count: int
    """Questions to rank."""

    def measure(self, model: Model) -> dict[str, float]:
        """SQuAD F1 on the gold passages, ranking of BM25 candidates, recall of the vectors."""
        precision = "bf16" if model.device.type == "cuda" else "fp32"
        squad = prepare(self.dev, model, "squad", train=False)
        found: dict[str, float] = {}
        for bits in (None, 8) if model.spec.projection else (None,):
            how = How(precision=precision, bits=bits)
            scores = evaluate_examples(model.net, squad.examples(model), squad.task, how)
            found[f"f1_int{bits}" if bits else "f1"] = round(scores["f1"], 2)
            if not bits:
                found["exact"] = round(scores["exact"], 2)
        return found | self.ranking(model, precision) | self.recall(model)

    def judged(self) -> tuple[Examples, float]:
        """Some development questions with BM25's first hundred, and how many have their passage there."""
        draw = np.random.default_rng(0)
        chosen = np.sort(draw.permutation(len(self.dev))[: self.count])
        rows = []
        for question in chosen.tolist():
            gold = self.questions.number[self.dev[question].passage]
            for other in self.candidates[question]:
                if other >= 0:
                    rows.append((question, int(self.questions.first[other]), int(other == gold)))
        question, passage, right = np.asarray(rows, np.int32).T
        pairs = Examples(
            queries=self.queries,
            passages=self.questions.passages,
            query_of=question,
            passage_of=passage,
            label=np.stack([right, np.zeros_like(right)], 1),
            score=right.astype(np.float32),
            question=question,
            part=question,
        )
        return pairs, len(np.unique(question[right > 0])) / len(chosen)

    @torch.inference_mode()
    def ranking(self, model: Model, precision: str) -> dict[str, float]:
        """MRR@10 of BM25 and of the rank head over its candidates, and answers read from all of them."""
        pairs, found = self.judged()
        text = model.spec.text
        ends = {"before": len(text.passage_prefix), "after": len(text.passage_suffix)}
        batches = Batches(pairs, model.device, pad=text.pad)
        how = Pass(bits=8 if model.spec.projection else None)
        rows = []
        for batch in batches.walk(batches.ordered(1 << 18)):
            with autocast(model.device, precision):
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
        flat = [window for found in self.questions.windows for window in found]
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
        vectors = vectors_of(model, list(self.questions.passages), side="passage")
        queries = vectors_of(model, list(self.queries))
        gold = [self.questions.number[p.passage] for p in self.dev]
        owner = [n for n, held in enumerate(self.questions.windows) for _ in held]
        gold, owner = (torch.tensor(x, device=model.device) for x in (gold, owner))
        hits = []
        for start in range(0, len(queries), 1024):
            scores = queries[start : start + 1024].float() @ vectors.float().T
            top = owner[scores.topk(min(100, scores.shape[1])).indices]
            hits.append((top == gold[start : start + 1024, None]).any(1))
        return {"dense_recall@100": round(float(torch.cat(hits).float().mean()), 4)}
