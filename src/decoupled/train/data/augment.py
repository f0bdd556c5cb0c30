"""More pairs for distillation, which needs no labels: the teacher judges any query over any passage.

Each function gives new examples over the texts of the old ones; `combine` puts them together.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from decoupled.errors import InputError
from decoupled.model.spec import TextSpec
from decoupled.model.states import Ragged
from decoupled.train.data.batches import Groups
from decoupled.train.data.examples import Examples
from decoupled.train.losses import UNLABELLED


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
