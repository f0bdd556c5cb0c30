"""What a trained reader's scores mean, learnt on the queries that were set aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from mixture import Asked, Kind, Mixture

from decoupled.errors import DecoupledError
from decoupled.measure.pairs import Pair
from decoupled.methods.scores.fields import Field, field_of
from decoupled.methods.scores.scoring import fit_scoring
from decoupled.model.tokens import Passage

logger = getLogger(__name__)

QUERIES = 20
"""Held out of a dataset, fewer say nothing."""
PASSAGES = 1000
"""Beside those that answer, at most so many stand in the corpus of a dataset."""


def learn_scores(
    model: str | Path, mixture: Mixture, negatives: npt.NDArray[np.integer[Any]]
) -> bool:
    """Keep in the model's folder how to blend and calibrate; false where too few queries are held out."""
    fields = held_fields(mixture, negatives)
    try:
        if fields:
            fit_scoring(model, fields)
    except DecoupledError as error:
        # No store on a box that only trains, or a model that is always wrong: it is trained all the same.
        logger.warning("the scores of %s are not calibrated: %s", model, error)
        return False
    return bool(fields)


def held_fields(mixture: Mixture, negatives: npt.NDArray[np.integer[Any]]) -> list[Field]:
    """The held-out queries of each dataset that has enough, over their passages and those that were mined."""
    by_name: dict[str, list[int]] = {}
    for number, asked in enumerate(mixture.asked):
        if asked.held:
            by_name.setdefault(asked.dataset, []).append(number)
    return [
        _field(mixture, name, numbers, negatives[numbers])
        for name, numbers in by_name.items()
        if len(numbers) >= QUERIES
    ]


def _field(
    mixture: Mixture, name: str, numbers: Sequence[int], mined: npt.NDArray[np.integer[Any]]
) -> Field:
    asked = [mixture.asked[number] for number in numbers]
    reads = any(one.answers for one in asked)
    pairs = [pair for one in asked for pair in _pairs(mixture, one, reads)]
    made = field_of(name, pairs)
    known = {passage.text for passage in made.passages}
    others = [mixture.texts[n] for n in dict.fromkeys(mined.T.ravel().tolist()) if n >= 0]
    more = [p.text for p in others if p.text not in known][:PASSAGES]
    extra = [Passage(id=f"other {n}", text=text) for n, text in enumerate(more)]
    return replace(made, passages=[*made.passages, *extra])


def _pairs(mixture: Mixture, asked: Asked, reads: bool) -> list[Pair]:
    """The query over each text that answers it; where others are marked, those that nobody marked go."""
    return [
        Pair(query=asked.query, passage=mixture.texts[text].text, answers=(span,) if span else ())
        for text, span in zip(asked.own, asked.spans, strict=True)
        if span or not reads or asked.kind == Kind.UNANSWERABLE
    ]
