"""`adapt`: an index in, a model that knows its texts out; nothing is labelled."""

import errno
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np

from decoupled.errors import DecoupledError, InputError, OptionError
from decoupled.index.index import Index
from decoupled.measure.latency import second_run
from decoupled.measure.table import ResultTable
from decoupled.model import folder
from decoupled.model.model import Model
from decoupled.model.scoring import Scoring
from decoupled.search.engine import Engine
from decoupled.train.data.cache import Cache
from decoupled.train.data.lists import (
    HELD,
    SHARED_WORDS,
    Generator,
    Lists,
    TrainingQuery,
    list_candidates,
    queries_from_passages,
    read_training_queries,
    unknown_word_share,
)
from decoupled.train.imitate import Imitation, adapt_recipe, imitate
from decoupled.train.loop import checkpoint
from decoupled.train.loop.forward import check_split
from decoupled.train.objectives.adapt import Adaptation
from decoupled.train.place import Progress, counted
from decoupled.train.recipe import Recipe
from decoupled.train.run import keep
from decoupled.train.teachers import TeacherAgreement, TeacherName, Teachers, trained

logger = getLogger(__name__)

QUERIES = 4000
"""The most queries that are made from the passages."""
EVALUATED, MOST_HELD = 20, 100
"""Candidates of each query that judges, and the most such queries: more would take long and say little."""
SAMPLE = 2000
"""The number of passages whose words are compared with those of the queries."""
FEWEST_POINTS, TIMED = 3, 10
"""Evaluations that say what more time would bring, and queries that the speeds are measured on."""
FIND_SHARE, TIME_SHARE = 0.2, 0.03
"""Shares of the minutes for finding candidates of the training queries, and for measuring speeds."""

Queries = str | Path | Sequence[str] | Generator


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """A model that was adapted, and how far it agrees with its teacher on queries that were set aside."""

    model: str
    teachers: tuple[str, ...]
    queries: int
    held_out: int
    before: TeacherAgreement
    after: TeacherAgreement
    trained: bool = True
    """Always true since version 0.2; it stays in the JSON for those who read it."""
    scoring: Mapping[str, float]
    """Weights of the first-stage scores that a search adds to the score of the model."""
    teacher_ms: float
    """Milliseconds of the first teacher for one query with its candidates."""
    split_ms: float
    """Milliseconds of one query with its candidates through the index."""
    seconds: float
    curve: tuple[tuple[float, float], ...] = ()
    """Minutes of training and the agreement then: the mean of nDCG@10 and tau on some held-out queries."""

    @property
    def per_doubling(self) -> float | None:
        """What twice the minutes would bring, by the slope of the curve's last points; None if unknown."""
        if len(self.curve) < FEWEST_POINTS:
            return None
        minutes, scores = np.asarray(self.curve[-FEWEST_POINTS:]).T
        return float(np.polyfit(np.log2(np.maximum(minutes, 1e-3)), scores, 1)[0])

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values, from which a report is drawn."""
        plain = {"kind": "adapt", **vars(self), "teachers": list(self.teachers)}
        return plain | {"before": self.before.to_json(), "after": self.after.to_json()}

    def table(self) -> ResultTable:
        """The agreement with the teachers, before and after."""
        before, after = self.before.to_json(), self.after.to_json()
        teachers = " + ".join(self.teachers)
        note = (
            f"{self.model}: learnt from {self.queries} queries in {self.seconds:.0f} s; a query takes "
            f"{self.split_ms:.1f} ms, the teacher {self.teacher_ms:.1f} ms"
        )
        notes = [note]
        if self.per_doubling is not None:
            points = ", ".join(f"{score:.3f} at {minutes:.0f} min" for minutes, score in self.curve)
            notes += [
                f"mean of ndcg@10 and tau while it learnt: {points}",
                f"twice the minutes would bring about {max(self.per_doubling, 0):+.3f}",
            ]
        return ResultTable(
            title=f"agreement with {teachers} on {self.held_out} queries that were set aside",
            columns=("", "before", "after"),
            rows=[(name, before[name], after[name]) for name in after],
            notes=notes,
        )


def adapt(  # noqa: PLR0913 (the options of the command)
    index: str | Path,
    *,
    out: str | Path,
    teacher: TeacherName | Sequence[TeacherName] | None = None,
    queries: Queries | None = None,
    keep_index: bool = False,
    minutes: float | None = None,
    limit: int = QUERIES,
    anyway: bool = False,
    recipe: Recipe | None = None,
    progress: Progress | None = None,
) -> Adapted:
    """Train the model of an index on its own texts, by what teachers say of them, and save it in `out`.

    A teacher is a cross-encoder (hub name, folder, model) or `joint`, the model unsplit; of several the mean
    teaches. By default it is the joint form of a model that was only split; one that was trained needs a
    `teacher`.

    `queries` are a file or a list of them, a function that makes some of a passage, or made of the passages,
    up to `limit`. With `keep_index` the input component stands still, so that the index stays valid for the
    new model; else `decoupled index --from` encodes its texts again. One query in ten is set aside: a model
    that agrees less with its teacher there than it did before is not saved, unless `anyway`.

    Candidates, the teacher's scores and the checkpoint lie in `out.run`: the same call goes on after a stop.
    """
    started, work = time.perf_counter(), checkpoint.work_folder(out)
    if minutes is not None and not 0 < minutes < math.inf:
        raise OptionError("minutes", f"is {minutes}; choose a number above 0")
    with _disk(work), Index.open(index) as opened:
        source = opened.source
        model = Model.load(source) if isinstance(source, Path) else source
        model.spec.reads("rank")
        check_split(model.spec)
        if not teacher and trained(model.history):
            why = f"is missing: the model of {index} was trained already"
            raise OptionError("teacher", f"{why}; name a cross-encoder to learn from")
        names = [teacher] if isinstance(teacher, str | Path | Model) else teacher or ["joint"]
        recipe = adapt_recipe(None, model.history, names) if recipe is None else recipe
        teachers = Teachers(names, model)
        lists = collect(
            opened,
            Cache(work / "cache", progress),
            queries,
            limit=limit,
            recipe=recipe,
            minutes=minutes,
        )
        spent = (time.perf_counter() - started) / 60
        left = None if minutes is None else max(minutes - spent, minutes / 2)
        imitation = imitate(
            model,
            lists,
            teachers,
            recipe,
            work,
            keep_index=keep_index,
            minutes=left,
            progress=progress,
        )
        if not anyway and imitation.after.overall < imitation.before.overall:
            raise _worse(out, imitation)
        keep(imitation.model, out)
        _finish(Path(out), source, model.spec.scoring, lists[0])
        teacher_ms, split_ms = _speeds(imitation, opened, lists[1], minutes)
        return Adapted(
            model=str(out),
            teachers=tuple(imitation.teachers.names),
            queries=imitation.queries,
            held_out=imitation.held,
            before=imitation.before,
            after=imitation.after,
            scoring=model.spec.scoring.blend if model.spec.scoring is not None else {},
            teacher_ms=teacher_ms,
            split_ms=split_ms,
            seconds=round(time.perf_counter() - started, 1),
            curve=imitation.curve,
        )


def recipe_for(
    index: str | Path, changes: Mapping[str, Any], teachers: Sequence[TeacherName] = ()
) -> Recipe:
    """The recipe that suits the model of an index and its teachers, with `changes` by dotted field name."""
    with Index.open(index) as opened:
        source = opened.source
    history = folder.read_history(source) if isinstance(source, Path) else source.history
    return adapt_recipe(changes, history, teachers)


def collect(
    index: Index,
    cache: Cache,
    queries: Queries | None,
    *,
    limit: int,
    recipe: Recipe,
    minutes: float | None = None,
) -> tuple[Lists, Lists]:
    """Candidates of the training queries and of the queries to judge by, cached so that they are found once.

    After a share of the minutes, only the queries so far are used.
    """
    if not len(index.refresh()):
        raise InputError(f"{index.location.name} holds no passages; add some first")
    training_queries = _training_queries(index, queries, limit, recipe.seed)
    # Candidates depend on the stored states, the texts and the draw: another of these is another
    # cache.
    cache_key = [index.manifest.fingerprint, str(index.store.snapshot.version), str(recipe.seed)]
    cache_key += [one.query for one in training_queries]
    # Where no query is set aside by its words, every tenth is: there must be some to judge by.
    aside = {one.query for one in training_queries if one.held} or {
        one.query for one in training_queries[::HELD]
    }
    held = [one for one in training_queries if one.query in aside][:MOST_HELD]
    rest = [one for one in training_queries if one.query not in aside]
    sizes = recipe.of(Adaptation).passages, EVALUATED
    split_lists = []
    for name, some, size in zip(("train", "held out"), (rest, held), sizes, strict=True):
        count = min(size, len(index.store.snapshot))
        here = cache.at(name, str(count), *cache_key, *([] if minutes is None else [str(minutes)]))
        assert here.folder is not None, "a run has a folder"
        path = here.folder / "lists.npz"
        if not path.exists():
            candidates = list_candidates(
                index,
                some,
                count,
                others=name == "train",
                seed=recipe.seed,
                seconds=None if minutes is None else 60 * FIND_SHARE * minutes,
                progress=counted(f"candidates, {name}", cache.progress),
            )
            candidates.save(path)
        split_lists.append(Lists.load(path))
    return split_lists[0], split_lists[1]


def _training_queries(
    index: Index, queries: Queries | None, limit: int, seed: int
) -> list[TrainingQuery]:
    if queries is None or callable(queries):
        return queries_from_passages(index, limit=limit, seed=seed, generator=queries)
    training_queries = read_training_queries(queries)[:limit]
    snapshot = index.refresh()
    rows = np.random.default_rng(seed).permutation(snapshot.rows())[:SAMPLE]
    share = unknown_word_share(
        training_queries, (excerpt.text for excerpt in snapshot.texts(np.sort(rows)))
    )
    # Most likely another language; a warning only, since the queries may still be right.
    if share > 1 - SHARED_WORDS:
        logger.warning(
            "%.0f%% of the words of the queries are in none of %d passages of %s; are they in another "
            "language, or about something else?",
            100 * share,
            len(rows),
            index.location.name,
        )
    return training_queries


def _worse(out: str | Path, imitation: Imitation) -> DecoupledError:
    """The error for a model that training made worse."""
    was, now = imitation.before, imitation.after
    return DecoupledError(
        f"the model agrees less with its teacher than before (nDCG@10 {was.ndcg_at_10:.4f}, now "
        f"{now.ndcg_at_10:.4f}; tau {was.tau:.4f}, now {now.tau:.4f}), so nothing was saved in {out}; give "
        "more queries or minutes, a lower --lr, or --anyway to save it"
    )


def _finish(out: Path, source: Path | Model, scoring: Scoring | None, lists: Lists) -> None:
    """Complete the model's folder: what its scores mean, and the ranges of its int8 form if it had one."""
    if scoring is not None:
        folder.write_scoring(out, scoring)
    if isinstance(source, Path) and (source / folder.EXPORTED).is_file():
        from decoupled.runtime.openvino.calibrate import export_int8

        numbers = range(len(lists))
        # Ranges of the old weights do not fit the new ones, so they are measured again.
        export_int8(out, [(lists.queries[n], lists.candidates(n)[0].text) for n in numbers])


def _speeds(
    imitation: Imitation, index: Index, lists: Lists, minutes: float | None
) -> tuple[float, float]:
    """Milliseconds of a query with its candidates: by the teacher, and by the split model over the index."""
    engine, some, started = Engine(index, cascade=1.0), lists[:TIMED], time.perf_counter()
    # On the runtime of the index, since a teacher may have taught on a faster one.
    teacher = Engine(imitation.teachers.models[0], runtime=index.runtime.name)
    of_teacher, of_split = list[float](), list[float]()
    for number, query in enumerate(some.queries):
        spent = (time.perf_counter() - started) / 60
        if number and minutes is not None and spent > TIME_SHARE * minutes:
            break
        passages = some.candidates(number)
        ids = list(dict.fromkeys(passage.id for passage in passages))
        of_split.append(second_run(partial(engine.rerank, query, ids=ids))[1])
        of_teacher.append(second_run(partial(teacher.rerank, query, texts=passages))[1])
    return round(float(np.median(of_teacher)), 2), round(float(np.median(of_split)), 2)


@contextmanager
def _disk(work: Path) -> Iterator[None]:
    """Turn the error of a full disk into one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DecoupledError(
            f"the disk of {work} is full; free some space and run the same command: it goes on"
        ) from None
