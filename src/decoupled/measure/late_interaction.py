"""Fit late interaction to an index and choose the share of the candidates that must still be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.documents import Query
from decoupled.index.index import Index
from decoupled.measure.metrics import Qrels, mrr
from decoupled.measure.retrieval import judged_queries
from decoupled.measure.table import Table
from decoupled.model.progress import Progress, counter
from decoupled.model.states import Ragged
from decoupled.search.engine import Engine
from decoupled.search.first_stage import CANDIDATES
from decoupled.search.late_interaction import Judged, LateInteraction, codes_of, fit_metric
from decoupled.search.request import Request

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

    cascade: LateInteraction
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

    def table(self) -> Table:
        """What each share costs, beside what it would by plain cosines."""
        rows = [
            (cut.keep, cut.read, cut.mrr, f"{cut.loss:.2%}", f"{plain.loss:.2%}")
            for cut, plain in zip(self.cuts, self.plain, strict=True)
        ]
        return Table(
            columns=("share", "read", "MRR@10", "lost", "lost by plain cosines"), rows=rows
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates(Judged):
    """The candidates of one query as the fit takes them; their codes are read again each time."""

    id: str
    ids: tuple[str, ...]

    def ranked(self, kept: npt.NDArray[np.int64] | None = None) -> list[str]:
        """Ids of the candidates that are read, best first, each once."""
        chosen = np.arange(len(self.ids)) if kept is None else kept
        order = chosen[np.argsort(-self.scores[chosen], kind="stable")]
        return list(dict.fromkeys(self.ids[n] for n in order))


def fit_cascade(
    index: Index,
    data: str | Path,
    *,
    loss: float = LOSS,
    limit: int = 400,
    candidates: int = CANDIDATES,
    progress: Progress | None = None,
) -> Tuned:
    """Fit late interaction to an index, so that `cascade="auto"` reads only the best of them.

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
    count: int = CANDIDATES,
    loss: float = LOSS,
    progress: Progress | None = None,
) -> Tuned:
    """Fit on every second query, choose on the others the smallest share that loses at most `loss`.

    The loss is relative, of MRR@10. Without judgments the passage that the cross component ranks first among
    all candidates counts as the right one, which asks for more: a cut must then keep even its mistakes.
    """
    engine.spec.reads("rank")
    if engine.index is None or not len(engine.index.refresh()):
        raise InputError("a cascade is fitted to an index with passages; add some first")
    asked = [q for q in queries if qrels is None or q.id in qrels]
    _enough(asked)
    scored, step = [], counter(progress, len(asked))
    for query in asked:
        found = _scored(engine, query, count)
        scored += [found] if len(found.ids) > 1 else []
        step(1)
    _enough(scored)
    fitting, choosing = scored[::2], scored[1::2]
    truth = {o.id: qrels[o.id] if qrels is not None else {o.ranked()[0]: 1} for o in choosing}
    whole = _whole(choosing, truth)
    metric = fit_metric(fitting)
    cuts = _cuts(LateInteraction(keep=1.0, metric=metric), choosing, truth, whole)
    tuned = Tuned(
        cascade=LateInteraction(keep=chosen_cut(cuts, loss).keep, metric=metric),
        cuts=cuts,
        plain=_cuts(LateInteraction(keep=1.0), choosing, truth, whole),
        queries=len(choosing),
        fitted=len(fitting),
        judged=qrels is not None,
    )
    return replace(tuned, cascade=replace(tuned.cascade, report=json.dumps(tuned.to_json())))


def chosen_cut(cuts: Sequence[Cut], loss: float) -> Cut:
    """The cut that reads least within the loss; of those that read alike, the largest share.

    A search reads ten passages at least, so small shares look alike here, but not when answers are read.
    """
    least = next(cut for cut in cuts if cut.loss <= loss)
    return next(cut for cut in reversed(cuts) if cut.read == least.read)


def _enough(usable: Sequence[object]) -> None:
    """Refuse to choose by hardly any query: those without judgments or with one candidate do not count."""
    if len(usable) < FEWEST:
        raise InputError(f"{len(usable)} queries can be used; give at least {FEWEST}, or hundreds")


def _scored(engine: Engine, query: Query, count: int) -> Candidates:
    """All candidates of a query, read by the cross component."""
    request = Request(query=query.text, head="rank", retrieve=True, candidates=count)
    (search,) = engine.score([request])
    if search.error is not None:
        raise search.error
    snapshot, rows = search.windows.snapshot, search.windows.rows
    assert snapshot is not None and engine.index is not None, "it retrieves from an index"
    codec = engine.index.codec

    def passages() -> Ragged:
        encoded = snapshot.states(rows)
        return Ragged(codes_of(encoded, codec), encoded.lengths)

    return Candidates(
        id=query.id,
        query=codes_of(search.encoding.states, codec),
        passages=passages,
        ids=tuple(excerpt.id for excerpt in snapshot.texts(rows)),
        scores=search.logits["rank"].values[:, 0].astype(np.float64),
    )


def _whole(queries: Sequence[Candidates], truth: Qrels) -> float:
    """MRR@10 with all candidates read, which a loss is relative to."""
    whole = mrr({one.id: one.ranked() for one in queries}, truth, 10)
    if not whole:
        raise InputError(
            f"MRR@10 of {len(queries)} queries is 0 with all candidates read, so no share can be chosen; "
            "the judgments must name passages of this index, by the same ids"
        )
    return whole


def _cuts(
    scoring: LateInteraction,
    queries: Sequence[Candidates],
    truth: Qrels,
    whole: float,
) -> tuple[Cut, ...]:
    """Every share, smallest first; the last one reads everything."""
    scores = [scoring.score_codes(one.query, one.passages()) for one in queries]
    cuts = []
    for keep in KEEPS:
        cut = replace(scoring, keep=keep)
        kept = [cut.choose(values, HITS) for values in scores]
        run = {one.id: one.ranked(rows) for one, rows in zip(queries, kept, strict=True)}
        value = mrr(run, truth, 10)
        read = sum(map(len, kept)) / sum(len(one.ids) for one in queries)
        cuts.append(Cut(keep=keep, read=read, mrr=value, loss=(whole - value) / whole))
    return tuple(cuts)
