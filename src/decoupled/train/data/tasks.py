"""Tasks: which head reads the pairs, what their labels are, and what is measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from decoupled.errors import InputError, OptionError
from decoupled.measure.pairs import Pair
from decoupled.model.parts.head import HeadDense, HeadKind, HeadSpec
from decoupled.model.spec import ModelSpec

Metric = Literal["f1", "accuracy", "mrr@10"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task: which head is trained, how labels are read, and what is measured."""

    name: str
    head: HeadKind
    metric: Metric
    """The metric that the tune split is judged by."""
    labels: tuple[str, ...] = ()
    """Names of the classes; a numeric label is an index into them."""
    null: bool = False
    """Whether a question may have no answer in its passage."""
    swap: bool = False
    """Whether the first text of the data is the cached side."""
    options: int = 1
    """The number of pairs in a group: options of a question, or a positive and its negatives."""

    @property
    def head_spec(self) -> HeadSpec:
        """A new head for this task: DeFormer's tanh layer for pooled heads, a linear map for spans."""
        dense = None if self.head == "span" else HeadDense(activation="tanh")
        return HeadSpec(kind=self.head, labels=self.labels, dense=dense)

    @property
    def threshold(self) -> float | None:
        """No answer when its score beats the best span's by more than this; None never leaves one out."""
        return 0.0 if self.null else None


_NLI = ("contradiction", "entailment", "neutral")
_SAME = ("different", "same")


def _pair_task(name: str, labels: tuple[str, ...]) -> Task:
    return Task(name=name, head="classes", metric="accuracy", labels=labels, swap=True)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(name="squad", head="span", metric="f1"),
        Task(name="squad2", head="span", metric="f1", null=True),
        Task(name="race", head="choice", metric="accuracy", options=4),
        Task(name="boolq", head="classes", metric="accuracy", labels=("no", "yes")),
        *(_pair_task(name, _NLI) for name in ("mnli", "snli")),
        _pair_task("scitail", ("neutral", "entails")),
        *(_pair_task(name, _SAME) for name in ("qqp", "mrpc", "twitter", "paws")),
        Task(name="rank", head="rank", metric="mrr@10", options=4),
    )
}


def check_task(name: str, *more: str) -> None:
    """Raise `OptionError` for an unknown task, before anything is loaded."""
    if name not in (*TASKS, "pairs"):
        names = ", ".join((*TASKS, "pairs", *more))
        raise OptionError("task", f"is {name!r}; choose one of {names}")


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
        names_seen = sorted({str(pair.label) for pair in pairs if pair.label is not None})
        labels = head.labels if head else tuple(names_seen)
        if len(labels) < 2 and head is None:
            raise InputError(
                f"the pairs have {len(labels)} different labels; give labelled pairs of two classes or more"
            )
        return Task(name="pairs", head="classes", metric="accuracy", labels=labels)
    base = {"span": TASKS["squad"], "rank": TASKS["rank"], "choice": TASKS["race"]}[kind]
    null = kind == "span" and any(not pair.answers for pair in pairs)
    return replace(base, name="pairs", null=null)


def _head_for(pairs: Sequence[Pair], heads: Sequence[HeadSpec]) -> HeadSpec | None:
    """The head that such pairs are for: of the kind that they look like, else the first one."""
    kind = _kind_of(pairs)
    if kind != "span" and any(pair.label is not None for pair in pairs):
        # To a span head they would all be questions without an answer.
        heads = [head for head in heads if head.kind != "span"]
    return next((head for head in heads if head.kind == kind), heads[0] if heads else None)


def _kind_of(pairs: Sequence[Pair]) -> HeadKind:
    if any(pair.answers for pair in pairs):
        return "span"
    if all(isinstance(pair.label, (int, float)) for pair in pairs):
        return "rank"
    return "classes"


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
    """The head's name of each class, by the head's and by the task's name in lower case."""
    ours = [name.lower() for name in task.labels]
    names = {name.lower(): name for name in head.labels}
    # Equal names in another order need no guess.
    if set(names) == set(ours):
        return names
    # Different words are matched by position, unless a shared word contradicts that.
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
    yes_or_no = isinstance(label, str) and label.lower() in names
    return replace(pair, label=names[str(label).lower()]) if yes_or_no else pair
