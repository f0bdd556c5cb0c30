"""Groups for a ranking loss: a relevant passage of a query, and some that are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from decoupled.errors import InputError
from decoupled.train.data.examples import Examples


def rank_groups(made: Examples, negatives: int, seed: int = 0) -> Examples:
    """One group per relevant pair: it and `negatives` of its query, the rest drawn from all passages.

    Given scores stay; a passage that is drawn has none, and counts as the lowest of them.
    """
    draw = np.random.default_rng(seed)
    known: dict[int, list[int]] = {}
    judged: dict[int, set[int]] = {}
    relevant: dict[int, set[int]] = {}
    for row in range(len(made)):
        question, passage = int(made.question[row]), int(made.passage_of[row])
        judged.setdefault(question, set()).add(passage)
        if made.label[row, 0] <= 0:
            known.setdefault(question, []).append(row)
        else:
            relevant.setdefault(question, set()).add(passage)
    rows, passages, label, score = [], [], [], []
    count, lowest = len(made.passages), min(0.0, float(made.score.min(initial=0.0)))
    for positive in np.flatnonzero(made.label[:, 0] > 0).tolist():
        question = int(made.question[positive])
        barred = judged[question] if count > len(judged[question]) else relevant[question]
        if len(barred) == count:
            continue  # every passage is relevant, so none can stand below
        hard = known.get(question, [])
        chosen = [int(i) for i in draw.permutation(hard)[:negatives]]
        picked = [int(made.passage_of[i]) for i in chosen]
        score += [float(made.score[i]) for i in (positive, *chosen)]
        while len(picked) < negatives:
            other = int(draw.integers(count))
            if other not in barred:
                picked.append(other)
                chosen.append(positive)
                score.append(lowest)
        rows += [positive, *chosen]
        passages += [int(made.passage_of[positive]), *picked]
        label += [int(made.label[positive, 0]), *(0 for _ in picked)]
    if not rows:
        raise InputError(
            "no query has a relevant pair (label above 0) and a passage that is not relevant to it, so "
            "there is nothing to rank; label some pairs above 0 and others 0"
        )
    grouped = made.select(np.asarray(rows, np.int64))
    return replace(
        grouped,
        passage_of=np.asarray(passages, np.int32),
        label=np.stack([np.asarray(label, np.int32), np.zeros(len(label), np.int32)], 1),
        score=np.asarray(score, np.float32),
        per_group=negatives + 1,
        share="query",
    )
