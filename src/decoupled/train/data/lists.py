"""Queries over an index, each with candidates to rank: what a model learns from where nothing is labelled.

Queries are given, or made of the passages. Candidates are those of the index's own first stage and late
interaction, and a few others.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.index import Index
from decoupled.index.record import Excerpt
from decoupled.index.store.base import Rows
from decoupled.measure.pairs import read_queries
from decoupled.model.progress import Progress, counter
from decoupled.model.scoring import Scoring
from decoupled.model.tokens import Passage
from decoupled.search.first_stage import FirstStageQuery, retrieve, standardised
from decoupled.search.late_interaction import LateInteraction, LateProjection
from decoupled.search.request import Request, SearchRun, encode_queries
from decoupled.train.data.synthetic import query_from, rarity, words_of

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Generator = Callable[[Passage], str | Iterable[str]]
"""Makes queries that a passage answers."""

HELD = 10
"""One query of so many is set aside, to judge by and not to train on."""
FEWEST = 20
"""The fewest queries; from fewer nothing can be learnt or said."""
DEPTH = 50
"""The number of first-stage records that candidates are chosen from."""
SHARED_WORDS = 0.5
"""Share of the words of the queries that the corpus must have; another language has fewer."""
COPY = 0.75
"""Share of common words above which two texts are taken for copies of each other."""
# The number of hash functions (a·x + b) mod p of a sketch, and their prime p.
MARKS, PRIME = 32, (1 << 31) - 1
ANY = 4
"""One candidate of so many to train on is drawn from all passages."""


@dataclass(frozen=True)
class TrainingQuery:
    """A query, and the row of the passage that it was made from, if it was."""

    query: str
    source: int | None = None
    without: str | None = None
    """That passage without the sentence that became the query, where it is read so."""

    @property
    def held(self) -> bool:
        """Whether it is set aside. Its words decide, so that it is set aside in every run."""
        return zlib.crc32(" ".join(self.query.lower().split()).encode()) % HELD == 0


def read_training_queries(source: str | Path | Sequence[str]) -> list[TrainingQuery]:
    """The queries of a file or a list, each once."""
    if isinstance(source, str | Path):
        texts: Iterable[str] = (query.text for query in read_queries(source))
    else:
        texts = source
    queries = [TrainingQuery(query) for query in dict.fromkeys(texts) if query.strip()]
    _enough(queries, "give at least", "or leave them out: they are made of the passages then")
    return queries


def queries_from_passages(
    index: Index, *, limit: int, seed: int = 0, generator: Generator | None = None
) -> list[TrainingQuery]:
    """Up to `limit` queries made of the passages of an index, by the `generator` or by `query_from`."""
    snapshot = index.refresh()
    rows = snapshot.rows()
    # Only what is drawn is read: an index may have millions. More than asked for, since some give none.
    drawn = np.sort(np.random.default_rng(seed).permutation(rows)[: 2 * limit])
    texts = snapshot.texts(drawn)
    # Rarity is estimated on the drawn passages, which is enough to tell common words.
    rare = rarity(excerpt.text for excerpt in texts)
    by_text: dict[str, TrainingQuery] = {}
    for row, excerpt in zip(drawn.tolist(), texts, strict=True):
        # Seeded by the text, so that a passage gives the same query whatever else is in the index.
        draw = Random(zlib.crc32(excerpt.text.encode(errors="replace")) ^ seed)
        if generator is not None:
            generated = generator(_passage(excerpt))
            queries = [
                TrainingQuery(q, row)
                for q in ([generated] if isinstance(generated, str) else generated)
            ]
        else:
            synthetic = query_from(excerpt.text, excerpt.title, draw, rare)
            queries = (
                [TrainingQuery(synthetic.query, row, synthetic.without)]
                if synthetic is not None
                else []
            )
        for one in queries:
            if one.query.strip():
                # Two passages may give one query; the first keeps it.
                by_text.setdefault(one.query, one)
    order = np.random.default_rng(seed + 1).permutation(len(by_text))[:limit]
    listed = list(by_text.values())
    kept = [listed[number] for number in order]
    what = f"could be made of {len(texts)} passages: most are too short"
    _enough(kept, f"{what}; there must be", "so give a file of queries (--queries)")
    return kept


def _enough(queries: Sequence[TrainingQuery], expected: str, remedy: str) -> None:
    if len(queries) < FEWEST:
        raise InputError(f"{len(queries)} queries; {expected} {FEWEST}, {remedy}")


def unknown_word_share(queries: Sequence[TrainingQuery], texts: Iterable[str]) -> float:
    """Share of the words of the queries that none of these texts has."""
    vocabulary: set[str] = set()
    for text in texts:
        vocabulary |= words_of(text)
    words = [word for one in queries for word in words_of(one.query)]
    return sum(word not in vocabulary for word in words) / max(1, len(words))


@dataclass(frozen=True, kw_only=True, eq=False)
class Lists:
    """Q queries with C candidates each; where a query was made of a passage, that one is the first."""

    queries: tuple[str, ...]
    sourced: npt.NDArray[np.bool_]
    """`[Q]`: whether the query was made from its first candidate."""
    texts: tuple[Passage, ...]
    """Every candidate passage once."""
    rows: Ints
    """`[Q,C]` positions in `texts`."""
    first_stage: Floats
    """`[Q,C,2]` BM25 and cosine, each standardised over the candidates of the first stage."""

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, part: slice) -> Lists:
        return replace(
            self,
            queries=self.queries[part],
            sourced=self.sourced[part],
            rows=self.rows[part],
            first_stage=self.first_stage[part],
        )

    def candidates(self, number: int) -> tuple[Passage, ...]:
        """The candidates of one query."""
        return tuple(self.texts[place] for place in self.rows[number].tolist())

    def save(self, path: Path) -> None:
        """Write the lists to one file, whole or not at all."""
        texts = [(p.id, p.text, p.title) for p in self.texts]
        plain = json.dumps({"queries": self.queries, "texts": texts}).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft.npz")
        np.savez_compressed(
            draft,
            plain=np.frombuffer(plain, np.uint8),
            sourced=self.sourced,
            rows=self.rows,
            first_stage=self.first_stage,
        )
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> Lists:
        """The lists that `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            plain = json.loads(file["plain"].tobytes())
            arrays = {name: file[name] for name in ("sourced", "rows", "first_stage")}
        texts = tuple(Passage(id=i, text=text, title=title) for i, text, title in plain["texts"])
        return cls(queries=tuple(plain["queries"]), texts=texts, **arrays)


def list_candidates(
    index: Index,
    queries: Sequence[TrainingQuery],
    count: int,
    *,
    others: bool,
    seed: int = 0,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> Lists:
    """Candidates of each query, `count` of them, for those that have so many; with `others`, some at random.

    After so many seconds, only the queries so far have theirs.
    """
    look = _CandidateSearch(index, count, others, np.random.default_rng(seed))
    step, ranked, started = counter(progress, len(queries)), [], time.perf_counter()
    for number, one in enumerate(queries):
        if seconds is not None and number >= FEWEST and time.perf_counter() - started > seconds:
            break
        ranked.append(look(one))
        step(1)
    both_of = zip(queries[: len(ranked)], ranked, strict=True)
    kept = [(one, rows, both) for one, (rows, both) in both_of if len(rows)]
    if not kept:
        raise InputError(
            f"the index has fewer than {count} passages to rank for a query; add more of them"
        )
    rows = np.stack([rows for _, rows, _ in kept])
    unique, flat = np.unique(rows, return_inverse=True)
    places = flat.reshape(rows.shape).astype(np.int64)
    texts = [*map(_passage, index.store.snapshot.texts(unique))]
    # A sentence that became the query is cut from its passage, else its words alone would find it.
    for number, (one, _, _) in enumerate(kept):
        if one.without is not None:
            texts.append(replace(texts[places[number, 0]], text=one.without))
            places[number, 0] = len(texts) - 1
    return Lists(
        queries=tuple(one.query for one, _, _ in kept),
        sourced=np.asarray([one.source is not None for one, _, _ in kept]),
        texts=tuple(texts),
        rows=places,
        first_stage=np.stack([both for _, _, both in kept]).astype(np.float32),
    )


class _CandidateSearch:
    """Finds the candidates of one query after another."""

    def __init__(self, index: Index, count: int, others: bool, draw: np.random.Generator) -> None:
        self.index, self.count, self.others, self.draw = index, count, others, draw
        self.snapshot, spec = index.refresh(), index.spec
        self.all = self.snapshot.rows()
        self.late = LateInteraction(keep=1.0, projection=LateProjection.of(index.runtime))
        self.stage = "hybrid" if spec.vector is not None else "lexical"
        self.dense, self.fusion = spec.vector is not None, (spec.scoring or Scoring()).fusion

    def __call__(self, query: TrainingQuery) -> tuple[Rows, Floats]:
        """Rows, the query's own first, and both first-stage scores; empty where candidates are too few."""
        search = SearchRun(Request(query=query.query, head="rank", retrieve=True))
        (search.encoding,) = encode_queries(self.index.runtime, [search.request])
        vector = search.encoding.vectors[0]
        first_stage_query = FirstStageQuery(
            snapshot=self.snapshot, query=query.query, vector=vector
        )
        ranked = retrieve(first_stage_query, self.stage, DEPTH, fusion=self.fusion).rows
        others = self._not_copies(query, ranked)
        own = [] if query.source is None else [query.source]
        rest = self._chosen(search, others, self.count - len(own), np.append(own, ranked))
        rows = np.append(np.asarray(own, np.int64), rest)
        if len(rows) < self.count:
            return np.zeros(0, np.int64), np.zeros((0, 2), np.float32)
        # Standardised over all that the first stage found, as a search does, not over the chosen
        # few.
        seen = np.unique(np.append(ranked, rows))
        both = [
            first_stage_query.bm25(seen),
            first_stage_query.cosine(seen) if self.dense else np.zeros(len(seen)),
        ]
        scores = np.stack([standardised(scores) for scores in both], 1)
        return rows, scores[np.searchsorted(seen, rows)].astype(np.float32)

    def _not_copies(self, query: TrainingQuery, ranked: Rows) -> Rows:
        """The rows of the first stage without the source passage and near-copies of it."""
        if query.source is None or not len(ranked):
            return ranked
        texts = [_passage(e) for e in self.snapshot.texts(np.append(ranked, query.source))]
        marks = marks_of(texts)
        # The share of equal minima estimates the Jaccard similarity of the word sets (Broder,
        # 1997).
        copies = (marks[:-1] == marks[-1]).mean(-1) > COPY
        return ranked[~copies & (ranked != query.source)]

    def _chosen(self, search: SearchRun, ranked: Rows, count: int, taken: Rows) -> Rows:
        """The best rows of late interaction and of the first stage in turn; in training also random ones."""
        random = count // ANY if self.others else 0
        near = count - random
        if len(ranked):
            states = self.snapshot.states(ranked)
            scores = self.late.scores(search.encoding.states, states, self.index.codec)
            by_late = ranked[np.argsort(-scores, kind="stable")]
            turns = np.stack([by_late, ranked], 1).ravel()
            ranked = np.asarray(list(dict.fromkeys(turns.tolist())), np.int64)[:near]
        lacking = count - len(ranked)
        any_ = self.draw.choice(self.all, min(len(self.all), 4 * count), replace=False)
        return np.append(ranked, any_[~np.isin(any_, taken)][:lacking])


def _passage(excerpt: Excerpt) -> Passage:
    return Passage(id=excerpt.id, text=excerpt.text, title=excerpt.title)


def marks_of(texts: Sequence[Passage]) -> Ints:
    """`[texts,MARKS]` MinHash sketch of each text's words: two agree as often as words are shared."""
    # Always the same hash functions, so that a run can be repeated.
    draw = np.random.default_rng(0)
    times, plus = draw.integers(1, PRIME, (2, MARKS))
    smallest = np.zeros((len(texts), MARKS), np.int64)
    for row, passage in enumerate(texts):
        words = [
            zlib.crc32(word.encode(errors="replace")) % PRIME for word in words_of(passage.text)
        ]
        if words:
            smallest[row] = ((np.asarray(words)[:, None] * times + plus) % PRIME).min(0)
    return smallest
