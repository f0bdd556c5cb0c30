"""More pairs than the data has: for distillation, which needs no labels, and hard negatives of a ranking.

The teacher judges any query over any passage. `combine` puts several sets of examples together.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from decoupled.errors import InputError
from decoupled.measure.pairs import Pair
from decoupled.model.spec import TextSpec
from decoupled.model.states import Ragged
from decoupled.train.data.batches import Groups
from decoupled.train.data.examples import ARRAYS, Examples
from decoupled.train.losses import UNLABELLED


def bm25_of(texts: Sequence[str]) -> Any:
    """BM25 over these texts, by the program in the folder beside this one."""
    sys.path.append(str(Path(__file__).parents[1] / "starter"))
    from bm25 import Bm25

    return Bm25(texts)


def shuffled(examples: Examples, count: int, seed: int = 0, *, null: bool = False) -> Examples:
    """Queries over passages of other parts: unlabelled, or without an answer where the task knows that.

    Pairs that the data already has are left out, so that there may be fewer than `count`.
    """
    _check_lone(examples)
    draw = np.random.default_rng([seed, 1])
    rows = draw.integers(len(examples), size=count)
    others = draw.integers(len(examples), size=count)
    known = _key(examples, np.arange(len(examples)), np.arange(len(examples)))
    apart = examples.part[rows] != examples.part[others]
    apart &= ~np.isin(_key(examples, rows, others), known)
    rows, others = rows[apart], others[apart]
    picked = examples.select(rows)
    label = np.full_like(picked.label, 0 if null else UNLABELLED)
    return replace(picked, passage_of=examples.passage_of[others], label=label, truth=None)


def cropped(examples: Examples, text: TextSpec, count: int, seed: int = 0) -> Examples:
    """Stretches of 6 to 16 tokens of a passage as queries over it, unlabelled."""
    _check_lone(examples)
    draw = np.random.default_rng([seed, 2])
    rows = draw.integers(len(examples), size=count)
    before, after = len(text.passage_prefix), len(text.passage_suffix)
    room = text.query_tokens - len(text.query_prefix) - len(text.query_suffix)
    queries = []
    for row in rows:
        ids = examples.passages[int(examples.passage_of[row])]
        body = ids[before : len(ids) - after]
        length = min(int(draw.integers(6, 17)), len(body), room)
        start = int(draw.integers(len(body) - length + 1))
        crop = body[start : start + length]
        queries.append(np.asarray([*text.query_prefix, *crop, *text.query_suffix], np.int32))
    if not queries:
        raise InputError("no queries were to be cropped; ask for at least one")
    picked = examples.select(rows)
    return replace(
        picked,
        queries=Ragged.stack(queries),
        query_of=np.arange(count, dtype=np.int32),
        question=np.arange(count, dtype=np.int32),
        label=np.full_like(picked.label, UNLABELLED),
        truth=None,
    )


def _key(examples: Examples, queries: Groups, passages: Groups) -> Groups:
    """A number for the pair of one row's query and another row's passage."""
    first = examples.query_of[queries].astype(np.int64) * len(examples.passages)
    return first + examples.passage_of[passages]


def _check_lone(examples: Examples) -> None:
    if examples.per_group > 1:
        raise InputError(
            f"examples in groups of {examples.per_group} cannot be shuffled; "
            "use a task of single pairs (span, classes)"
        )


def combine(parts: Sequence[Examples]) -> Examples:
    """Several sets of one task as one; questions, texts and parts keep apart."""
    first = parts[0]
    if any((p.per_group, p.share) != (first.per_group, first.share) for p in parts):
        raise InputError("examples of groups of different sizes cannot be combined")
    joined: dict[str, list[Any]] = {name: [] for name in ARRAYS}
    shift = dict.fromkeys(("query_of", "passage_of", "question", "part"), 0)
    for one in parts:
        for name in ARRAYS:
            array = getattr(one, name)
            joined[name].append(array + np.int32(shift[name]) if name in shift else array)
        shift["query_of"] += len(one.queries)
        shift["passage_of"] += len(one.passages)
        for name in ("question", "part"):
            shift[name] += int(getattr(one, name).max(initial=-1)) + 1
    arrays: dict[str, Any] = {name: np.concatenate(found) for name, found in joined.items()}
    queries, passages = (
        Ragged.concat([getattr(p, side) for p in parts]) for side in ("queries", "passages")
    )
    return replace(first, queries=queries, passages=passages, truth=None, **arrays)


def with_hard_negatives(pairs: Sequence[Pair], count: int, *, depth: int = 50) -> list[Pair]:
    """Each query's pairs and `count` more with grade 0: the best of BM25 that no pair of it judges.

    A passage that holds one of the query's known answers is no negative and is passed over.
    """
    texts = list(dict.fromkeys(pair.passage for pair in pairs))
    index = bm25_of(texts)
    judged: dict[str, set[str]] = {}
    golds: dict[str, list[str]] = {}
    first: dict[str, Pair] = {}
    for pair in pairs:
        key = pair.group or pair.query
        judged.setdefault(key, set()).add(pair.passage)
        golds.setdefault(key, []).extend(answer.text.lower() for answer in pair.answers)
        first.setdefault(key, pair)
    made = [replace(pair, label=1) if pair.answers else pair for pair in pairs]
    for key, pair in first.items():
        found = 0
        for number in index.best(pair.query, depth):
            text = texts[number]
            if text in judged[key] or any(gold in text.lower() for gold in golds[key]):
                continue
            name = f"{pair.id}:negative{found}"
            made.append(replace(pair, passage=text, label=0, answers=(), id=name, group=key))
            found += 1
            if found == count:
                break
    return made
