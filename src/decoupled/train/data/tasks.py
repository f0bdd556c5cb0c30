"""Tasks: how pairs become labelled examples, which head reads them, and what is measured.

A task's passage is the side that is cached. For sentence pairs that is the first text (the premise), so those
tasks swap the sides of the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from decoupled.errors import InputError
from decoupled.index.documents import Pair
from decoupled.model.spec import HeadDense, HeadKind, HeadSpec, ModelSpec
from decoupled.model.states import Ragged
from decoupled.model.tokens import Ids, Tokenizer, Window
from decoupled.train.data.examples import Examples, Ints, Share, Truth
from decoupled.train.data.groups import rank_groups

Metric = Literal["f1", "accuracy", "mrr@10"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is learned from pairs."""

    name: str
    head: HeadKind
    metric: Metric
    """What the tune split is judged by."""
    labels: tuple[str, ...] = ()
    """Names of the classes; a numeric label is an index into them."""
    null: bool = False
    """May a question have no answer in its passage?"""
    swap: bool = False
    """Is the first text of the data the cached side?"""
    options: int = 1
    """Pairs of a group: options of a question, or a positive and its negatives."""
    lower: bool = False
    """Lower-case every text, where casing would give the label away."""

    @property
    def head_spec(self) -> HeadSpec:
        """A new head for this task: DeFormer's tanh layer for pooled heads, a linear map for spans."""
        dense = None if self.head == "span" else HeadDense(activation="tanh")
        return HeadSpec(kind=self.head, labels=self.labels, dense=dense)

    @property
    def threshold(self) -> float | None:
        """No answer when its score beats the best span's by more than this; None never leaves one out."""
        return 0.0 if self.null else None

    @property
    def share(self) -> Share:
        """The side that the pairs of a group have in common."""
        return "passage" if self.head == "choice" else "query" if self.options > 1 else "none"


_NLI = ("contradiction", "entailment", "neutral")
_SAME = ("different", "same")


def _pair_task(name: str, labels: tuple[str, ...]) -> Task:
    return Task(name=name, head="classes", metric="accuracy", labels=labels, swap=True)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(name="squad", head="span", metric="f1"),
        Task(name="squad2", head="span", metric="f1", null=True, lower=True),
        Task(name="race", head="choice", metric="accuracy", options=4),
        Task(name="boolq", head="classes", metric="accuracy", labels=("no", "yes")),
        *(_pair_task(name, _NLI) for name in ("mnli", "snli")),
        _pair_task("scitail", ("neutral", "entails")),
        *(_pair_task(name, _SAME) for name in ("qqp", "mrpc", "twitter", "paws")),
        Task(name="rank", head="rank", metric="mrr@10", options=4),
    )
}


def task_for(name: str, pairs: Sequence[Pair], heads: Sequence[HeadSpec] = ()) -> Task:
    """The task of that name; `pairs` is what the data and the model's heads say it is.

    Pairs with answers are spans, with numbers and no classes rankings, with anything else classes.
    """
    if name in TASKS:
        return TASKS[name]
    if name != "pairs":
        raise InputError(f"task {name!r} is unknown; choose one of {', '.join(TASKS)} or pairs")
    head = _head_for(pairs, heads)
    kind = head.kind if head else _kind_of(pairs)
    if kind == "classes":
        labels = head.labels if head else _labels_of(pairs)
        return Task(name="pairs", head="classes", metric="accuracy", labels=labels)
    base = {"span": TASKS["squad"], "rank": TASKS["rank"], "choice": TASKS["race"]}[kind]
    null = kind == "span" and any(not pair.answers for pair in pairs)
    return replace(base, name="pairs", null=null)


def _head_for(pairs: Sequence[Pair], heads: Sequence[HeadSpec]) -> HeadSpec | None:
    """The head that such pairs are for: of the kind that they look like, else the first."""
    answered = any(pair.answers for pair in pairs)
    if not answered and any(pair.label is not None for pair in pairs):
        # To a span head they would all be questions without an answer.
        heads = [head for head in heads if head.kind != "span"]
    kind = _kind_of(pairs)
    return next((head for head in heads if head.kind == kind), heads[0] if heads else None)


def _kind_of(pairs: Sequence[Pair]) -> HeadKind:
    if any(pair.answers for pair in pairs):
        return "span"
    if all(isinstance(pair.label, (int, float)) for pair in pairs):
        return "rank"
    return "classes"


def _labels_of(pairs: Sequence[Pair]) -> tuple[str, ...]:
    found = sorted({str(pair.label) for pair in pairs if pair.label is not None})
    if len(found) < 2:
        raise InputError(
            f"the pairs have {len(found)} different labels; give labelled pairs of two classes or more"
        )
    return tuple(found)


def head_of(task: Task, spec: ModelSpec) -> HeadSpec | None:
    """The head that a task reads, where the model has one; it must tell as many classes apart."""
    head = next((head for head in spec.heads if head.kind == task.head), None)
    if head is not None and task.labels and len(head.labels) != len(task.labels):
        raise InputError(
            f"the model tells {len(head.labels)} classes apart and the task {task.name!r} has "
            f"{len(task.labels)} ({', '.join(task.labels)}); use a model trained for it, or without a head"
        )
    return head


def by_head(task: Task, pairs: Sequence[Pair], spec: ModelSpec) -> tuple[Task, list[Pair]]:
    """The task with its classes as the model's head orders and writes them, and the pairs labelled so.

    Names match in any case, and a number counts in the task's own order. A head with other words, such as
    LABEL_0, is taken to have the task's order.
    """
    head = head_of(task, spec)
    if head is None or not task.labels or head.labels == task.labels:
        return task, list(pairs)
    names = _head_names(task, head)
    return replace(task, labels=head.labels), [_named(pair, task, names) for pair in pairs]


def _head_names(task: Task, head: HeadSpec) -> dict[str, str]:
    """What the head calls each class, by its own and the task's name of it in lower case."""
    ours = [name.lower() for name in task.labels]
    names = {name.lower(): name for name in head.labels}
    if set(names) == set(ours):
        return names
    for number, name in enumerate(ours):
        if name in names and names[name] != head.labels[number]:
            raise InputError(
                f"the model's classes are {', '.join(head.labels)} and those of the task {task.name!r} "
                f"{', '.join(task.labels)}, so which is which is unclear; label the pairs with the model's "
                "classes and use the task 'pairs'"
            )
    return names | dict(zip(ours, head.labels, strict=True))


def _named(pair: Pair, task: Task, names: Mapping[str, str]) -> Pair:
    label = pair.label
    if isinstance(label, (int, float)) and label in range(len(task.labels)):
        label = task.labels[int(label)]
    known = isinstance(label, str) and label.lower() in names
    return replace(pair, label=names[str(label).lower()]) if known else pair


def examples(pairs: Iterable[Pair], tokenizer: Tokenizer, task: Task, *, train: bool) -> Examples:
    """Tokenise pairs for a task. In training, windows without the whole answer are dropped (DeFormer, A1)."""
    listed = [_turn(pair, task) for pair in pairs]
    if not listed:
        raise InputError("the data holds no pairs; give at least one query and passage")
    queries, query_of = _unique([p.query for p in listed])
    texts, text_of = _unique([p.passage for p in listed])
    windows = tokenizer.windows(texts)
    if task.head == "span":
        return _span_examples(listed, tokenizer.queries(queries), query_of, windows, text_of, train)
    first = [found[0] for found in windows]
    made = Examples(
        queries=Ragged.stack(tokenizer.queries(queries)),
        passages=Ragged.stack([window.ids for window in first]),
        query_of=query_of,
        passage_of=text_of,
        label=np.stack([_labels(listed, task), np.zeros(len(listed), np.int32)], 1),
        score=np.asarray([_score(p) for p in listed], np.float32),
        question=_numbered([p.group or p.query for p in listed]),
        part=query_of if task.head == "rank" else text_of,
    )
    return _grouped(made, task, train)


def set_aside(
    made: Examples, pairs: Iterable[Pair], tokenizer: Tokenizer, task: Task, seed: int
) -> tuple[Examples, Examples]:
    """(train, tune) of examples that were made of these pairs to train on.

    The tune split is as `evaluate` would judge it: every window of its passages, not only those that hold an
    answer; and each passage of a query once, not the groups that a loss needs.
    """
    train, tune = made.divide(seed=seed)
    if task.head != "span" or tune.truth is None:
        return train, to_judge(tune, task)
    held = {tune.truth.texts[number] for number in np.unique(tune.part).tolist()}
    kept = [one for one in pairs if _turn(one, task).passage in held]
    return train, examples(kept, tokenizer, task, train=False)


def to_judge(made: Examples, task: Task) -> Examples:
    """Examples that were made to train on, for judging: each passage of a query once, in no group."""
    if task.head != "rank":
        return made
    alone = replace(made, per_group=1, share="none")
    pair = alone.question.astype(np.int64) * len(alone.passages) + alone.passage_of
    return alone.select(np.sort(np.unique(pair, return_index=True)[1]))


def _turn(pair: Pair, task: Task) -> Pair:
    if task.swap:
        pair = replace(pair, query=pair.passage, passage=pair.query, group=pair.id)
    if task.lower:
        lowered = pair.passage.lower()
        # A few letters grow when lowered; answers would no longer be where they were.
        passage = lowered if len(lowered) == len(pair.passage) else pair.passage
        pair = replace(pair, query=pair.query.lower(), passage=passage)
    return pair


def _unique(texts: Sequence[str]) -> tuple[list[str], Ints]:
    """Each text once, in order of appearance, and which of them every given text is."""
    numbers: dict[str, int] = {}
    of = np.asarray([numbers.setdefault(text, len(numbers)) for text in texts], np.int32)
    return list(numbers), of


def _numbered(names: Sequence[str]) -> Ints:
    return _unique(names)[1]


def _score(pair: Pair) -> float:
    return float(pair.label) if isinstance(pair.label, (int, float)) else 0.0


def _labels(pairs: Sequence[Pair], task: Task) -> Ints:
    names = {name: number for number, name in enumerate(task.labels)}
    # Of scores, unlike grades, only the side of 0 is a label.
    graded = all(pair.label.is_integer() for pair in pairs if isinstance(pair.label, float))
    return np.asarray([_label(pair, names, graded) for pair in pairs], np.int32)


def _label(pair: Pair, names: Mapping[str, int], graded: bool) -> int:
    label = pair.label
    if str(label) in names:
        return names[str(label)]
    if isinstance(label, (int, float)):
        if not names:
            return int(label if graded or isinstance(label, int) else label > 0)
        if label in range(len(names)):
            return int(label)
    expected = f"one of {', '.join(names)} or its number" if names else "a number"
    raise InputError(
        f"the pair {pair.id or pair.query!r:.60} has label {label!r}; expected {expected}; correct or drop it"
    )


def _grouped(made: Examples, task: Task, train: bool) -> Examples:
    """Groups for the loss: options of a question always, passages of a query in training."""
    if task.head == "choice":
        order = np.argsort(made.question, kind="stable")
        sizes = np.bincount(made.question)
        if (sizes != task.options).any():
            raise InputError(
                f"question {int((sizes != task.options).argmax())} of the data has "
                f"{sizes[sizes != task.options][0]} options; expected {task.options} for each"
            )
        return replace(made.select(order), per_group=task.options, share="passage")
    if task.head == "rank" and train and task.options > 1:
        return rank_groups(made, task.options - 1)
    return made


# Spans --------------------------------------------------------------------------------------------


def _span_examples(
    pairs: Sequence[Pair],
    queries: Sequence[Ids],
    query_of: Ints,
    windows: Sequence[Sequence[Window]],
    text_of: Ints,
    train: bool,
) -> Examples:
    flat = [window for found in windows for window in found]
    first = np.concatenate([[0], np.cumsum([len(found) for found in windows])[:-1]])
    rows: list[tuple[int, int, int, int]] = []
    for number, pair in enumerate(pairs):
        for shift, window in enumerate(windows[text_of[number]]):
            label = answer_rows(pair, window)
            if label is not None or not train:
                start, end = label or (0, 0)
                rows.append((number, int(first[text_of[number]]) + shift, start, end))
    if not rows:
        raise InputError("no window holds a whole answer; give longer windows (passage_tokens)")
    table = np.asarray(rows, np.int32)
    question = _numbered([pair.id or f"{n}" for n, pair in enumerate(pairs)])
    golds: dict[int, tuple[str, ...]] = {}
    for number, pair in zip(question.tolist(), pairs, strict=True):
        # A question that is asked of several passages has its answers in some of them.
        found = dict.fromkeys((*golds.get(number, ()), *(answer.text for answer in pair.answers)))
        golds[number] = tuple(found)
    offsets = [np.where(w.offsets.any(1, keepdims=True), w.offsets + w.start, 0) for w in flat]
    texts = dict(zip(text_of.tolist(), (pair.passage for pair in pairs), strict=True))
    truth = Truth(
        offsets=Ragged.stack(offsets),
        texts=tuple(texts[i] for i in range(len(windows))),
        text_of=np.repeat(np.arange(len(windows)), [len(found) for found in windows]).astype(
            np.int32
        ),
        golds=tuple(golds[i] for i in range(len(golds))),
    )
    return Examples(
        queries=Ragged.stack(queries),
        passages=Ragged.stack([window.ids for window in flat]),
        query_of=query_of[table[:, 0]],
        passage_of=table[:, 1],
        label=table[:, 2:],
        score=np.zeros(len(table), np.float32),
        question=question[table[:, 0]],
        part=text_of[table[:, 0]],
        truth=truth,
    )


def answer_rows(pair: Pair, window: Window) -> tuple[int, int] | None:
    """Rows of the first answer's start and end in the span logits; (0, 0) where the pair has no answer.

    None when the window does not hold the whole answer.
    """
    if not pair.answers:
        return 0, 0
    begin = pair.answers[0].start - window.start
    end = begin + len(pair.answers[0].text)
    if begin < 0 or end > len(window.text):
        return None
    touched = (window.offsets[:, 0] < end) & (window.offsets[:, 1] > begin)
    found = np.flatnonzero(touched & window.offsets.any(1))
    if not len(found):
        return None
    return int(found[0]) + 1, int(found[-1]) + 1
