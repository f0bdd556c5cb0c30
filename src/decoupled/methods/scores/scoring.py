"""Learn on development data how much the first stage counts, and what the scores of a model mean."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.index import Index
from decoupled.index.store.base import Rows
from decoupled.measure.metrics import Grades, normalised_gain
from decoupled.measure.pairs import Pair, Query
from decoupled.methods.reading import Early, Read, early, enough, read_question
from decoupled.methods.scores.answers import ReadQuestion, choose_answers, read_questions
from decoupled.methods.scores.calibration import calibration_error, reliability
from decoupled.methods.scores.fields import Field, read_field, with_absent
from decoupled.methods.scores.logistic import fit_logistic
from decoupled.model.folder import write_scoring
from decoupled.model.jsonable import to_json
from decoupled.model.parts.exits import ExitSpec
from decoupled.model.parts.late import LateSpec
from decoupled.model.progress import Progress, counter
from decoupled.model.scoring import Floats, Platt, Scoring
from decoupled.search.engine import Engine
from decoupled.search.first_stage import FirstStageQuery, standardised
from decoupled.search.request import CANDIDATES, Request, encode_queries

T = TypeVar("T")

STEPS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Weights that are tried: of BM25 beside the cosine, and of both beside the rank logit (in its spread)."""
TOLERANCE = 0.005
"""Blends whose nDCG@10 is within this of the best count as equally good; their mean is taken."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RankedQuery:
    """The candidates of one query, with both scores of the first stage and their grades."""

    cosine: Floats
    bm25: Floats
    grades: npt.NDArray[np.int64]
    all_grades: Grades
    lexical: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """BM25's order of the candidates that it found; `dense` is the order by cosine."""
    dense: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    logits: Floats = field(default_factory=lambda: np.zeros(0))
    early: Early = field(default_factory=Early)

    def gain(self, scores: Floats) -> float:
        """nDCG@10 of the candidates by these scores."""
        return self.gain_of(np.argsort(-scores, kind="stable"))

    def gain_of(self, order: npt.NDArray[np.int64]) -> float:
        """nDCG@10 of the candidates in this order."""
        return normalised_gain(self.grades[order[:10]].tolist(), self.all_grades, 10)

    def read(self, scoring: Scoring) -> Read:
        """The query as a search with these first-stage weights reads it; its value is nDCG@10."""
        prior = scoring.cosine * standardised(self.cosine) + scoring.bm25 * standardised(self.bm25)

        def gain(which: npt.NDArray[np.int64]) -> float:
            scores = (self.logits + prior)[which]
            return self.gain_of(which[np.argsort(-scores, kind="stable")])

        return Read(early=self.early, prior=prior, logits=self.logits, k=10, value=gain)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What was learnt from development data, and how good it is on the same data."""

    scoring: Scoring
    figures: dict[str, object]
    late: LateSpec | None = None
    """Late interaction with the share of candidates that is enough to read."""
    exits: tuple[ExitSpec, ...] = ()
    """Exits with the margins that are enough."""

    def to_json(self) -> dict[str, object]:
        """The fitted values as plain JSON."""
        learnt = {n: v for n, v in vars(self.scoring).items() if isinstance(v, float)}
        late = {"late": to_json(self.late)} if self.late is not None else {}
        return {"scoring": learnt, **late, **self.figures}


def fit_scoring(
    model: str | Path,
    data: Sequence[str | Path | Field],
    *,
    limit: int = 100,
    candidates: int = CANDIDATES,
    runtime: str = "auto",
    progress: Progress | None = None,
) -> Fitted:
    """Learn from judged data what the scores of a model mean, and keep it in the model's folder.

    And, for a model with late interaction, how many candidates are enough to read.

    The data are BEIR folders, or files of pairs whose passages are the corpus, of several fields, none of
    which the model was trained on: at most `limit` queries of each. Pairs with answers also calibrate
    those, four times as many; questions without one among them, half as many, when to give none. For
    answers in retrieved passages, half of the passages are taken out of the corpus (`with_absent`).
    """
    fields = [with_absent(one if isinstance(one, Field) else read_field(one)) for one in data]
    if not fields:
        raise InputError(
            "no data; give BEIR folders or files of pairs of the fields to be searched"
        )
    with tempfile.TemporaryDirectory() as scratch:
        engines = []
        for number, one in enumerate(fields):
            with Index.create(Path(scratch) / str(number), model, runtime=runtime) as index:
                index.add(one.passages)
            engines.append(Engine(index.path, cascade=1.0))
        fitted = learn(engines, fields, limit=limit, candidates=candidates, progress=progress)
    write_scoring(model, fitted.scoring, late=fitted.late, exits=fitted.exits)
    return fitted


def learn(
    engines: Sequence[Engine],
    fields: Sequence[Field],
    *,
    limit: int = 100,
    candidates: int = CANDIDATES,
    progress: Progress | None = None,
) -> Fitted:
    """`fit_scoring` with an engine over each field, whose scores it changes as it learns."""
    corpora = corpora_of(engines, fields, limit)
    spec, pairs = engines[0].spec, sum(len(one.pairs) + len(one.absent) for one in corpora)
    step = counter(progress, 2 * sum(len(one.queries) for one in corpora) + 2 * pairs)
    scoring, figures = Scoring(), dict[str, object]()
    if spec.vector is not None:
        first = [one.first_stage(candidates, step) for one in corpora]
        fusion, figures["fusion"] = choose_fusion(first, [one.name for one in fields])
        scoring = replace(scoring, fusion=fusion)
    _use(engines, scoring)
    ranked = [one.ranked(candidates, step) for one in corpora]
    scoring, figures["blend"] = choose_blend(ranked, fields, scoring)
    read = list[ReadQuestion]()
    if pairs:
        _use(engines, replace(scoring, answer_rank=1.0))
        read = read_all(corpora, candidates, step)
        scoring, figures["answers"] = choose_answers(spec, read, scoring)
    fitted = fit_reading(engines[0], scoring, ranked, read)
    return replace(fitted, figures=figures | fitted.figures)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Corpus:
    """A field with the engine over its passages, and those of its queries and questions that are used."""

    engine: Engine
    field: Field
    queries: Sequence[Query]
    pairs: Sequence[Pair]
    absent: Sequence[Pair]

    def first_stage(self, count: int, step: Callable[[int], None]) -> list[RankedQuery]:
        """The candidates of either first-stage search for each query."""
        ranked = []
        for query in self.queries:
            request = Request(query=query.text, head="rank", retrieve=True)
            snapshot = self._index.refresh()
            (encoding,) = encode_queries(self.engine.runtime, [request])
            first = FirstStageQuery(snapshot, query.text, encoding.vectors[0])
            lists = first.lexical(count), first.dense(count)
            rows = np.unique(np.concatenate([hits.rows for hits in lists]))
            lexical, dense = (np.searchsorted(rows, hits.rows) for hits in lists)
            ranked.append(replace(self._scored(query, first, rows), lexical=lexical, dense=dense))
            step(1)
        return ranked

    def ranked(self, count: int, step: Callable[[int], None]) -> list[RankedQuery]:
        """The candidates that a search reads for each query, with the logits of the rank head."""
        ranked = []
        for query in self.queries:
            request = Request(query=query.text, head="rank", retrieve=True, candidates=count)
            (search,) = self.engine.score([request])
            if search.error is not None:
                raise search.error
            rows, snapshot = search.windows.rows, search.windows.snapshot
            assert snapshot is not None
            first = FirstStageQuery(snapshot, query.text, search.encoding.vectors[0])
            logits = search.logits["rank"].values[:, 0].astype(np.float64)
            scored = self._scored(query, first, rows)
            ranked.append(replace(scored, logits=logits, early=early(self.engine, search)))
            step(1)
        return ranked

    def _scored(self, query: Query, first: FirstStageQuery, rows: Rows) -> RankedQuery:
        """Rows with both first-stage scores and their grades."""
        grades = self.field.qrels[query.id]
        ids = [excerpt.id for excerpt in self._index.store.snapshot.texts(rows)]
        dense = self.engine.spec.vector is not None
        return RankedQuery(
            cosine=first.cosine(rows) if dense else np.zeros(len(rows)),
            bm25=first.bm25(rows),
            grades=np.array([grades.get(i, 0) for i in ids], np.int64),
            all_grades=list(grades.values()),
        )

    @property
    def _index(self) -> Index:
        assert self.engine.index is not None
        return self.engine.index


def corpora_of(engines: Sequence[Engine], fields: Sequence[Field], limit: int) -> list[_Corpus]:
    """Each field with at most so many queries and its questions, some of these without an answer."""
    return [
        _Corpus(
            engine=engine,
            field=one,
            queries=spread([q for q in one.queries if one.qrels.get(q.id)], limit),
            pairs=[
                *spread([pair for pair in one.pairs if pair.answers], 4 * limit),
                *spread([pair for pair in one.pairs if not pair.answers], 2 * limit),
            ],
            absent=spread(one.absent, 4 * limit),
        )
        for engine, one in zip(engines, fields, strict=True)
    ]


def read_all(
    corpora: Sequence[_Corpus], count: int, step: Callable[[int], None]
) -> list[ReadQuestion]:
    """Every question of every corpus, as `read_questions` reads it."""
    parts = (read_questions(one.engine, one.pairs, one.absent, count, step) for one in corpora)
    return [question for part in parts for question in part]


def fit_reading(
    engine: Engine,
    scoring: Scoring,
    ranked: Sequence[Sequence[RankedQuery]],
    read: Sequence[ReadQuestion],
) -> Fitted:
    """Late interaction and exits of a model that has them with what is enough, and all that was tried."""
    spec = replace(engine.spec, scoring=scoring)
    if spec.late is None and not spec.exits:
        return Fitted(scoring=scoring, figures={"reading": []})
    retrieved = [one for one in read if one.retrieved and one.golds]
    questions = [read_question(spec, one, early(engine, one.search)) for one in retrieved]
    spec, figures = enough(spec, [[q.read(scoring) for q in one] for one in ranked], questions)
    return Fitted(scoring=scoring, figures=figures, late=spec.late, exits=spec.exits)


def spread(items: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of the items, at equal distances."""
    if len(items) <= limit:
        return list(items)
    return [items[n * len(items) // limit] for n in range(limit)]


def _use(engines: Sequence[Engine], scoring: Scoring) -> None:
    for engine in engines:
        assert engine.index is not None
        engine.index.spec = replace(engine.index.spec, scoring=scoring)


def choose_fusion(
    fields: Sequence[Sequence[RankedQuery]], names: Sequence[str]
) -> tuple[float, dict[str, object]]:
    """The weight of BM25 beside the cosine with the best mean nDCG@10."""
    parts = [
        max(
            np.mean([q.gain_of(q.lexical) for q in one]), np.mean([q.gain_of(q.dense) for q in one])
        )
        for one in fields
    ]
    gains = {
        w: [
            float(np.mean([q.gain(standardised(q.cosine) + w * standardised(q.bm25)) for q in one]))
            for one in fields
        ]
        for w in (*STEPS[1:], 3.0)
    }
    chosen = max(gains, key=lambda w: sum(gains[w]))
    pairs = zip(names, parts, gains[chosen], strict=True)
    return chosen, {n: {"part": round(float(p), 4), "hybrid": round(g, 4)} for n, p, g in pairs}


def choose_blend(
    ranked: Sequence[Sequence[RankedQuery]], fields: Sequence[Field], scoring: Scoring
) -> tuple[Scoring, dict[str, object]]:
    """Weights of both scores of the first stage, and the calibration of rank logits without and with them.

    Fields that were trained on do not choose weights where there are others.
    """
    every = [query for one in ranked for query in one if len(query.logits)]
    new = [one for one, what in zip(ranked, fields, strict=True) if not what.seen] or ranked
    spread = float(np.mean([query.logits.std() for query in every]))
    learnt = any(query.cosine.any() for query in every)

    def blended(query: RankedQuery, cosine: float, bm25: float) -> Floats:
        added = cosine * standardised(query.cosine) + bm25 * standardised(query.bm25)
        return query.logits + spread * added

    def mean(*weights: float) -> float:
        return float(np.mean([np.mean([q.gain(blended(q, *weights)) for q in one]) for one in new]))

    grid = {w: mean(*w) for w in product(STEPS if learnt else (0.0,), STEPS)}
    good = [weights for weights, gain in grid.items() if gain >= max(grid.values()) - TOLERANCE]
    cosine, bm25 = np.mean(good, 0).tolist()
    right = np.concatenate([query.grades > 0 for query in every])
    fits = [
        fit_logistic(np.concatenate(values)[:, None], right)
        for values in (
            [blended(query, cosine, bm25) for query in every],
            [query.logits for query in every],
        )
    ]
    search, rank = (Platt(slope=float(a), offset=float(b)) for a, b in fits)
    figures: dict[str, object] = {
        what.name: {
            "rank": round(float(np.mean([q.gain(q.logits) for q in one])), 4),
            "blend": round(float(np.mean([q.gain(blended(q, cosine, bm25)) for q in one])), 4),
        }
        for what, one in zip(fields, ranked, strict=True)
    }
    scores = search(np.concatenate([blended(query, cosine, bm25) for query in every]))
    figures["error"] = round(calibration_error(reliability(scores, right)), 4)
    scoring = replace(scoring, cosine=spread * cosine, bm25=spread * bm25)
    return replace(scoring, search=search, rank=rank), figures
