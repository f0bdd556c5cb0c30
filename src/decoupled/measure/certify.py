"""`certify`: a split model beside the joint model that it comes from, in one run and through a user's calls.

Passages are indexed with the split model as it will store them; each query is reranked over the index and, in
turn, by the joint model over the texts. So agreement, quality, time and bytes belong together.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from decoupled.errors import InputError
from decoupled.index.index import Index
from decoupled.measure.latency import second_run, summarise
from decoupled.measure.metrics import kendall, normalised_gain
from decoupled.measure.pairs import Pair, read_pairs
from decoupled.measure.table import ResultTable
from decoupled.model.folder import read_history, read_spec
from decoupled.model.progress import Progress, counter
from decoupled.model.tokens import Passage
from decoupled.runtime.open import open_joint
from decoupled.search import starter
from decoupled.search.engine import Engine

FIRST = 10
"""Ranks that count: the gain of the first ten."""
CANDIDATES = 100
"""Candidates of a query where the data do not say which."""


@dataclass(frozen=True, kw_only=True)
class JudgedList:
    """A query with the passages to rank, and the grade of each where they were judged."""

    query: str
    texts: tuple[str, ...]
    grades: tuple[int, ...] = ()

    def gain(self, scores: Sequence[float]) -> float:
        """nDCG@10 of a ranking by these scores, with gains of 2^grade - 1."""
        order = np.argsort(-np.asarray(scores), kind="stable")
        gains = [2**grade - 1 for grade in self.grades]
        return normalised_gain([gains[n] for n in order], gains, FIRST)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """How a split model compares with its joint model."""

    model: str
    teacher: str
    split: int
    layers: int
    queries: int
    candidates: float
    tau: float
    """Mean Kendall's tau of both rankings."""
    top_1: float
    ndcg: tuple[float, float] | None
    """nDCG@10 of the joint and of the split model; None without judgments."""
    joint_ms: float
    split_ms: float
    codec: str
    bytes_per_token: float
    runtime: str

    @property
    def share(self) -> float | None:
        """The share of the joint model's nDCG@10 that the split one keeps."""
        return None if self.ndcg is None else self.ndcg[1] / max(self.ndcg[0], 1e-9)

    def to_json(self) -> dict[str, Any]:
        """The figures as a JSON object."""
        plain = {"kind": "certificate", **vars(self), "share": self.share}
        plain["times_faster"] = self.joint_ms / self.split_ms
        plain["bytes_of_150_tokens"] = round(150 * self.bytes_per_token)
        return {n: round(v, 4) if isinstance(v, float) else v for n, v in plain.items()}

    def table(self) -> ResultTable:
        """The figures as a table."""
        rows = [("milliseconds a query", self.joint_ms, self.split_ms)]
        if self.ndcg is not None:
            rows.insert(0, ("nDCG@10", *self.ndcg))
        kept = "" if self.share is None else f", keeps {self.share:.1%} of the nDCG@10"
        return ResultTable(
            title=f"{self.model}: split at {self.split} of {self.layers}, beside {self.teacher}",
            columns=("", "joint", "split"),
            rows=rows,
            notes=[
                f"{self.joint_ms / self.split_ms:.1f} times faster{kept}; tau {self.tau:.3f}, the same "
                f"first passage for {self.top_1:.0%}",
                f"{self.queries} queries of {self.candidates:.0f} passages on {self.runtime}; "
                f"{150 * self.bytes_per_token:,.0f} bytes for a passage of 150 tokens in {self.codec}",
            ],
        )

    def card(self) -> str:
        """The table as Markdown, to stand beside the model."""
        table = self.table()
        rows = [table.columns, ("---", "--:", "--:")]
        rows += [(name, f"{joint:.3f}", f"{split:.3f}") for name, joint, split in table.rows]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([f"# {table.title}", "", *lines, "", *(f"- {n}" for n in table.notes), ""])


def certify(
    model: str | Path,
    *,
    teacher: str | Path | None = None,
    data: str | Path | None = None,
    codec: str | None = None,
    limit: int | None = None,
    runtime: str = "auto",
    progress: Progress | None = None,
) -> Certificate:
    """Compare a split model folder with its joint model on lists of passages to rank.

    `data` are pairs with several passages a query, and numbers as labels where they were judged; by default
    the bundled questions with a hundred candidates each. The teacher is the checkpoint that the model was
    split from, if it is still there, or else the same weights unsplit.
    """
    source = teacher or _origin(Path(model))
    joint = Engine(open_joint(Path(model)) if source is None else source, runtime=runtime)
    if source is not None and joint.spec.split:
        raise InputError(
            f"{source} is split at {joint.spec.split}; name the joint model it came from"
        )
    lists = list(_lists(data))[:limit]
    if not lists:
        raise InputError(f"{data} has no query with at least two passages; give lists to rank")
    with tempfile.TemporaryDirectory() as scratch:
        texts = dict.fromkeys(text for one in lists for text in one.texts)
        ids = {text: str(number) for number, text in enumerate(texts)}
        with Index.create(
            Path(scratch) / "corpus.idx", model, codec=codec, runtime=runtime
        ) as index:
            index.add(Passage(id=ids[text], text=text) for text in texts)
            engine, size = Engine(index), index.codec.bytes_per_token
            pairs = list(_compared(lists, joint, engine, ids, counter(progress, len(lists))))
            spec, name, stored = engine.spec, engine.runtime.name, index.codec.name
    graded = [pair for pair in pairs if pair.ranking.grades]
    ndcg = None
    if graded:
        joint_gain = float(np.mean([pair.ranking.gain(pair.joint) for pair in graded]))
        ndcg = joint_gain, float(np.mean([pair.ranking.gain(pair.split) for pair in graded]))
    return Certificate(
        model=Path(model).name,
        teacher="the same weights unsplit" if source is None else Path(source).name,
        split=spec.split,
        layers=len(spec.layers),
        queries=len(lists),
        candidates=float(np.mean([len(one.texts) for one in lists])),
        tau=float(np.mean([kendall(pair.split, pair.joint) for pair in pairs])),
        top_1=float(np.mean([np.argmax(pair.split) == np.argmax(pair.joint) for pair in pairs])),
        ndcg=ndcg,
        joint_ms=summarise([pair.joint_ms for pair in pairs]).median,
        split_ms=summarise([pair.split_ms for pair in pairs]).median,
        codec=stored,
        bytes_per_token=size,
        runtime=name,
    )


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """Scores of both models for the passages of one list, and the time of each."""

    ranking: JudgedList
    joint: list[float]
    split: list[float]
    joint_ms: float
    split_ms: float


def _compared(
    lists: Sequence[JudgedList],
    joint: Engine,
    split: Engine,
    ids: dict[str, str],
    done: Callable[[int], None],
) -> Iterator[_Compared]:
    for one in lists:
        passages = [Passage(id=ids[text], text=text) for text in one.texts]
        names = [passage.id for passage in passages]
        both = (
            second_run(partial(joint.rerank, one.query, texts=passages, raw=True)),
            second_run(partial(split.rerank, one.query, ids=names, raw=True)),
        )
        scores = [{hit.id: hit.score for hit in hits} for hits, _ in both]
        theirs, ours = ([by_id[name] for name in names] for by_id in scores)
        joint_ms, split_ms = (spent for _, spent in both)
        yield _Compared(ranking=one, joint=theirs, split=ours, joint_ms=joint_ms, split_ms=split_ms)
        done(1)


def _origin(model: Path) -> str | None:
    """The checkpoint that a model was read from, if its folder is still there.

    None for a decoder that was only split: its weights are there, and its prompt may be in no checkpoint.
    """
    history = read_history(model)
    if read_spec(model).text.prompt and {step.get("did") for step in history} <= {"read", "split"}:
        return None
    origins = [str(step.get("from", "")) for step in history if step.get("did") == "read"]
    return origins[0] if origins and Path(origins[0]).is_dir() else None


def _lists(data: str | Path | None) -> Iterator[JudgedList]:
    """Lists of at least two passages to rank: of pairs, or of the bundled questions."""
    if data is None:
        engine = starter.open()
        for sample in starter.sample_questions():
            texts = dict.fromkeys(p.text for p in engine.candidates(sample.question, CANDIDATES))
            yield JudgedList(query=sample.question, texts=tuple(texts))
        return
    groups: dict[str, dict[str, Pair]] = {}
    for pair in read_pairs(data):
        groups.setdefault(pair.query, {}).setdefault(pair.passage, pair)
    for query, group in groups.items():
        labels = [pair.label for pair in group.values()]
        grades = tuple(round(x) for x in labels if isinstance(x, int | float))
        complete = grades if len(grades) == len(labels) else ()
        if len(group) > 1:
            yield JudgedList(query=query, texts=tuple(group), grades=complete)
