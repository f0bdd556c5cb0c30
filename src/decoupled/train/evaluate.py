"""`evaluate`: metrics of a model on pairs: answers as SQuAD scores them, accuracy, and ranking."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoupled.errors import InputError
from decoupled.index.encode import encode_texts
from decoupled.measure.metrics import best_over, normalised_gain, reciprocal_rank
from decoupled.measure.pairs import Pair
from decoupled.model.folder import starter_model
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.head import HeadKind
from decoupled.runtime.base import Runtime
from decoupled.runtime.open import open_runtime
from decoupled.runtime.torch import TorchRuntime
from decoupled.search.answers import best_spans
from decoupled.search.engine import Engine
from decoupled.search.request import Request
from decoupled.search.results import Labels
from decoupled.train.data.batches import Batch, Batches
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import prepare
from decoupled.train.data.tasks import Task
from decoupled.train.loop.forward import EVALUATION_TOKENS, Pass, autocast, forward_pair
from decoupled.train.recipe import Precision

Floats = npt.NDArray[np.float64]

REQUESTS = 64
"""The number of questions that are read together."""
MEMORY = 1 << 28
"""Bytes for encoded passages, since several questions are about one passage."""


@dataclass(frozen=True, kw_only=True)
class How:
    """Options of an evaluation."""

    bits: int | None = None
    """Bits of the codes through which passage states pass; None leaves them as they are."""
    precision: Precision = "fp32"
    tokens: int = EVALUATION_TOKENS
    """Padded tokens of a batch."""
    threshold: float | None = None
    """No answer when its score beats the best span's by more than this; None is the task's own."""
    progress: Callable[[int], None] | None = None
    """Called with the number of pairs that were read."""


def evaluate(
    model: Model | str | Path | None = None,
    *,
    data: Iterable[Pair],
    task: str = "pairs",
    limit: int | None = None,
    bits: int | None = None,
    threshold: float | None = None,
    runtime: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Metrics of a model, by default the bundled one, on labelled pairs: the first `limit` queries of them.

    In per cent `f1` and `exact`, `accuracy`, or `mrr@10` and `ndcg@10`, beside the task's name and the number
    of `queries`. torch computes them unless `runtime` names another; it can read passage states as codes of 8
    or 4 `bits` give them back. Answers are those of `Engine.ask` on the pair's own passage, for `squad2` with
    `threshold="auto"`; with a `threshold` here, a question has no answer when the logit of that is higher
    than the best span's by more. `progress(done, total)` counts pairs.
    """
    if bits not in (None, 4, 8):
        raise InputError(f"bits={bits}; choose 8 or 4")
    if bits and runtime not in ("auto", "torch"):
        raise InputError("bits are for torch; index the passages to store them")
    opened = _opened(starter_model() if model is None else model, runtime)
    ready = prepare(data, opened, task, train=False, limit=limit)
    examples, done = ready.examples(opened), 0

    def count(pairs: int) -> None:
        nonlocal done
        done += pairs
        if progress is not None:
            progress(done, len(examples))

    # Answers are judged as `ask` gives them, unless the options are for the bare modules.
    if ready.task.head == "span" and bits is None and threshold is None:
        metrics = asked_metrics(Engine(opened, remember=MEMORY), ready.pairs, ready.task, count)
    else:
        least = (threshold or 0.0) if ready.task.null else None
        how = How(bits=bits, threshold=least, progress=count)
        net = opened.net if isinstance(opened, Model) else opened
        metrics = evaluate_examples(net, examples, ready.task, how)
    alone = ready.task.head == "classes"
    queries = len(examples) if alone else len(set(examples.question.tolist()))
    rounded = {metric: round(value, 4) for metric, value in metrics.items()}
    return {"task": task, "queries": queries, **rounded}


def _opened(model: Model | str | Path, runtime: str) -> Model | Runtime:
    """The torch modules on the fastest device, unless another runtime is named."""
    named = "torch" if runtime == "auto" else runtime
    if isinstance(model, Model) and named == "torch":
        return model
    opened = open_runtime(model, name=named)
    return opened.model if isinstance(opened, TorchRuntime) else opened


def asked_metrics(
    engine: Engine, pairs: Sequence[Pair], task: Task, count: Callable[[int], None]
) -> dict[str, float]:
    """Exact match and F1 of the best answer that `ask` gives, each question with its own passage."""
    rows: list[tuple[float, float]] = []
    for start in range(0, len(pairs), REQUESTS):
        some = pairs[start : start + REQUESTS]
        requests = [
            Request(
                query=pair.query,
                head="span",
                k=1,
                texts=(pair.passage,),
                threshold="auto" if task.null else 0.0,
            )
            for pair in some
        ]
        for pair, outcome in zip(some, engine.run(requests), strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            assert not isinstance(outcome, Labels)
            text = outcome[0].text if len(outcome) else ""
            rows.append(best_over([answer.text for answer in pair.answers], text))
        count(len(some))
    exact, f1 = np.asarray(rows, np.float64).mean(0) * 100
    return {"f1": float(f1), "exact": float(exact)}


@dataclass(frozen=True, kw_only=True)
class ScoredPairs:
    """Metrics in per cent, and the task's own metric of each question, or pair of classes, 0 to 1."""

    metrics: dict[str, float]
    each: Floats


def evaluate_examples(
    net: PairEncoder | Runtime, examples: Examples, task: Task, how: How = How()
) -> dict[str, float]:
    """Metrics of the task, in per cent: f1 and exact, accuracy, or mrr@10 and ndcg@10.

    The modules are run as `how` says, a runtime as its users run it.
    """
    return judge(net, examples, task, how).metrics


def judge(
    net: PairEncoder | Runtime, examples: Examples, task: Task, how: How = How()
) -> ScoredPairs:
    """Metrics, and the score of every question, by which two models can be compared in pairs."""
    if task.head == "span":
        threshold = task.threshold if how.threshold is None else how.threshold
        return judged_answers(answers(net, examples, task, how), examples, threshold)
    return judged_pairs(pair_logits(net, examples, task, how), examples, task)


def _logits(
    net: PairEncoder | Runtime, examples: Examples, task: Task, how: How
) -> Iterator[tuple[Batch, Tensor]]:
    """Logits of every batch, without dropout."""
    count = how.progress or (lambda pairs: None)
    device = torch.device("cpu")
    if isinstance(net, PairEncoder):
        device = next(net.parameters()).device
    batches = Batches.of(examples, net.spec, device)
    walk = batches.walk(batches.ordered(how.tokens))
    if not isinstance(net, PairEncoder):
        for batch in walk:
            yield batch, _runtime_logits(net, batch, task.head, count)
        return
    training = net.training
    net.eval()
    try:
        for batch in walk:
            # Not around the loop: what is done with the logits runs between two batches.
            with torch.inference_mode(), autocast(device, how.precision):
                passed = Pass(bits=how.bits)
                logits = forward_pair(net, batch, task.head, how=passed).logits.float()
            count(len(logits))
            yield batch, logits
    finally:
        net.train(training)


def _runtime_logits(
    runtime: Runtime, batch: Batch, head: HeadKind, count: Callable[[int], None]
) -> Tensor:
    """`[B,outputs]` or `[B,1+P,2]`, zeros after each passage; each query goes with its own passages."""
    rows: list[Tensor] = []
    for pair in range(len(batch.rows)):
        q, p = pair // batch.query_repeat, pair // batch.passage_repeat
        query = batch.query_ids[q][batch.query_real[q]].numpy().astype(np.int32)
        windows = [(batch.passage_ids[p], batch.passage_real[p])]
        if batch.earlier_ids is not None and batch.earlier_real is not None:
            pairs = zip(batch.earlier_ids[:, p], batch.earlier_real[:, p], strict=True)
            windows = [*windows, *(pair for pair in pairs if pair[1].any())][::-1]
        texts = [ids[real].numpy().astype(np.int32) for ids, real in windows]
        states = runtime.encode("query", [query]).states
        read = encode_texts(
            runtime,
            "passage",
            texts,
            query_length=len(query),
            windows=[len(texts)] if runtime.spec.memory_windows else None,
        ).states.select([len(texts) - 1])
        rows.append(torch.from_numpy(runtime.cross(states, read, (head,))[head].values))
        count(1)
    if head != "span":
        return torch.cat(rows)
    padded = torch.zeros(len(rows), 1 + batch.passage_ids.shape[1], 2)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


def pair_logits(
    net: PairEncoder | Runtime, examples: Examples, task: Task, how: How = How()
) -> Floats:
    """`[pairs,outputs]` logits of a pooled head, in the order of the examples."""
    rows, values = [], []
    for batch, logits in _logits(net, examples, task, how):
        rows.append(batch.rows)
        values.append(logits)
    # Batches come longest first; the rows put the logits back into the order of the examples.
    return torch.cat(values)[torch.cat(rows).argsort()].double().cpu().numpy()


# Spans --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PredictedSpans:
    """Per question: the text of its best span, that span's score, and the score of no answer."""

    texts: list[str]
    best: Floats
    null: Floats


def answers(
    net: PairEncoder | Runtime, examples: Examples, task: Task, how: How = How()
) -> PredictedSpans:
    """The best span of every question over all its windows."""
    truth = examples.truth
    if truth is None:
        raise InputError("these examples hold no texts to answer from; read them for evaluation")
    text = net.spec.text
    before, after = len(text.passage_prefix), len(text.passage_suffix)
    spans: list[tuple[int, float, int, int, float]] = []
    for batch, logits in _logits(net, examples, task, how):
        lengths = batch.real[1].sum(1).tolist()
        windows = zip(batch.rows.tolist(), logits.cpu().numpy(), lengths, strict=True)
        for row, window, length in windows:
            best = best_spans(window[1 : 1 + length], before=before, after=after)
            score, first, last = best[0] if best else (-np.inf, 0, 0)
            spans.append((row, score, first, last, float(window[0].astype(np.float64).sum())))
    questions = len(truth.golds)
    texts, top = [""] * questions, np.full(questions, -np.inf)
    lowest = np.full(questions, np.inf)
    # By row, so that of equal windows the first one wins, whatever order they were run in.
    for row, score, first, last, null in sorted(spans):
        question, window = int(examples.question[row]), int(examples.passage_of[row])
        # As the SQuAD 2 scripts of BERT do: no answer is scored by the window that doubts it most.
        lowest[question] = min(lowest[question], null)
        if score > top[question]:
            top[question] = score
            offsets = truth.offsets[window]
            begin, end = int(offsets[first, 0]), int(offsets[last, 1])
            texts[question] = truth.texts[truth.text_of[window]][begin:end]
    return PredictedSpans(texts=texts, best=top, null=lowest)


def judged_answers(
    predicted: PredictedSpans, examples: Examples, threshold: float | None
) -> ScoredPairs:
    """Exact match and F1 as the official SQuAD scripts compute them, over the questions of the examples.

    With a `threshold` a question has no answer where the score of that is higher by more.
    """
    assert examples.truth is not None
    rows = []
    for question in np.unique(examples.question):
        apart = predicted.null[question] - predicted.best[question]
        empty = threshold is not None and apart > threshold
        text = "" if empty else predicted.texts[question]
        rows.append(best_over(examples.truth.golds[question], text))
    exact, f1 = np.asarray(rows, np.float64).reshape(-1, 2).T
    result = {"f1": 100 * float(f1.mean()), "exact": 100 * float(exact.mean())}
    metrics = result if threshold is None else {**result, "threshold": threshold}
    return ScoredPairs(metrics=metrics, each=f1)


# Classes and ranking ------------------------------------------------------------------------------


def judged_pairs(logits: Floats, examples: Examples, task: Task) -> ScoredPairs:
    """Metrics of a pooled head from the logits of all pairs."""
    label = examples.label[:, 0]
    if task.head == "rank":
        return judged_ranking(logits[:, 0], label, examples.question)
    if task.head == "choice":
        options, right = (x.reshape(-1, examples.per_group) for x in (logits[:, 0], label))
        each = (options.argmax(1) == right.argmax(1)).astype(np.float64)
        return ScoredPairs(metrics={"accuracy": 100 * float(each.mean())}, each=each)
    predicted = logits.argmax(1)
    metrics = class_metrics(predicted, label, len(task.labels))
    return ScoredPairs(metrics=metrics, each=(predicted == label).astype(np.float64))


def class_metrics(
    predicted: npt.NDArray[np.int64], label: npt.NDArray[np.int32], classes: int
) -> dict[str, float]:
    """Accuracy, and with two classes the F1 of the second."""
    result = {"accuracy": 100 * float((predicted == label).mean())}
    if classes == 2:
        hits = float(((predicted == 1) & (label == 1)).sum())
        total = float((predicted == 1).sum() + (label == 1).sum())
        # F1 = 2 TP / (predicted + actual), in per cent.
        result["f1"] = 200 * hits / total if total else 0.0
    return result


def judged_ranking(
    score: Floats, grade: npt.NDArray[np.int32], question: npt.NDArray[np.int32]
) -> ScoredPairs:
    """Mean reciprocal rank and nDCG at 10 over the queries that have a relevant passage.

    Of equal scores, and of those that are no number, the less relevant passage counts as the first: a model
    that cannot tell passages apart earns nothing by the order in which the data lists them.
    """
    # A grade below 0 says no more than 0 here, as in trec_eval.
    positive_grades = np.maximum(grade, 0)
    # lexsort sorts by its last key first: question, then falling score, then rising grade.
    order = np.lexsort((positive_grades, -score, question))
    queries = np.split(positive_grades[order], np.flatnonzero(np.diff(question[order])) + 1)
    scored = [grades.tolist() for grades in queries if (grades > 0).any()]
    if not scored:
        raise InputError("no query has a relevant passage, so a ranking cannot be scored")
    reciprocal = [reciprocal_rank(grades, 10) for grades in scored]
    gain = [normalised_gain(grades, grades, 10) for grades in scored]
    means = {"mrr@10": 100 * float(np.mean(reciprocal)), "ndcg@10": 100 * float(np.mean(gain))}
    return ScoredPairs(metrics=means, each=np.asarray(reciprocal))
