"""How a model is trained, as frozen data: the optimiser, the weight of every loss, and the phases.

`RECIPES` names the default, the procedures of both papers and the task loss alone. A recipe is JSON both
ways through `decoupled.model.jsonable.to_json` and `from_json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from decoupled.errors import InputError
from decoupled.model.jsonable import LATER, from_json, to_json

Precision = Literal["fp32", "bf16"]
CodecLoss = Literal["reconstruction", "attention", "margin"]
RankLoss = Literal["bce", "listwise", "margin"]


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """AdamW as in DeFormer, with torch's bias correction (the paper's own Adam has none)."""

    lr: float = 5e-5
    epochs: float = 3.0
    batch: int = 32
    """Groups of pairs in a step: pairs for most tasks, questions for `choice`, queries for `rank`."""
    tokens: int | None = None
    """Padded tokens in a step instead of a fixed number of groups."""
    warmup: float = 0.15
    """Share of the steps with a rising rate; then it falls to 0 on the line that began at step 0."""
    decay: float = 0.01
    """Decoupled weight decay, not on biases and norms."""
    clip: float = 1.0
    accumulate: int = 1
    """Steps whose gradients make one update of the weights, as one batch of them all would."""
    epsilon: float = 1e-6
    ema: float = field(default=0.0, metadata=LATER)
    """Keep so much of the moving average of the weights in every update, and end with it; 0 has none."""
    minutes: float | None = field(default=None, metadata=LATER)
    """End after so long, if the epochs have not ended before; the rate then falls with the time."""
    schedule: Literal["linear", "cosine"] = field(default="linear", metadata=LATER)
    """How the rate falls after the warm-up: on the line that began at step 0, or as half a cosine."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What each loss counts for; 0 leaves it out and costs nothing."""

    task: float = 1.0
    kd: float = 0.0
    """Soft targets of the teacher (DeFormer, equation 3)."""
    lrs: float = 0.0
    """Hidden states of every cross layer, and the pooled vector (DeFormer, equation 4)."""
    hidden: float = 0.0
    """Hidden states of the last layer (Decoupled Transformer)."""
    attention: float = 0.0
    """Self-attention scores of the last layer (Decoupled Transformer)."""
    margin: float = 0.0
    """Score differences within a group against the teacher's or the given scores (`rank`)."""
    reconstruction: float = 0.0
    """States against what the learned projection gives back."""
    exits: float = field(default=0.0, metadata=LATER)
    """What rank heads below the last layer say, against the teacher or the last layer (`rank`)."""

    @property
    def inner(self) -> bool:
        """Do they compare layers with a teacher's?"""
        return bool(self.lrs or self.hidden or self.attention)

    @property
    def guided(self) -> bool:
        """Do they compare anything with a teacher?"""
        return bool(self.inner or self.kd or self.margin)


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
    exits: float = field(default=0.0, metadata=LATER)
    """Rank heads below the last layer, which a model without them is given."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
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


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """What is hidden, exchanged and moved in texts that an encoder learns from without labels."""

    tokens: int = 128
    """Of a text, or of two together."""
    mask: float = 0.15
    """Share of the tokens that are to be guessed."""
    words: int = 1
    """Whole words in a row that are hidden together, at most; 0 hides single tokens."""
    pair: float = 1.0
    """Weight of what is said about two texts."""
    shuffled: float = 0.05
    """Share of the tokens in windows of another order (`structbert`)."""
    window: int = 3
    generator: float = 0.25
    """Width of ELECTRA's generator, as a share of the model's; 0 is none: any token may stand for another."""
    tied: bool = True
    """Does the generator read the tables of the model?"""
    detect: float = 50.0
    """Weight of telling replaced tokens from others."""
    hidden_only: bool = False
    """Tell them apart where a token was hidden, and not everywhere."""
    exchanged: float = 0.5
    """Share of the names that another of their kind stands for (`wklm`)."""
    held: float = 0.05
    """Share of the documents that are set aside, to measure on."""


@dataclass(frozen=True, kw_only=True)
class Squeeze:
    """How the learned projection at the split is trained, where the model has one."""

    phases: Literal[1, 2] = 2
    """Two: first the projection alone on frozen states, then everything (Decoupled Transformer, 4)."""
    epochs: float = 0.5
    """Length of the first phase."""
    lr: float = 1e-3
    loss: CodecLoss = "reconstruction"
    """First phase: give back the states, the attention scores of the cross layers, or the logits."""
    start: Literal["pca", "random"] = "pca"
    keep: float = 0.1
    """Weight of the reconstruction in the second phase."""
    bits: int | None = None
    """Train with states as 8- or 4-bit codes give them back (straight-through gradients)."""


@dataclass(frozen=True, kw_only=True)
class Watch:
    """How often a run logs, is evaluated on the tune split, and is saved."""

    log_every: int = 50
    evaluations: int = 0
    """Evaluations on the tune split, spread over the run; 0 keeps the last weights."""
    patience: int = 0
    """Stop after that many evaluations without a better one; 0 never stops early."""
    save_every: int = 0
    """Steps between checkpoints, rounded up to whole updates; 0 saves none."""
    cache_targets: bool = True
    """Compute the teacher's logits once, when nothing else of it is needed."""
    packed: bool = field(default=False, metadata=LATER)
    """Distil without padding on a GPU, where the layers can; attention then has no dropout."""
    graphs: bool = field(default=True, metadata=LATER)
    """Capture steps as CUDA graphs, one for each shape of a batch, where the objective allows it."""
    compile: bool = False
    """Compile the layers of student and teacher (needs triton, or a C++ compiler on a CPU)."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything about a training run but the data and the model."""

    name: str = "plain"
    optimiser: Optimiser = Optimiser()
    weights: Weights = Weights()
    temperature: float = 2.0
    span: Literal["mean", "sum"] = "mean"
    """How the losses of start and end combine."""
    scores: Literal["scores", "probabilities"] = "scores"
    """What the attention loss compares."""
    match: Literal["top", "uniform"] = "top"
    """Which layers `lrs` compares when the teacher is deeper: its last ones, or evenly spaced ones."""
    kl: Literal["forward", "reverse"] = field(default="forward", metadata=LATER)
    """Soft targets by KL(teacher‖student), as DeFormer's code has it, or KL(student‖teacher), as its text."""
    lrs_from: Literal["cross", "split"] = field(default="cross", metadata=LATER)
    """`lrs` compares the layers above the split (the code), or also what they are given (the text)."""
    lrs_reduce: Literal["mean", "sum"] = field(default="mean", metadata=LATER)
    """Mean over features and layers (the code), or squared distances, summed over layers (the text)."""
    rank: RankLoss = "listwise"
    squeeze: Squeeze = Squeeze()
    splits: tuple[int, ...] = ()
    """Train several splits at once: the shallowest, the deepest and one between in every step."""
    precision: Precision = "bf16"
    seed: int = 0
    watch: Watch = Watch()
    objective: str = field(default="distill", metadata=LATER)
    """What a step minimises: the file of that name in `train/objectives`."""
    reader: ReaderWeights = field(default=ReaderWeights(), metadata=LATER)
    drawing: Drawing = field(default=Drawing(), metadata=LATER)
    pretraining: Pretraining = field(default=Pretraining(), metadata=LATER)

    def __post_init__(self) -> None:
        optimiser, squeeze, watch = self.optimiser, self.squeeze, self.watch
        _check(optimiser, "above 0", "lr", "epochs", "epsilon", "minutes")
        _check(squeeze, "above 0", "lr", "epochs")
        _check(self, "above 0", "temperature")
        _check(optimiser, "from 1", "batch", "accumulate", "tokens")
        _check(watch, "from 1", "log_every")
        _check(watch, "from 0", "evaluations", "patience", "save_every")
        _check(optimiser, "from 0", "decay", "clip")
        _check(self, "from 0", "seed")
        _check(self.drawing, "from 1", "read", "passages", "tokens", "steps", "rounds", "mined")
        _check(self.drawing, "from 0", "synthetic", "titled", "noise", "soft", "held")
        _check(squeeze, "from 0", "keep")
        shares = "mask", "shuffled", "generator", "exchanged", "held"
        _check(self.pretraining, "from 0", *shares, "words", "pair", "detect")
        _check(self.pretraining, "from 1", "tokens")
        if not 2 <= self.pretraining.window <= 16:
            raise InputError(f"window={self.pretraining.window}; choose 2..16 tokens")
        for name in shares:
            if (share := getattr(self.pretraining, name)) > 1:
                raise InputError(f"{name}={share}; choose a share, 0 to 1")
        if not 0 <= optimiser.warmup < 1:
            raise InputError(f"warmup={optimiser.warmup}; choose a share of the steps, 0 up to 1")
        if not 0 <= optimiser.ema < 1:
            raise InputError(f"ema={optimiser.ema}; choose a share to keep, 0 up to 1")
        if squeeze.bits not in (None, 4, 8):
            raise InputError(f"bits={squeeze.bits}; choose 8, 4 or none")
        if not all(0 <= value < math.inf for value in vars(self.weights).values()):
            raise InputError(
                f"{self.weights}: a weight is below 0 or not finite; leave a loss out with 0"
            )
        if any(split < 0 for split in self.splits):
            raise InputError(f"splits={list(self.splits)}; choose layers from 0")


def _check(part: object, bound: Literal["above 0", "from 0", "from 1"], *names: str) -> None:
    for name in names:
        given = getattr(part, name)
        enough = given is None or (given > 0 if bound == "above 0" else given >= int(bound[-1]))
        if not enough or given == math.inf:
            raise InputError(f"{name}={given}; choose a number {bound}")


PLAIN = Recipe(name="plain", span="sum")

DISTILL = Recipe(
    name="distill",
    optimiser=Optimiser(epochs=5.0),
    weights=Weights(task=0.2, kd=1.0, lrs=0.5),
)
"""The default, and the weights behind the figures of docs/results. They were set by hand: over three seeds
soft targets bring what is won, what is imitated beside them makes no difference, and `tune` found no others
that are better on both reading and pairs (docs/results/recipe.md)."""

DEFORMER = Recipe(
    name="deformer",
    optimiser=Optimiser(epochs=5.0),
    weights=Weights(task=0.3, kd=0.5, lrs=0.2),
)
"""DeFormer: γ·task + α·KD + β·LRS with the base model's (α, β, γ) = (0.5, 0.2, 0.3) and T = 2."""

DECOUPLED = Recipe(
    name="decoupled",
    optimiser=Optimiser(epochs=5.0),
    weights=Weights(task=0.1, kd=0.9, hidden=0.5, attention=0.5),
    temperature=4.0,
)
"""Decoupled Transformer: (1-λ)·CE + λ·KD + 0.5·last hidden + 0.5·last attention. λ and T are not given there;
these are the upper λ and the middle T of the sweep that the paper suggests."""

READER = Recipe(
    name="reader",
    objective="reader",
    optimiser=Optimiser(lr=3e-4, epochs=3.0, batch=64, warmup=0.05, accumulate=2, ema=0.998),
    temperature=1.0,
    # Its lists of passages are of many lengths, and gain more by running without padding.
    watch=Watch(graphs=False),
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


ADAPT = Recipe(
    name="adapt",
    objective="adapt",
    optimiser=Optimiser(lr=5e-5, epochs=1.0, batch=16, warmup=0.1),
    temperature=1.0,
    reader=replace(_STUDENT, span=0.0, no_answer=0.0, rank=0.0, certainty=0.0, lrs=0.1),
    squeeze=Squeeze(phases=1, bits=8),
)
"""A split model on the texts of an index, taught by scores alone. `lrs` needs a teacher of the same shape."""


PRETRAIN = {
    name: Recipe(
        name=name,
        objective=name,
        optimiser=Optimiser(lr=lr, epochs=1.0, batch=64, warmup=0.1, ema=0.0),
        pretraining=Pretraining(mask=mask),
    )
    for name, lr, mask in (
        *(("mlm", 1e-4, 0.15), ("nsp", 1e-4, 0.15), ("sop", 1e-4, 0.15)),
        *(("electra", 2e-4, 0.15), ("structbert", 1e-4, 0.15), ("wklm", 5e-5, 0.05)),
    )
}
"""How an encoder learns from texts without labels, by objective; rates suit one that has learnt already."""


def as_student(recipe: Recipe) -> Recipe:
    """The recipe of a reader for one that has a teacher and also retrieves: mostly soft targets.

    A weight that was set by hand stays.
    """
    plain, given = vars(ReaderWeights()), vars(recipe.reader)
    set_ = {name: value for name, value in given.items() if value != plain[name]}
    squeeze = recipe.squeeze if recipe.squeeze != Squeeze() else Squeeze(phases=1, bits=4)
    return replace(recipe, reader=replace(_STUDENT, **set_), squeeze=squeeze)


RECIPES: dict[str, Recipe] = {r.name: r for r in (DISTILL, PLAIN, DEFORMER, DECOUPLED, READER)}


def recipe_named(name: str) -> Recipe:
    """The recipe of that name, or an error that lists them."""
    if name not in RECIPES:
        raise InputError(f"recipe {name!r} is unknown; choose one of {', '.join(RECIPES)}")
    return RECIPES[name]


def override(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with fields replaced, `{"optimiser.lr": 1e-4}`, every value checked by its type."""
    plain = to_json(recipe, later=True)
    for path, value in changes.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{path}={value}; choose a finite number")
        *parents, last = path.split(".")
        within = plain
        for parent in parents:
            within = within.get(parent) if isinstance(within, dict) else None
        if not isinstance(within, dict) or last not in within or isinstance(within[last], dict):
            raise InputError(f"{path!r} is no field of a recipe; choose one of {_names(plain)}")
        within[last] = to_json(value)
    return from_json(Recipe, plain)


def _names(plain: dict[str, Any], above: str = "") -> str:
    return ", ".join(
        _names(value, f"{name}.") if isinstance(value, dict) else f"{above}{name}"
        for name, value in plain.items()
    )
