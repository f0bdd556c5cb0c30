"""What one query asks of the engine, and what the stages have made of it so far."""

from __future__ import annotations

import json
import math
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard, overload

import numpy as np
import numpy.typing as npt

from decoupled.errors import DecoupledError, InputError, OptionError
from decoupled.index.encode import encode_texts
from decoupled.index.record import Excerpt
from decoupled.index.store.base import Ranking, Rows, Snapshot
from decoupled.model.parts.head import HeadKind
from decoupled.model.scoring import Floats
from decoupled.model.states import Encoding, States
from decoupled.model.tokens import Passage
from decoupled.runtime.base import Logits, Passages, Runtime
from decoupled.search import tracing
from decoupled.search.results import Timing

FirstStage = Literal["lexical", "dense", "hybrid"]
FirstStageName = Literal["auto", FirstStage]
"""`auto` is both where the model learnt vectors, words alone elsewhere."""
OutsideStage = Callable[[str, int], Iterable[str | tuple[str, float]]]
"""A search elsewhere: for a query and a count, ids of passages or documents, or (id, score), best first."""
Stage = FirstStageName | OutsideStage

CANDIDATES = 100
"""Number of records that the first stage hands on by default."""


def _visible(letter: str) -> bool:
    """Whether a character is more than a space, a control character or one without width."""
    return unicodedata.category(letter) not in ("Cc", "Cf", "Zl", "Zp", "Zs")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A query with where its passages come from, and what is asked of them.

    Passages are those of `ids` and `texts`; with `retrieve`, what the first stage finds in the index.
    """

    query: str
    head: HeadKind
    """Head that decides the results: scores (`rank`, `choice`), answers (`span`) or labels (`classes`)."""
    k: int | None = None
    """How many results; None for all, of given passages."""
    retrieve: bool = False
    first_stage: Stage = "auto"
    candidates: int = CANDIDATES
    read: Literal["auto", "all"] = "auto"
    """Which candidates the cross component reads: as the engine was made, or every one."""
    where: Mapping[str, Any] | None = None
    ids: tuple[str, ...] = ()
    texts: tuple[str | Passage, ...] = ()
    blend: float = 1.0
    """Scale of the first-stage scores that the model adds to its rank logit: 1 as learnt, 0 none."""
    raw: bool = False
    """Whether scores are logits instead of probabilities."""
    threshold: float | Literal["auto"] = 0.0
    """Reject answers with a lower score; `auto` is what the model learnt, which `Engine.ask` uses."""
    hops: int = 1
    """With 2 or more, candidates are followed along their links and read together (`methods/hop`)."""
    show_first_stage: bool = False
    """Whether each hit comes with its rank and score in the first stage."""
    prune: float | Literal["auto"] | None = None
    """Leave out of `pruned_text` the sentences that matter with a lower probability; `auto`: as measured."""
    highlight: bool = False
    """Whether each passage comes with the place of the sentence that matters most."""
    part: bool = False
    """Asked of a shard: answers come unmerged, to be merged with those of the others."""
    trace: str = ""
    """The span that its stages belong to, as `tracing.here` writes it; that of the caller without one."""

    def __post_init__(self) -> None:
        if not isinstance(self.query, str):
            raise InputError(f"the query is {self.query!r:.60}; expected a text")
        if self.head in ("rank", "span") and not any(map(_visible, self.query)):
            raise InputError("the query is empty; write what to look for")
        if not 0 <= self.blend < math.inf:
            raise InputError(f"blend={self.blend}; choose 0 for the rank head alone, 1 as learnt")
        for name, share in (("prune", self.prune), ("threshold", self.threshold)):
            if not (share in (None, "auto") or (_is_number(share) and 0 <= share <= 1)):
                raise InputError(f"{name}={share!r}; choose a probability from 0 to 1, or 'auto'")
        if self.read not in ("auto", "all"):
            raise InputError(f"read={self.read!r}; choose auto or all")
        for name, value in (("k", self.k), ("candidates", self.candidates), ("hops", self.hops)):
            if value is not None and value < 1:
                raise InputError(f"{name}={value}; choose 1 or more")

    @property
    def prunes(self) -> bool:
        """Whether the sentences of the results are looked at."""
        return self.prune is not None or self.highlight

    @property
    def reads_index(self) -> bool:
        """Whether the request needs passages of the index."""
        return self.retrieve or bool(self.ids)


@dataclass(frozen=True, kw_only=True, eq=False)
class Windows:
    """States of stored rows first, then of texts; what they say is looked up only when asked for."""

    states: Passages
    snapshot: Snapshot | None = None
    rows: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    texts: tuple[Excerpt, ...] = ()
    prior: Floats = field(default_factory=lambda: np.zeros(0))
    """What the first stage adds to the rank logit of each of `rows`; empty where there was none."""
    owners: tuple[int, ...] = ()
    """Which of the caller's texts each of `texts` is a window of."""

    def __len__(self) -> int:
        return len(self.states)

    def take(self, which: npt.NDArray[np.int64]) -> Windows:
        """The windows at these indices, which are in ascending order."""
        stored = which[which < len(self.rows)]
        texts = (which[which >= len(self.rows)] - len(self.rows)).tolist()
        return Windows(
            states=self.states.select(which),
            snapshot=self.snapshot,
            rows=self.rows[stored],
            prior=self.prior[stored] if len(self.prior) else self.prior,
            texts=tuple(self.texts[n] for n in texts),
            owners=tuple(self.owners[n] for n in texts),
        )

    def leads(self, prefix: int) -> npt.NDArray[np.int64]:
        """How many tokens of each window are not of its text: `prefix`, unless a title is among them."""
        none = np.zeros(0, np.int64)
        stored = none if self.snapshot is None else self.snapshot.leads(self.rows)
        texts = np.array([text.lead for text in self.texts], np.int64)
        # -1 comes from tables of before titles were read, where the prefix alone precedes the text.
        return np.concatenate([np.where(stored < 0, prefix, stored), texts])

    def describe(self, which: Sequence[int]) -> list[tuple[object, Excerpt]]:
        """For each window a key, which windows of one passage share, and its text with metadata."""
        stored, first = [w for w in which if w < len(self.rows)], len(self.rows)
        described: dict[int, tuple[object, Excerpt]] = {
            n: text for n, text in enumerate(zip(self.owners, self.texts, strict=True), first)
        }
        if stored and self.snapshot is not None:
            read = self.snapshot.texts(self.rows[stored])
            described |= {w: (excerpt.id, excerpt) for w, excerpt in zip(stored, read, strict=True)}
        return [described[w] for w in which]


NO_WINDOWS = Windows(states=States(np.zeros((0, 0), np.float32), np.zeros(0, np.int64)))


class SearchRun:
    """The record of one request: what the stages made of it, with its own times and its own error."""

    encoding: Encoding
    logits: Logits

    def __init__(self, request: Request) -> None:
        self.request, self.trace = request, request.trace or tracing.here()
        self.rankings: Mapping[str, Ranking] = {}
        """Rankings of the first stage by name, where the request wants to see them."""
        self.windows = NO_WINDOWS
        """The windows that the cross component reads."""
        self.all_windows: Windows | None = None
        """All windows of the request, where some of them are left unread."""
        self.shown: dict[tuple[str, int], int] = {}
        """The window of each result, by the id of its passage and where the window begins in it."""
        self.unknown: Sequence[str] = ()
        """Ids that a first stage elsewhere gave, and the index does not have."""
        self.error: Exception | None = None
        self.spent: dict[str, float] = {}
        self._started = time.perf_counter()

    def narrow(self, which: npt.NDArray[np.int64]) -> None:
        """Leave only these windows to be read; `widen` brings the others back."""
        if len(which) < len(self.windows):
            self.all_windows = self.windows if self.all_windows is None else self.all_windows
            self.windows = self.windows.take(which)

    def widen(self) -> None:
        """Read all windows again."""
        assert self.all_windows is not None
        self.windows, self.all_windows = self.all_windows, None

    def describe(self, which: Sequence[int]) -> list[tuple[object, Excerpt]]:
        """As `Windows.describe`, which reads texts of the index."""
        with timed("fetch_ms", self):
            described = self.windows.describe(which)
        self.shown |= {(e.id, e.start): n for n, (_, e) in zip(which, described, strict=True)}
        return described

    def first_stage(self, window: int) -> dict[str, dict[str, float]] | None:
        """Rank, from 1, and score of a window in each ranking that holds it."""
        if not self.request.show_first_stage:
            return None
        row, placed = self.windows.rows[window], {}
        for name, ranking in self.rankings.items():
            if len(at := np.flatnonzero(ranking.rows == row)):
                placed[name] = {"rank": int(at[0]) + 1, "score": float(ranking.scores[at[0]])}
        return placed

    @property
    def tokens(self) -> int:
        """Tokens that are read: those of the query with each window."""
        lengths = self.windows.states.lengths
        return int(lengths.sum()) + len(lengths) * int(self.encoding.states.lengths.sum())

    def timing(self) -> Timing:
        """The stages so far, and the whole."""
        return Timing(**self.spent, total_ms=(time.perf_counter() - self._started) * 1e3)


@contextmanager
def attempt(*searches: SearchRun) -> Iterator[None]:
    """Give an expected error of the block to these searches, so that others go on."""
    try:
        yield
    except (DecoupledError, OSError) as error:
        for search in searches:
            search.error = error


@contextmanager
def timed(stage: str, *searches: SearchRun) -> Iterator[None]:
    """Count the block towards a field of `Timing`, less what is counted within it; each search counts all."""
    begun, before = time.perf_counter(), [sum(search.spent.values()) for search in searches]
    with ExitStack() as spans:
        for search in searches:
            spans.enter_context(tracing.span(f"decoupled.{stage[:-3]}", search.trace))
        yield
    took = (time.perf_counter() - begun) * 1e3
    for search, counted in zip(searches, before, strict=True):
        # Blocks nest: what an inner one counted is taken off, so that stages add up to the total.
        own = took - (sum(search.spent.values()) - counted)
        search.spent[stage] = search.spent.get(stage, 0.0) + own


def live(searches: Sequence[SearchRun]) -> list[SearchRun]:
    """The searches that have not failed so far."""
    return [search for search in searches if search.error is None]


def encode_queries(
    runtime: Runtime, requests: Sequence[Request], budget: int | None = None
) -> list[Encoding]:
    """The states of each query, and its vector where one of them retrieves."""
    ids = runtime.tokenizer.queries([request.query for request in requests])
    retrieve = any(request.retrieve for request in requests)
    whole = encode_texts(runtime, "query", ids, budget=budget, vectors=retrieve)
    return [
        Encoding(whole.states.select([n]), whole.vectors[n : n + 1]) for n in range(len(requests))
    ]


def as_ids(ids: Sequence[str]) -> tuple[str, ...]:
    """Ids of stored passages; a string alone would be taken for its characters."""
    if isinstance(ids, str):
        raise InputError(f"ids is one string ({ids!r:.60}); give a list of ids")
    return tuple(ids)


def as_passages(texts: Sequence[str | Passage]) -> tuple[Passage, ...]:
    """Plain strings become passages named by their position."""
    if isinstance(texts, str):
        raise InputError("texts is one string; give a list of strings")
    for text in texts:
        if not isinstance(text, str | Passage):
            raise InputError(
                f"a text must be a string or a Passage, not {type(text).__name__} ({text!r:.60})"
            )
    return tuple(
        text if isinstance(text, Passage) else Passage(id=str(number), text=text)
        for number, text in enumerate(texts)
    )


@dataclass(frozen=True, eq=False)
class Listed:
    """Documents that a caller lists, as a request takes them."""

    ids: tuple[str, ...]
    texts: tuple[Passage, ...]
    positions: dict[str, list[int]]
    """The positions in the caller's list of each id of the results."""

    def request(self, query: str, **how: Any) -> Request:
        """The request to rank them for a query."""
        return Request(query=query, head="rank", ids=self.ids, texts=self.texts, **how)


def listed(ids: Mapping[int, str], texts: Mapping[int, str]) -> Listed:
    """Ids of the index and texts to encode now, both by their position in the caller's list.

    An id that came twice has two positions; texts get ids that no stored document of the list has.
    """
    # An id begins with at most one of the marks 0#, 1#, …: of n + 1 marks, n ids leave one free.
    taken = {ident.partition("#")[0] for ident in ids.values()}
    mark = next(f"{n}#" for n in range(len(taken) + 1) if str(n) not in taken)
    passages = tuple(Passage(id=f"{mark}{n}", text=text) for n, text in texts.items())
    positions = {f"{mark}{n}": [n] for n in texts}
    for position, ident in ids.items():
        positions.setdefault(ident, []).append(position)
    return Listed(tuple(dict.fromkeys(ids.values())), passages, positions)


@overload
def parse_threshold(text: str, option: str = ...) -> float | Literal["auto"]: ...
@overload
def parse_threshold(text: str | None, option: str) -> float | Literal["auto"] | None: ...
def parse_threshold(text: str | None, option: str = "threshold") -> float | Literal["auto"] | None:
    """The `threshold` or `prune` of a request, as it is typed."""
    try:
        return "auto" if text == "auto" else None if text is None else float(text)
    except ValueError:
        raise OptionError(option, f"is {text!r}; give a score such as 0.5, or auto") from None


def parse_filter(text: str | None) -> dict[str, object] | None:
    """The `where` of a request, written as JSON."""
    if text is None:
        return None
    example = 'for example \'{"lang": "en"}\''
    try:
        condition = json.loads(text)
    except ValueError as error:
        raise OptionError("where", f"is not JSON ({error}); write {example}") from None
    if not isinstance(condition, dict):
        raise OptionError("where", f"is {text!r:.60}; write an object, {example}")
    return condition
