"""The recipe of a model that ranks, reads and retrieves: its losses, and how groups are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from decoupled.train.loop.loop import suited_to_machine
from decoupled.train.recipe import Compression, Optimiser, Recipe, Settings, check

AS_A_WHOLE = Compression()
"""How a projection is trained where nobody says otherwise."""


@dataclass(frozen=True, kw_only=True)
class ReaderWeights:
    """What each loss of the objective `reader` counts for; those against a teacher, if there is one."""

    span: float = 1.0
    no_answer: float = 0.2
    """All spans against no answer: in one passage, and in all of a query together."""
    rank: float = 1.0
    certainty: float = 0.2
    """Each pair's own yes or no, so that a score is a probability."""
    vector: float = 0.0
    late: float = 0.0
    span_kd: float = 0.0
    rank_kd: float = 0.0
    margin: float = 0.0
    lrs: float = 0.0
    """Hidden states; the teacher then runs in every step, and its targets cannot be kept."""
    vector_kd: float = 0.0
    """The vector against the retriever's own."""
    reconstruction: float = 0.0
    exits: float = 0.0
    """Rank heads below the last layer, which a model without them is given."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the groups of the objective `reader` are drawn: a step reads a batch, then ranks one."""

    read: int = 160
    """Questions in a batch that is read, each with its passage and another."""
    passages: int = 8
    """Of each query in a batch that is ranked, of `optimiser.batch` queries."""
    tokens: int = 256
    """Of a window of a passage."""
    synthetic: float = 0.25
    """Share of the queries to rank that are made of texts."""
    titled: float = 0.5
    """Share of the groups whose passages have their titles before them."""
    noise: float = 0.35
    """Share of the queries to rank that are bare or mistyped; of those to read less than half as many."""
    soft: float = 0.4
    """Share of the retriever's cosines in the target of a ranking, where there is a label."""
    steps: int = 1000
    """At most so many batches of each kind in an epoch."""
    rounds: int = 4
    """Different epochs; then they come again, and the teacher's targets are known."""
    held: float = 0.03
    """Share of the queries that are set aside."""
    mined: int = 24
    """Candidates of BM25 for each query, and as many of the retriever."""

    def __post_init__(self) -> None:
        check(self, "from 1", "read", "passages", "tokens", "steps", "rounds", "mined")
        check(self, "from 0", "synthetic", "titled", "noise", "soft", "held")


@dataclass(frozen=True, kw_only=True)
class ReaderSettings(Settings):
    """What the objective `reader` needs to know beside the core of a recipe."""

    renamed: ClassVar[Mapping[str, str]] = {
        "reader": "weights",
        "drawing": "sampling",
        "squeeze": "projection",
    }

    weights: ReaderWeights = ReaderWeights()
    sampling: Sampling = Sampling()
    projection: Compression = AS_A_WHOLE
    temperature: float = 1.0
    span: Literal["mean", "sum"] = "mean"
    """How the losses of start and end combine."""

    def __post_init__(self) -> None:
        check(self, "above 0", "temperature")


READER = Recipe(
    name="reader",
    objective="reader",
    optimiser=Optimiser(lr=3e-4, epochs=3.0, batch=64, warmup=0.05, accumulate=2, ema=0.998),
    settings=ReaderSettings(),
)
"""A model that ranks and reads, on a mixture of datasets; with a teacher, see `as_student`."""


_STUDENT = ReaderWeights(
    span=0.25,
    no_answer=0.1,
    rank=0.15,
    certainty=0.05,
    vector=0.05,
    late=0.3,
    span_kd=1.0,
    rank_kd=1.0,
    margin=0.05,
    vector_kd=4.0,
    reconstruction=0.1,
)


def as_student(recipe: Recipe) -> Recipe:
    """The recipe of a reader for one that has a teacher and also retrieves: mostly soft targets.

    A weight that was set by hand stays.
    """
    own = recipe.of(ReaderSettings)
    plain, weights = vars(ReaderWeights()), vars(own.weights)
    by_hand = {name: value for name, value in weights.items() if value != plain[name]}
    projection = own.projection
    if projection == AS_A_WHOLE:
        projection = Compression(phases=1, bits=4)
    settings = replace(own, weights=replace(_STUDENT, **by_hand), projection=projection)
    return replace(recipe, settings=settings)


def reader_recipe(changes: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe `reader` as suits this machine, with what is to be otherwise by dotted name."""
    on_cpu = {"optimiser.batch": 8, "sampling.read": 16, "watch.log_every": 10}
    if changes and changes.get("optimiser.minutes"):
        changes = {"optimiser.epochs": 1e4, **changes}  # the clock ends it
    return suited_to_machine(READER, on_cpu, changes)
