"""Fit a cascade to an index and choose how much of the candidates the cross component must still read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.documents import Query
from decoupled.index.index import Index
from decoupled.index.store.base import Rows, Snapshot
from decoupled.measure.ranking import Qrels, mrr
from decoupled.measure.retrieval import judged_queries
from decoupled.model.progress import Progress, counter
from decoupled.model.states import Ragged, States
from decoupled.search import cross
from decoupled.search import first_stage as candidates
from decoupled.search.engine import Engine
from decoupled.search.first_stage import FirstStage
from decoupled.search.late_interaction.fit import Judged, fit_metric
from decoupled.search.late_interaction.look import MARGIN, Cascade, codes_of
from decoupled.search.request import CANDIDATES

KEEPS = (0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
LOSS = 0.002
"""Relative loss of MRR@10 that a cascade may cost."""
HITS = 10
"""Candidates that are always read: as many as a search returns."""
FEWEST = 8


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What one share costs, on the queries that the metric was not fitted to."""

    keep: float
    read: float
    """Share of the candidates that were read, the guard's included."""
    mrr: float
    loss: float
    """Relative to reading all of them."""

    def to_json(self) -> dict[str, float]:
        """Rounded."""
        return {name: round(value, 4) for name, value in vars(self).items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Tuned:
    """A cascade and the figures behind it."""

    cascade: Cascade
    cuts: tuple[Cut, ...]
    plain: tuple[Cut, ...]
    """The same shares with the plain cosine."""
    queries: int
    fitted: int
    judged: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "keep": self.cascade.keep,
            "margin": self.cascade.margin,
            "fitted_on": self.fitted,
            "judged_on": self.queries,
            "against": "judgments" if self.judged else "the cross component's first hit",
            "cuts": [cut.to_json() for cut in self.cuts],
            "plain": [cut.to_json() for cut in self.plain],
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """One query: its states, its candidates, and what the cross component made of them."""

    id: str
    query: States
    rows: Rows
    ids: tuple[str, ...]
    logits: npt.NDArray[np.float64]


class Shelf(Sequence[Judged]):
    """Queries as the fit takes them; the codes of their candidates are read again each time."""

    def __init__(self, engine: Engine, snapshot: Snapshot, seen: Sequence[Seen]) -> None:
        self._engine, self._snapshot, self._seen = engine, snapshot, seen

    def __len__(self) -> int:
        return len(self._seen)

    def __getitem__(self, number: Any) -> Any:
        one = self._seen[number]
        assert self._engine.index is not None
        codec = self._engine.index.codec
        encoded = self._snapshot.states(one.rows)
        return Judged(
            query=codes_of(one.query, codec),
            passages=Ragged(codes_of(encoded, codec), encoded.lengths),
            scores=one.logits,
        )


def fit_cascade(
    index: Index,
    data: str | Path,
    *,
    loss: float = LOSS,
    limit: int = 400,
    candidates: int = CANDIDATES,
    progress: Progress | None = None,
) -> Tuned:
    """Fit a cheap look at the candidates to an index, so that `cascade="auto"` reads only the best of them.

    The data are queries: a file of them, or a BEIR folder with judgments; the first `limit` are used. The
    cascade is kept with the index.
    """
    queries, qrels = judged_queries(data, limit)
    engine = Engine(index)
    tuned = tune_cascade(engine, queries, qrels, count=candidates, loss=loss, progress=progress)
    tuned.cascade.save(index.location)
    return tuned


def tune_cascade(
    engine: Engine,
    queries: Sequence[Query],
    qrels: Qrels | None = None,
    *,
    first_stage: FirstStage | Literal["auto"] = "auto",
    count: int = CANDIDATES,
    loss: float = LOSS,
    progress: Progress | None = None,
) -> Tuned:
    """Fit on every second query, choose on the others the smallest share that loses at most `loss`.

    The loss is relative, of MRR@10. Without judgments the passage that the cross component ranks first among
    all candidates counts as the right one, which asks for more: a cut must then keep even its mistakes.
    """
    engine.spec.head("rank")
    snapshot = engine.index.refresh() if engine.index is not None else None
    if snapshot is None or not len(snapshot):
        raise InputError("a cascade is fitted to an index with passages; add some first")
    asked = [q for q in queries if qrels is None or q.id in qrels]
    _enough(asked)
    seen, told = [], counter(progress, len(asked))
    for query in asked:
        seen.append(_see(engine, snapshot, query, first_stage, count))
        told(1)
    seen = [one for one in seen if len(one.rows) > 1]
    _enough(seen)
    fitting, choosing = seen[::2], seen[1::2]
    truth = {o.id: qrels[o.id] if qrels is not None else {_full(o)[0]: 1} for o in choosing}
    whole = _whole(choosing, truth)
    metric = fit_metric(Shelf(engine, snapshot, fitting))
    shelf = Shelf(engine, snapshot, choosing)
    cuts = _cuts(Cascade(keep=1.0, metric=metric), choosing, shelf, truth, whole)
    plain = _cuts(Cascade(keep=1.0), choosing, shelf, truth, whole)
    best = chosen_cut(cuts, loss)
    made = Cascade(keep=best.keep, margin=MARGIN, metric=metric)
    tuned = Tuned(
        cascade=made,
        cuts=cuts,
        plain=plain,
        queries=len(choosing),
        fitted=len(fitting),
        judged=qrels is not None,
    )
    return replace(tuned, cascade=replace(made, report=json.dumps(tuned.to_json())))


def chosen_cut(cuts: Sequence[Cut], loss: float) -> Cut:
    """The cut that reads least within the loss; of those that read alike, the largest share.

    A search reads ten passages at least, so small shares look alike here, but not when answers are read.
    """
    least = next(cut for cut in cuts if cut.loss <= loss)
    return next(cut for cut in reversed(cuts) if cut.read == least.read)


def _enough(usable: Sequence[Query] | Sequence[Seen]) -> None:
    """Refuse to choose by hardly any query: those without judgments or with one candidate do not count."""
    if len(usable) < FEWEST:
        raise InputError(f"{len(usable)} queries can be used; give at least {FEWEST}, or hundreds")


def _see(
    engine: Engine,
    snapshot: Snapshot,
    query: Query,
    stage: FirstStage | Literal["auto"],
    count: int,
) -> Seen:
    encoding = engine.encode_query(query.text)
    chosen = engine.first_stage(stage)
    rows = candidates.find(snapshot, chosen, query.text, encoding.vectors[0], count).rows
    states = snapshot.states(rows)
    logits = cross.score(engine.runtime, encoding.states, states, ("rank",))["rank"]
    ids = tuple(excerpt.id for excerpt in snapshot.texts(rows))
    return Seen(
        id=query.id,
        query=encoding.states,
        rows=rows,
        ids=ids,
        logits=logits.values[:, 0].astype(np.float64),
    )


def _full(one: Seen, kept: npt.NDArray[np.int64] | None = None) -> list[str]:
    """Ids of the candidates that are read, best first, each once."""
    chosen = np.arange(len(one.rows)) if kept is None else kept
    order = chosen[np.argsort(-one.logits[chosen], kind="stable")]
    return list(dict.fromkeys(one.ids[n] for n in order))


def _whole(seen: Sequence[Seen], truth: Qrels) -> float:
    """MRR@10 with all candidates read, which a loss is relative to."""
    whole = mrr({one.id: _full(one) for one in seen}, truth, 10)
    if not whole:
        raise InputError(
            f"MRR@10 of {len(seen)} queries is 0 with all candidates read, so no share can be chosen; the "
            "judgments must name passages of this index, by the same ids"
        )
    return whole


def _cuts(
    cascade: Cascade, seen: Sequence[Seen], shelf: Shelf, truth: Qrels, whole: float
) -> tuple[Cut, ...]:
    """Every share, smallest first; the last one reads everything."""
    scores = [cascade.look(judging.query, judging.passages) for judging in shelf]
    found = []
    for keep in KEEPS:
        cut = replace(cascade, keep=keep)
        kept = [cut.choose(values, HITS) for values in scores]
        run = {one.id: _full(one, rows) for one, rows in zip(seen, kept, strict=True)}
        value = mrr(run, truth, 10)
        read = sum(map(len, kept)) / sum(len(one.rows) for one in seen)
        found.append(Cut(keep=keep, read=read, mrr=value, loss=(whole - value) / whole))
    return tuple(found)
