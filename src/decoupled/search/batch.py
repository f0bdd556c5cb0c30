"""Many requests in one pass: their queries, texts and pairs share batches; each keeps its own result."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from decoupled.errors import DecoupledError
from decoupled.index.encode import encode_texts
from decoupled.model.codec import Codec
from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import ModelSpec
from decoupled.model.states import Encoding
from decoupled.runtime.base import Logits, Runtime
from decoupled.search import cross, decide, pool
from decoupled.search.cache import Recent
from decoupled.search.clock import Clock
from decoupled.search.pool import Pool, Texts, as_passages
from decoupled.search.request import Request
from decoupled.search.results import Answers, Hits

Outcome = Hits | Answers | Exception


class Job:
    """One request on its way through the stages."""

    encoding: Encoding

    def __init__(self, request: Request) -> None:
        self.request = request
        self.clock = Clock()
        self.pool: Pool | None = None
        self.logits: Logits | None = None
        self.error: Exception | None = None
        self._whole: Pool | None = None

    def narrow(self, which: npt.NDArray[np.int64]) -> None:
        """Read these windows only, unless they fall short."""
        assert self.pool is not None
        if len(which) < len(self.pool):
            self._whole, self.pool = self.pool, self.pool.take(which)

    def falls_short(self, outcome: Outcome) -> bool:
        """Were windows left out, and fewer passages found than asked for?"""
        wanted = self.request.k
        short = isinstance(outcome, Hits) and wanted is not None and len(outcome) < wanted
        return short and self._whole is not None

    def widened(self) -> Job:
        """The job with all its windows again."""
        self.pool, self._whole = self._whole, None
        return self

    @contextmanager
    def trying(self) -> Iterator[None]:
        """An expected failure in the block is this job's alone."""
        try:
            yield
        except (DecoupledError, OSError) as error:
            self.error = error


def encode_queries(runtime: Runtime, jobs: Sequence[Job], budget: int | None) -> None:
    """The states and the vector of every query."""
    begun = time.perf_counter()
    ids = runtime.tokenizer.queries([job.request.query for job in jobs])
    encoding = encode_texts(runtime, "query", ids, budget=budget)
    for n, job in enumerate(jobs):
        job.encoding = Encoding(encoding.states.select([n]), encoding.vectors[n : n + 1])
        job.clock.count("encode_ms", begun)


def encode_given(
    runtime: Runtime,
    jobs: Sequence[Job],
    codec: Codec | None,
    recent: Recent | None,
    budget: int | None,
) -> None:
    """Pools of the texts that requests bring, after their stored passages."""
    live = [job for job in jobs if job.error is None and (job.request.texts or job.pool is None)]
    if not live:
        return
    begun = time.perf_counter()
    groups = [
        Texts(passages=as_passages(job.request.texts), query_length=len(job.encoding.states.values))
        for job in live
    ]
    fresh = pool.of_many_texts(runtime, groups, codec=codec, recent=recent, budget=budget)
    for job, texts in zip(live, fresh, strict=True):
        job.pool = texts if job.pool is None else pool.joined(job.pool, texts)
        job.clock.count("encode_ms", begun)


def cross_all(runtime: Runtime, jobs: Sequence[Job], budget: int | None) -> None:
    """The logits of every request, those that need the same heads together."""
    groups: dict[tuple[HeadKind, ...], list[Job]] = {}
    for job in jobs:
        if job.error is None:
            span = job.request.head == "span"
            heads = decide.heads_for_answers(runtime.spec) if span else ("rank",)
            groups.setdefault(heads, []).append(job)
    for heads, group in groups.items():
        begun = time.perf_counter()
        pairs = [cross.Pairs(job.encoding.states, _pool(job).states) for job in group]
        found = cross.score_many(runtime, pairs, heads, budget=budget)
        for job, logits in zip(group, found, strict=True):
            job.logits = logits
            job.clock.count("cross_ms", begun)


def result(spec: ModelSpec, job: Job) -> Outcome:
    """What the request asked for, or why it cannot have it."""
    with job.trying():
        if job.error is None:
            return _decide(spec, job)
    assert job.error is not None
    return job.error


def _decide(spec: ModelSpec, job: Job) -> Hits | Answers:
    request, found, begun = job.request, _pool(job), time.perf_counter()
    assert job.logits is not None
    tokens = int(found.states.lengths.sum()) + len(found) * len(job.encoding.states.values)
    if request.head == "rank":
        hits = decide.hits(found, job.logits, request.k, raw=request.raw)
        job.clock.count("fetch_ms", begun)
        return Hits(query=request.query, items=hits, timing=job.clock.timing(), tokens=tokens)
    k = len(found) if request.k is None else request.k
    answers, weight = decide.answers(spec, found, job.logits, k)
    kept = tuple(a for a in answers if a.score >= request.threshold)[:k]
    job.clock.count("fetch_ms", begun)
    timing = job.clock.timing()
    return Answers(query=request.query, items=kept, timing=timing, tokens=tokens, weight=weight)


def _pool(job: Job) -> Pool:
    assert job.pool is not None
    return job.pool
