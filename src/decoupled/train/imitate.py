"""A split model learns what teachers say of lists of candidates: the part of `adapt` that needs no index."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoupled.model.jsonable import to_json
from decoupled.model.model import Model
from decoupled.search.engine import Engine
from decoupled.train.data.cache import Cache
from decoupled.train.data.lists import Floats, Lists
from decoupled.train.data.scored import ScoredLists
from decoupled.train.data.tasks import TASKS
from decoupled.train.loop.checkpoint import weights_digest
from decoupled.train.loop.forward import EVALUATION_TOKENS, autocast
from decoupled.train.loop.loop import Phase, accelerator_for, fit, suited_to_machine
from decoupled.train.objectives.adapt import ADAPT, Adapt, Adaptation, TeacherLogits, read_groups
from decoupled.train.place import Progress
from decoupled.train.recipe import Recipe, override
from decoupled.train.reshape import same_tokens
from decoupled.train.run import made_of
from decoupled.train.teachers import (
    Scale,
    TeacherAgreement,
    TeacherName,
    Teachers,
    agreement,
    scores_of,
    trained,
)

JUDGE_SHARE, TEACHER_SHARE, TRAIN_SHARE = 0.08, 0.4, 0.1
"""Shares of the minutes: for the student's scores of the held-out queries before and after training, for the
teacher's scores, and at least for training, however long everything else took."""
LEAST = 10
"""The fewest queries that judge, and the number that is scored between two looks at the clock."""
ONLY_SPLIT, OWN_STATES = 3e-4, 50.0
"""For a joint model that was only split: its rate, and the weight of its own hidden states unsplit."""
CURVE, CURVE_QUERIES = 6, 30
"""Evaluations of a run that ends by the clock, and the held-out queries that each of them reads."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Imitation:
    """The result of imitating teachers."""

    model: Model
    teachers: Teachers
    queries: int
    """Queries that were trained on; fewer than given where the clock ended the teacher's scoring."""
    held: int
    """Queries that judged; fewer than given for the same reason."""
    before: TeacherAgreement
    after: TeacherAgreement
    curve: tuple[tuple[float, float], ...] = ()
    """Minutes of training and agreement (`TeacherAgreement.overall`) on some of the held-out queries."""


def adapt_recipe(
    changes: Mapping[str, Any] | None = None,
    history: Sequence[Mapping[str, Any]] | None = None,
    teachers: Sequence[TeacherName] = (),
) -> Recipe:
    """The recipe `adapt` as suits this machine and a model with this `history`, with `changes` by name."""
    on_cpu = {"optimiser.batch": 4, "tokens": 160, "watch.log_every": 5}
    only_split = history is not None and not trained(history)
    own = {"optimiser.lr": ONLY_SPLIT} if only_split else {}
    if only_split and all(name == "joint" for name in teachers):
        own["weights.lrs"] = OWN_STATES  # every token teaches
    return suited_to_machine(ADAPT, on_cpu, {**own, **(changes or {})})


def imitate(
    model: Model,
    lists: tuple[Lists, Lists],
    teachers: Teachers,
    recipe: Recipe,
    work: Path,
    *,
    keep_index: bool = False,
    minutes: float | None = None,
    progress: Progress | None = None,
) -> Imitation:
    """A copy of the model, trained on the first lists and judged on the second."""
    started = time.perf_counter()
    train, held = lists
    named = [weights_digest(one.net, one.spec) for one in (model, *teachers.models)]
    cache = Cache(work / "cache", progress).at(
        *named, *teachers.names, *train.queries, *held.queries
    )
    own: Floats = cache.kept("own", lambda: _scored(teachers.engine_of(model), held, minutes))
    held, judging = held[: len(own)], time.perf_counter() - started
    logits = teachers.logits(held, cache, "teacher, held out")
    # What the student's scores mean stays, where they mean something.
    scale = Scale.of(own if model.spec.scoring else logits[0], logits)
    # A teacher whose layers are compared runs in every step, so its scores need not be computed ahead.
    alone = len(teachers.models) == 1 and _guide(teachers, model)
    ahead = not (alone and recipe.of(Adaptation).weights.lrs)
    target = scale.together(logits)

    def plan() -> np.ndarray:
        # Written down, so that a run that goes on after a stop has the same queries and minutes.
        seconds, count = None, len(train)
        if minutes is not None:
            seconds = max(0.0, 60 * TEACHER_SHARE * minutes - (time.perf_counter() - started))
        if ahead:
            count = teachers.logits(train, cache, "teacher", seconds=seconds).shape[1]
        left = (minutes or 0.0) - (time.perf_counter() - started + judging) / 60
        return np.asarray([count, max(left, TRAIN_SHARE * minutes) if minutes else 0.0])

    count, left = cache.kept("plan", plan).tolist()
    train = train[: int(count)]
    if left:
        recipe = override(recipe, {"optimiser.minutes": left, "optimiser.epochs": 1e4})
        recipe = override(recipe, {"watch.evaluations": recipe.watch.evaluations or CURVE})
    target_scores: Floats | TeacherLogits = partial(scale.apply, 0)
    if ahead:
        target_scores = scale.together(teachers.logits(train, cache, "teacher"))
    watched = held[:CURVE_QUERIES], target[:CURVE_QUERIES]
    student, curve = learn_from(
        model, (train, target_scores), teachers, recipe, work, keep_index, progress, watched
    )
    scores = scores_of(teachers.engine_of(student), held)
    return Imitation(
        model=student,
        teachers=teachers,
        queries=len(train),
        held=len(held),
        before=agreement(own, target),
        after=agreement(scores, target),
        curve=curve,
    )


def _scored(engine: Engine, lists: Lists, minutes: float | None) -> Floats:
    """The student's scores; after its share of the minutes, only those of the queries so far."""
    if minutes is None:
        return scores_of(engine, lists)
    started, scores = time.perf_counter(), list[Floats]()
    for first in range(0, len(lists), LEAST):
        if scores and time.perf_counter() - started > 60 * JUDGE_SHARE * minutes:
            break
        scores.append(scores_of(engine, lists[first : first + LEAST]))
    return np.concatenate(scores)


def learn_from(
    model: Model,
    targets: tuple[Lists, Floats | TeacherLogits],
    teachers: Teachers,
    recipe: Recipe,
    work: Path,
    keep_index: bool = False,
    progress: Progress | None = None,
    watched: tuple[Lists, Floats] | None = None,
) -> tuple[Model, tuple[tuple[float, float], ...]]:
    """The trained student and, where there are lists to judge by, how its agreement grew."""
    lists, target_scores = targets
    scores = np.zeros(lists.rows.shape, np.float32) if callable(target_scores) else target_scores
    if model.spec.projection is not None and model.spec.projection.bits is not None:
        # It reads what the index stores.
        recipe = override(recipe, {"bits": model.spec.projection.bits})
    accelerator = accelerator_for(recipe)
    did = {"did": "train adapt", "recipe": to_json(recipe), "teachers": teachers.names}
    student = model.rebuild(model.spec, {**did, "queries": len(lists)}).to(accelerator.device)
    before = model.rebuild(model.spec, {}).to(accelerator.device)
    guide = _guide(teachers, model)
    tokens = recipe.of(Adaptation).tokens
    batches = ScoredLists(lists, scores, model, accelerator.device, tokens=tokens)
    objective = Adapt(
        student.net,
        TASKS["rank"],
        recipe,
        teacher=guide.rebuild(guide.spec, {}).to(accelerator.device).net if guide else None,
        before=before.net,
        keep=keep_index,
        logits_to_rank=target_scores if callable(target_scores) else None,
    )
    of = made_of(student, batches.examples.digest(), recipe)
    phase = Phase(objective=objective, batches=batches, recipe=recipe, folder=work, of=of)
    if watched is not None:
        phase = replace(phase, evaluate=_judge(student, *watched, recipe, accelerator.device))
    report = fit(replace(phase, progress=progress), accelerator)
    return student.to("cpu"), tuple((seconds / 60, score) for seconds, score in report.curve)


def _judge(
    student: Model, lists: Lists, target: Floats, recipe: Recipe, device: torch.device
) -> Callable[[], float]:
    """A function that gives the agreement of the student's present weights with the target."""
    tokens = recipe.of(Adaptation).tokens
    batches = ScoredLists(lists, target, student, device, tokens=tokens)

    @torch.no_grad()
    def judge() -> float:
        scores = np.zeros(target.size, np.float32)
        with autocast(device, recipe.precision):
            for batch in batches.walk(batches.ordered(EVALUATION_TOKENS)):
                ranks = read_groups(student.net, batch, vectors=False).rank
                scores[batch.rows.cpu().numpy()] = ranks.flatten().float().cpu().numpy()
        return agreement(scores.reshape(target.shape), target).overall

    return judge


def _guide(teachers: Teachers, student: Model) -> Model | None:
    """The teacher whose layers are compared with the student's, if there is one."""
    return next((one for one in teachers.models if _alike(one, student)), None)


def _alike(teacher: Model, student: Model) -> bool:
    """Whether layers may be compared: another model with a rank head, the same tokens and the same width."""
    same = teacher.spec.encoder.width == student.spec.encoder.width
    ranks = any(head.kind == "rank" for head in teacher.spec.heads)
    return teacher is not student and same and ranks and same_tokens(teacher, student)
