"""Which records a search reads, and what is known of them before the cross component reads them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from decoupled.index.store.base import Ranking, Rows, Snapshot
from decoupled.model import annex
from decoupled.model.scoring import Floats, Scoring
from decoupled.model.spec import ModelSpec
from decoupled.search.first_stage import FirstStage, Sought, prior, retrieve
from decoupled.search.late_interaction import finite
from decoupled.search.request import Search
from decoupled.search.sample import Sample


def find(
    search: Search,
    snapshot: Snapshot,
    spec: ModelSpec,
    late: Callable[[Rows], npt.NDArray[np.float32]],
    sample: Callable[[Snapshot], Sample],
) -> tuple[Rows, Floats]:
    """Those of the reader's share, and what is added to the rank logit of each; nothing where none is."""
    request, scoring = search.request, spec.scoring or Scoring()
    auto: FirstStage = "hybrid" if spec.vector else "lexical"
    stage = auto if request.first_stage == "auto" else request.first_stage

    def ranked(stage: FirstStage) -> Ranking:
        return retrieve(sought, stage, request.candidates, request.where, scoring.fusion)

    def heard(rows: Rows) -> Floats:
        search.late = late(rows)
        return finite(search.late)

    vector = search.encoding.vectors[0]
    sought = Sought(snapshot, request.query, vector, heard if spec.late else None, sample)
    ranking = ranked(stage)
    if request.hops > 1:
        ranking = annex.load("hop.links").follow(snapshot, ranking, request.hops)
    if request.show_first_stage:
        parts: tuple[FirstStage, ...] = ("lexical", "dense") if stage == "hybrid" else ()
        search.rankings = {**{part: ranked(part) for part in parts}, stage: ranking}
    # Standardised over all candidates, so that every share says the same about its own.
    added = np.zeros(0)
    if request.blend and (request.head == "rank" or scoring.answer_rank):
        added = request.blend * prior(sought, ranking.rows, scoring)
    mine = snapshot.mine(ranking.rows)
    own = np.isin(ranking.rows, mine)
    search.late = search.late[own] if len(search.late) else search.late
    if search.read is not None and not own.all():
        search.read = search.read.select(np.flatnonzero(own))
    return mine, added[own] if len(added) else added
