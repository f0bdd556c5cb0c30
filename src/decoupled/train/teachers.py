"""Who says how relevant the candidates of a query are, where nobody labelled them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from decoupled.measure.metrics import kendall, normalised_gain
from decoupled.model.model import Model
from decoupled.runtime.cpu import multiplies_bytes
from decoupled.search.engine import Engine
from decoupled.search.request import Request
from decoupled.search.results import Hits
from decoupled.train.data.cache import Cache
from decoupled.train.data.lists import Floats, Lists
from decoupled.train.place import counted
from decoupled.train.reshape import teacher_of

BLOCK = 16
"""The number of queries whose scores are written together."""
REMEMBER = 1 << 28
"""Bytes for the states of passages, which are candidates of many queries."""
TeacherName = str | Path | Model
Numbers = TypeVar("Numbers", Floats, Tensor)


@dataclass(frozen=True, kw_only=True)
class TeacherAgreement:
    """Agreement of a ranking with the teacher's, on queries that were set aside."""

    ndcg_at_10: float
    """nDCG@10 against the teacher's first ten, graded 10 to 1 in its order."""
    tau: float
    """Kendall's tau of all candidates."""
    top_1: float
    """Share of the queries whose first candidate is the same."""

    @property
    def overall(self) -> float:
        """Mean of nDCG@10 and tau: a gain among the first ten must not hide a loss among the others."""
        return (self.ndcg_at_10 + self.tau) / 2

    def to_json(self) -> dict[str, float]:
        """The measures by name, rounded."""
        named = {"ndcg@10": self.ndcg_at_10, "tau": self.tau, "top-1": self.top_1}
        return {name: round(value, 4) for name, value in named.items()}


def agreement(ours: Floats, theirs: Floats) -> TeacherAgreement:
    """Agreement of scores `[Q,C]` with those of a teacher."""
    gains, same = [], []
    for mine, other in zip(ours, theirs, strict=True):
        grades = np.zeros(len(other), np.int64)
        best = np.argsort(-other, kind="stable")[:10]
        grades[best] = np.arange(10, 10 - len(best), -1)
        order = np.argsort(-mine, kind="stable")
        gains.append(normalised_gain(grades[order].tolist(), grades.tolist(), 10))
        same.append(order[0] == best[0])
    taus = [
        kendall(mine.tolist(), other.tolist()) for mine, other in zip(ours, theirs, strict=True)
    ]
    return TeacherAgreement(
        ndcg_at_10=float(np.mean(gains)), tau=float(np.mean(taus)), top_1=float(np.mean(same))
    )


def trained(history: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a model was trained, and not only split."""
    return any(done.get("did", "").startswith("train") for done in history)


class Teachers:
    """Several cross-encoders as one: the mean of their scores, on the student's own scale."""

    def __init__(
        self, names: Sequence[TeacherName], student: Model, *, runtime: str = "auto"
    ) -> None:
        self.names = ["model" if isinstance(name, Model) else str(name) for name in names]
        self.runtime = runtime
        self.models = [self._model(name, student) for name in names]
        self.engines = [self.engine_of(model) for model in self.models]

    @staticmethod
    def _model(name: TeacherName, student: Model) -> Model:
        if name == "joint":
            return teacher_of(student)
        model = name if isinstance(name, Model) else Model.open(name)
        # Raises now where the teacher cannot rank, not after hours of work.
        model.spec.reads("rank")
        return model

    def engine_of(self, model: Model) -> Engine:
        """An engine over texts, on the runtime of all models that are compared."""
        return engine_of(model, runtime=self.runtime)

    def logits(
        self, lists: Lists, cache: Cache, name: str, *, seconds: float | None = None
    ) -> Floats:
        """`[M,Q,C]` logits of the models; after so many seconds, of the queries so far."""
        started, rows = time.perf_counter(), list[Floats]()
        count = counted(name, cache.progress)
        for number, first in enumerate(range(0, len(lists), BLOCK)):
            if rows and seconds is not None and time.perf_counter() - started > seconds:
                break
            part = lists[first : first + BLOCK]
            rows.append(cache.kept(f"{name}-{number:05d}", partial(self._block, part)))
            count(first + len(part), len(lists))
        return np.concatenate(rows, 1)

    def _block(self, lists: Lists) -> Floats:
        return np.stack([scores_of(engine, lists) for engine in self.engines])


@dataclass(frozen=True, kw_only=True, eq=False)
class Scale:
    """The scale of the student's logits, and those of the teachers on the same lists."""

    mean: float
    spread: float
    """Mean standard deviation of the logits within a query."""
    teachers: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, own: Floats, logits: Floats) -> Scale:
        """The scales of logits `[Q,C]` of the student and `[M,Q,C]` of the teachers."""
        both = ((float(x.mean()), max(float(x.std(-1).mean()), 1e-6)) for x in (own, *logits))
        (mean, spread), *teachers = both
        return cls(mean=mean, spread=spread, teachers=tuple(teachers))

    def apply(self, number: int, logits: Numbers) -> Numbers:
        """Logits of a teacher, mapped to the student's scale."""
        mean, spread = self.teachers[number]
        return (logits - mean) * (self.spread / spread) + self.mean

    def together(self, logits: Floats) -> Floats:
        """`[Q,C]` target scores: the mean of the teachers' logits `[M,Q,C]` on the student's scale."""
        scaled = [self.apply(number, one) for number, one in enumerate(logits)]
        return np.mean(scaled, 0, dtype=np.float32)


def engine_of(model: Model, *, runtime: str = "auto") -> Engine:
    """An engine over texts; a split model keeps the states of those that come again.

    On the runtime `torch` a GPU computes in fp32, where others round: near scores then keep their order.
    Without a GPU `auto` is OpenVINO in int8, where the processor gains by it: five times as fast.
    """
    fast = (
        find_spec("openvino") is not None and multiplies_bytes() and not torch.cuda.is_available()
    )
    if runtime == "auto" and fast:
        runtime = "openvino-int8"
    if runtime == "torch" and torch.cuda.is_available():
        model = model.rebuild(model.spec, {}).to("cuda")
    return Engine(model, runtime=runtime, remember=REMEMBER if model.spec.split else 0)


def scores_of(engine: Engine, lists: Lists) -> Floats:
    """`[Q,C]` rank logits of the candidates, read as texts."""
    requests = []
    for number, query in enumerate(lists.queries):
        # By their place: windows of one passage share its id.
        texts = tuple(
            type(p)(id=str(n), text=p.text, title=p.title)
            for n, p in enumerate(lists.candidates(number))
        )
        requests.append(Request(query=query, head="rank", texts=texts, raw=True))
    scores = np.zeros(lists.rows.shape, np.float32)
    for row, hits in zip(scores, engine.run(requests), strict=True):
        if isinstance(hits, Exception):
            raise hits
        assert isinstance(hits, Hits)
        for hit in hits:
            row[int(hit.id)] = hit.score
    return scores
