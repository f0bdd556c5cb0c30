"""`prepare`: pairs as a user gives them → a task, groups and tokens, for all that trains or judges.

A task's passage is the side that is cached, so tasks over sentence pairs swap the sides of the data.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from decoupled.errors import InputError
from decoupled.measure.pairs import Pair
from decoupled.model import annex
from decoupled.model.model import Model
from decoupled.model.spec import TextSpec
from decoupled.model.states import Ragged
from decoupled.model.tokens import Ids, Tokenizer, Window
from decoupled.runtime.base import Runtime
from decoupled.train.data.examples import Examples, Ints, Truth
from decoupled.train.data.tasks import Task, by_head, task_for


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Pairs made ready for a task: tokenised once for each tokenizer that is to read them."""

    task: Task
    read: Callable[[Tokenizer], Examples]
    pairs: Sequence[Pair] = ()
    """The pairs, labelled as the model's head labels them."""
    progress: Callable[[int], None] | None = None
    """Called with the number of groups of each batch that was read."""

    def examples(self, model: Model | Runtime) -> Examples:
        """All examples, in the model's own tokens."""
        return self.read(model.tokenizer)

    def divided(self, model: Model, seed: int) -> tuple[Examples, Examples]:
        """(train, tune), where tune is as `evaluate` would judge it.

        So it has every window of its passages, not only those that hold an answer; and each passage of a
        query once, not the groups that a loss needs.
        """
        train, tune = self.examples(model).divide(seed=seed)
        if self.task.head != "span" or tune.truth is None:
            return train, to_judge(tune, self.task)
        held = {tune.truth.texts[number] for number in np.unique(tune.part).tolist()}
        kept = [pair for pair in self.pairs if _turn(pair, self.task).passage in held]
        return train, tokenise(kept, model.tokenizer, self.task, train=False)


def prepare(
    pairs: Iterable[Pair],
    model: Model | Runtime,
    task: str = "pairs",
    *,
    train: bool = True,
    limit: int | None = None,
) -> Prepared:
    """Pairs for a task or, with `pairs`, for what they and the model's heads say it is.

    To train on they are grouped as a loss needs them. With `train=False` they are for scores, and the model
    must have the head; `limit` keeps the first queries, with all options or passages of each.
    """
    all_pairs, spec = list(pairs), model.spec
    chosen_task = task_for(task, all_pairs, spec.heads)
    # With several heads the data must decide which one is judged; the model must have it.
    if not train and (task != "pairs" or len(spec.heads) != 1):
        spec.head(task_for(task, all_pairs).head)
    what, labelled = by_head(chosen_task, all_pairs, spec)
    listed = _first_queries(labelled, what, limit)
    cached: dict[tuple[str, TextSpec], Examples] = {}

    def read(tokenizer: Tokenizer) -> Examples:
        key = (tokenizer.json, tokenizer.spec)
        if key not in cached:
            examples = tokenise(listed, tokenizer, what, train=train)
            hopping = train and any(block.part.kind == "hop" for block in spec.encoder.blocks)
            if hopping and what.head == "span":
                examples = annex.load("hop.examples").linked_groups(examples, listed)
            cached[key] = examples
        return cached[key]

    return Prepared(task=what, read=read, pairs=listed)


def _first_queries(pairs: list[Pair], task: Task, limit: int | None) -> list[Pair]:
    if limit is None or task.head not in ("choice", "rank"):
        return pairs[:limit]
    # Whole queries are kept: a ranking with some of its passages missing would score too well.
    kept = set(list(dict.fromkeys(pair.group or pair.query for pair in pairs))[:limit])
    return [pair for pair in pairs if (pair.group or pair.query) in kept]


def tokenise(pairs: Iterable[Pair], tokenizer: Tokenizer, task: Task, *, train: bool) -> Examples:
    """Pairs as examples of a task. In training, windows without the whole answer go (DeFormer, A1)."""
    listed = [_turn(pair, task) for pair in pairs]
    if not listed:
        raise InputError("the data holds no pairs; give at least one query and passage")
    queries, query_of = _unique([p.query for p in listed])
    texts, text_of = _unique([p.passage for p in listed])
    # The last of equal texts gives the structure; they are taken to have equal parses.
    structures = dict(zip(text_of.tolist(), (p.structure for p in listed), strict=True))
    windows = tokenizer.windows(texts, structures=[structures[n] for n in range(len(texts))])
    if task.head == "span":
        return _span_examples(listed, tokenizer.queries(queries), query_of, windows, text_of, train)
    scores = [p.label if isinstance(p.label, (int, float)) else 0.0 for p in listed]
    examples = Examples(
        queries=Ragged.stack(tokenizer.queries(queries)),
        passages=Ragged.stack([own[0].ids for own in windows]),
        query_of=query_of,
        passage_of=text_of,
        label=np.asarray([(label, 0) for label in _labels(listed, task)], np.int32),
        score=np.asarray(scores, np.float32),
        question=_unique([p.group or p.query for p in listed])[1],
        part=query_of if task.head == "rank" else text_of,
    )
    return _grouped(examples, task, train)


def to_judge(examples: Examples, task: Task) -> Examples:
    """Examples made for training, as judging needs them: each passage of a query once, in no group."""
    if task.head != "rank":
        return examples
    alone = replace(examples, per_group=1, share="none")
    # One number per (query, passage), so that unique finds repeated pairs.
    pair = alone.question.astype(np.int64) * len(alone.passages) + alone.passage_of
    return alone.select(np.sort(np.unique(pair, return_index=True)[1]))


def _turn(pair: Pair, task: Task) -> Pair:
    if task.swap:
        return replace(pair, query=pair.passage, passage=pair.query, group=pair.id)
    return pair


def _unique(texts: Sequence[str]) -> tuple[list[str], Ints]:
    """Each text once, in order of appearance, and which of them every given text is."""
    numbers: dict[str, int] = {}
    of = np.asarray([numbers.setdefault(text, len(numbers)) for text in texts], np.int32)
    return list(numbers), of


def _labels(pairs: Sequence[Pair], task: Task) -> list[int]:
    names = {name: number for number, name in enumerate(task.labels)}
    # Of scores, unlike grades, only the side of 0 is a label.
    graded = all(pair.label.is_integer() for pair in pairs if isinstance(pair.label, float))
    return [_label(pair, names, graded) for pair in pairs]


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


def _grouped(examples: Examples, task: Task, train: bool) -> Examples:
    """Groups for the loss: options of a question always, passages of a query in training."""
    if task.head == "choice":
        # Options of a question must be neighbours, since a group is a stretch of rows.
        order = np.argsort(examples.question, kind="stable")
        sizes = np.bincount(examples.question)
        if (sizes != task.options).any():
            raise InputError(
                f"question {int((sizes != task.options).argmax())} of the data has "
                f"{sizes[sizes != task.options][0]} options; expected {task.options} for each"
            )
        return replace(examples.select(order), per_group=task.options, share="passage")
    if task.head == "rank" and train and task.options > 1:
        return rank_groups(examples, task.options - 1)
    return examples


def rank_groups(examples: Examples, negatives: int, seed: int = 0) -> Examples:
    """One group per relevant pair: it and `negatives` of its query, the rest drawn from all passages.

    Given scores stay; a passage that is drawn has none, and counts as the lowest of them.
    """
    draw = np.random.default_rng(seed)
    positives: dict[int, list[int]] = defaultdict(list)
    labelled: dict[int, set[int]] = defaultdict(set)
    relevant: dict[int, set[int]] = defaultdict(set)
    for row, question in enumerate(examples.question.tolist()):
        labelled[question].add(int(examples.passage_of[row]))
        if examples.label[row, 0] <= 0:
            positives[question].append(row)
        else:
            relevant[question].add(int(examples.passage_of[row]))
    rows, passages, label, score = [], [], [], []
    count, lowest = len(examples.passages), min(0.0, float(examples.score.min(initial=0.0)))
    for positive in np.flatnonzero(examples.label[:, 0] > 0).tolist():
        question = int(examples.question[positive])
        # Labelled passages are not drawn as negatives, unless nothing else is left.
        barred = labelled[question] if count > len(labelled[question]) else relevant[question]
        if len(barred) == count:
            continue  # every passage is relevant, so none can stand below
        chosen = [int(i) for i in draw.permutation(positives[question])[:negatives]]
        picked = [int(examples.passage_of[i]) for i in chosen]
        score += [float(examples.score[i]) for i in (positive, *chosen)]
        while len(picked) < negatives:
            other = int(draw.integers(count))
            if other not in barred:
                picked.append(other)
                chosen.append(positive)
                score.append(lowest)
        rows += [positive, *chosen]
        passages += [int(examples.passage_of[positive]), *picked]
        label += [int(examples.label[positive, 0]), *(0 for _ in picked)]
    if not rows:
        raise InputError(
            "no query has a relevant pair (label above 0) and a passage that is not relevant to it, so "
            "there is nothing to rank; label some pairs above 0 and others 0"
        )
    return replace(
        examples.select(np.asarray(rows, np.int64)),
        passage_of=np.asarray(passages, np.int32),
        label=np.asarray([(grade, 0) for grade in label], np.int32),
        score=np.asarray(score, np.float32),
        per_group=negatives + 1,
        share="query",
    )


# Spans --------------------------------------------------------------------------------------------


def _span_examples(
    pairs: Sequence[Pair],
    queries: Sequence[Ids],
    query_of: Ints,
    windows: Sequence[Sequence[Window]],
    text_of: Ints,
    train: bool,
) -> Examples:
    flat = [window for own in windows for window in own]
    counts = [len(own) for own in windows]
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rows: list[tuple[int, int, int, int]] = []
    for number, pair in enumerate(pairs):
        for shift, window in enumerate(windows[text_of[number]]):
            # A window that cuts the answer would teach that there is none.
            label = answer_rows(pair, window)
            if label is not None or not train:
                start, end = label or (0, 0)
                rows.append((number, int(first[text_of[number]]) + shift, start, end))
    if not rows:
        raise InputError("no window holds a whole answer; give longer windows (passage_tokens)")
    table = np.asarray(rows, np.int32)
    question = _unique([pair.id or f"{n}" for n, pair in enumerate(pairs)])[1]
    golds: dict[int, tuple[str, ...]] = {}
    for number, pair in zip(question.tolist(), pairs, strict=True):
        # A question that is asked of several passages has its answers in some of them.
        answers = dict.fromkeys((*golds.get(number, ()), *(answer.text for answer in pair.answers)))
        golds[number] = tuple(answers)
    # Offsets within the whole passage; special tokens keep (0, 0).
    offsets = [np.where(w.offsets.any(1, keepdims=True), w.offsets + w.start, 0) for w in flat]
    texts = dict(zip(text_of.tolist(), (pair.passage for pair in pairs), strict=True))
    truth = Truth(
        offsets=Ragged.stack(offsets),
        texts=tuple(texts[i] for i in range(len(windows))),
        text_of=np.repeat(np.arange(len(windows), dtype=np.int32), counts),
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
    return span_rows(pair.answers[0].start, len(pair.answers[0].text), window)


def span_rows(start: int, length: int, window: Window) -> tuple[int, int] | None:
    """Rows of the first and last token of these characters; None where the window does not hold them all."""
    begin = start - window.start
    end = begin + length
    if begin < 0 or end > len(window.text):
        return None
    # A token counts when it overlaps the answer, even where a word was split otherwise.
    touched = (window.offsets[:, 0] < end) & (window.offsets[:, 1] > begin)
    tokens = np.flatnonzero(touched & window.offsets.any(1))
    if not len(tokens):
        return None
    # Row 0 of the span logits is no-answer.
    return int(tokens[0]) + 1, int(tokens[-1]) + 1
