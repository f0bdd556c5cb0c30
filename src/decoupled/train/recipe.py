"""How a model is trained, as frozen data: a small core, and the settings of what is minimised.

`RECIPES` names the default, the procedures of both papers and the task loss alone. A recipe is JSON both ways
through `decoupled.model.jsonable.to_json` and `recipe_from`, which also reads what earlier versions wrote.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeVar

from decoupled.errors import InputError, SpecError
from decoupled.model.jsonable import LATER, from_json, to_json
from decoupled.model.spec import CrossEmbed

Precision = Literal["fp32", "bf16"]
RankLoss = Literal["bce", "listwise", "margin"]


def check(part: object, bound: Literal["above 0", "from 0", "from 1"], *names: str) -> None:
    """Raise `InputError` where a field of these names is out of bounds; None is in."""
    for name in names:
        value = getattr(part, name)
        # None means that the option is not used, so it is within any bound.
        enough = value is None or (value > 0 if bound == "above 0" else value >= int(bound[-1]))
        if not enough or value == math.inf:
            raise InputError(f"{name}={value}; choose a number {bound}")


def check_bits(bits: int | None) -> None:
    """Raise `InputError` unless codes of so many bits can be trained with."""
    if bits not in (None, 4, 8):
        raise InputError(f"bits={bits}; choose 8, 4 or none")


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

    def __post_init__(self) -> None:
        check(self, "above 0", "lr", "epochs", "epsilon", "minutes")
        check(self, "from 1", "batch", "accumulate", "tokens")
        check(self, "from 0", "decay", "clip")
        if not 0 <= self.warmup < 1:
            raise InputError(f"warmup={self.warmup}; choose a share of the steps, 0 up to 1")
        if not 0 <= self.ema < 1:
            raise InputError(f"ema={self.ema}; choose a share to keep, 0 up to 1")


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weight of each loss; 0 leaves it out and costs nothing."""

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

    def __post_init__(self) -> None:
        if not all(0 <= value < math.inf for value in vars(self).values()):
            raise InputError(f"{self}: a weight is below 0 or not finite; leave a loss out with 0")

    @property
    def inner(self) -> bool:
        """Whether they compare layers with a teacher's."""
        return bool(self.lrs or self.hidden or self.attention)

    @property
    def guided(self) -> bool:
        """Whether they compare anything with a teacher."""
        return bool(self.inner or self.kd or self.margin)


@dataclass(frozen=True, kw_only=True)
class Compression:
    """How the learned projection at the split is trained, where the model has one."""

    phases: Literal[1, 2] = 2
    """Two: first the projection alone on frozen states, then everything (Decoupled Transformer, 4)."""
    epochs: float = 0.5
    """Epochs of the first phase."""
    lr: float = 1e-3
    start: Literal["pca", "random"] = "pca"
    keep: float = 0.1
    """Weight of the reconstruction in the second phase."""
    bits: int | None = None
    """Train with states as 8- or 4-bit codes give them back (straight-through gradients)."""

    def __post_init__(self) -> None:
        check(self, "above 0", "lr", "epochs")
        check(self, "from 0", "keep")
        check_bits(self.bits)


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

    def __post_init__(self) -> None:
        check(self, "from 1", "log_every")
        check(self, "from 0", "evaluations", "patience", "save_every")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that only one objective needs; each objective has its own subclass."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Names of groups of fields in recipes of earlier versions, and what they are called here; empty where
    their fields now stand by themselves."""


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, kw_only=True)
class Distillation(Settings):
    """The losses of the objective `distill`, and how they compare two models."""

    renamed: ClassVar[Mapping[str, str]] = {"squeeze": "projection"}

    weights: Weights = Weights()
    temperature: float = 2.0
    span: Literal["mean", "sum"] = "mean"
    """How the losses of start and end are combined."""
    match: Literal["top", "uniform"] = "top"
    """Which layers `lrs` compares when the teacher is deeper: its last ones, or evenly spaced ones."""
    kl: Literal["forward", "reverse"] = "forward"
    """Soft targets by KL(teacher‖student), as DeFormer's code has it, or KL(student‖teacher), as its text."""
    lrs_from: Literal["cross", "split"] = "cross"
    """`lrs` compares the layers above the split (the code), or also what they are given (the text)."""
    lrs_reduce: Literal["mean", "sum"] = "mean"
    """Mean over features and layers (the code), or squared distances, summed over layers (the text)."""
    rank: RankLoss = "listwise"
    projection: Compression = Compression()
    tables: CrossEmbed = field(default="none", metadata=LATER)
    """Position and segment tables that a split gets for its cross component, as the input's at first."""

    def __post_init__(self) -> None:
        check(self, "above 0", "temperature")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything about a training run but the data and the model."""

    name: str = "plain"
    optimiser: Optimiser = Optimiser()
    precision: Precision = "bf16"
    seed: int = 0
    watch: Watch = Watch()
    objective: str = "distill"
    """What a step minimises: the file of that name in `train/objectives`, or a method's."""
    settings: Settings = Distillation()
    """The settings of the objective."""

    def __post_init__(self) -> None:
        check(self, "from 0", "seed")

    def of(self, kind: type[S]) -> S:
        """The settings, which must be of that kind."""
        if not isinstance(self.settings, kind):
            raise InputError(
                f"the recipe {self.name!r} has the settings of another objective than {self.objective!r}; "
                "begin with a recipe of that objective"
            )
        return self.settings


PLAIN = Recipe(name="plain", settings=Distillation(span="sum"))

DISTILL = Recipe(
    name="distill",
    optimiser=Optimiser(epochs=5.0),
    settings=Distillation(weights=Weights(task=0.2, kd=1.0, lrs=0.5)),
)
"""The default, and the weights behind the figures of docs/results. They were set by hand: over three seeds
soft targets bring what is won, what is imitated beside them makes no difference, and `tune` found no others
that are better on both reading and pairs (docs/results/recipe.md)."""

DEFORMER = Recipe(
    name="deformer",
    optimiser=Optimiser(epochs=5.0),
    settings=Distillation(weights=Weights(task=0.3, kd=0.5, lrs=0.2)),
)
"""DeFormer: γ·task + α·KD + β·LRS with the base model's (α, β, γ) = (0.5, 0.2, 0.3) and T = 2."""

DECOUPLED = Recipe(
    name="decoupled",
    optimiser=Optimiser(epochs=5.0),
    settings=Distillation(
        weights=Weights(task=0.1, kd=0.9, hidden=0.5, attention=0.5), temperature=4.0, tables="add"
    ),
)
"""Decoupled Transformer: tables at the split, (1-λ)·CE + λ·KD + 0.5·last hidden + 0.5·last attention, and two
phases for a projection. λ and T are not given there: 0.9 and 4 are of our choice."""

RECIPES: dict[str, Recipe] = {r.name: r for r in (DISTILL, PLAIN, DEFORMER, DECOUPLED)}


def recipe_named(name: str) -> Recipe:
    """The recipe of that name, or an error that lists them."""
    if name not in RECIPES:
        raise InputError(f"recipe {name!r} is unknown; choose one of {', '.join(RECIPES)}")
    return RECIPES[name]


# As JSON, and by name -----------------------------------------------------------------------------


def recipe_from(plain: Mapping[str, Any], kind: type[Settings]) -> Recipe:
    """The recipe that `to_json` wrote, now or in an earlier version, with settings of that kind."""
    core = {f.name: plain[f.name] for f in fields(Recipe) if f.name in plain}
    own = core.pop("settings", None)
    if own is None:
        # Recipes of earlier versions had the settings of all objectives beside the core.
        own = _renamed({n: v for n, v in plain.items() if n not in core}, kind)
    # Fields that are gone, such as `watch.compile`, are passed over: a saved recipe must still open.
    own = _shared_fields(own, to_json(kind(), later=True))
    core = _shared_fields(core, to_json(Recipe(), later=True))
    try:
        settings = from_json(kind, own)
    except SpecError as error:
        # A user knows the fields by the names of `--set`, and not the class that holds them.
        raise SpecError(str(error).replace(kind.__name__, "Recipe", 1)) from None
    return replace(from_json(Recipe, core), settings=settings)


def _renamed(plain: Mapping[str, Any], kind: type[Settings]) -> dict[str, Any]:
    """Settings under the names of today."""
    own: dict[str, Any] = {}
    for name, value in plain.items():
        now = kind.renamed.get(name, name)
        own |= {now: value} if now else value
    return own


def _shared_fields(values: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """The nested values whose names are known in `like`."""
    return {
        name: _shared_fields(value, like[name]) if isinstance(value, dict) else value
        for name, value in values.items()
        if name in like
    }


def override(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with fields replaced, `{"optimiser.lr": 1e-4}`, every value checked by its type.

    Fields of the settings are named without that word, by their names of today or of earlier versions.
    """
    plain = to_json(recipe, later=True)
    own = plain.pop("settings")
    for path, value in changes.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{path}={value}; choose a finite number")
        *parents, last = _path(path, recipe.settings).split(".")
        # The first part of a dotted name tells settings of the objective from the core.
        within = own if (parents or [last])[0] in own else plain
        for parent in parents:
            within = within.get(parent) if isinstance(within, dict) else None
        if not isinstance(within, dict) or last not in within or isinstance(within[last], dict):
            names = _names({**plain, **own})
            raise InputError(f"{path!r} is no field of a recipe; choose one of {names}")
        # Values go through JSON and back, which is where their types are checked.
        within[last] = to_json(value)
    return recipe_from({**plain, "settings": own}, type(recipe.settings))


def _path(path: str, settings: Settings) -> str:
    """The dotted name of today for one that earlier versions had."""
    first, dot, rest = path.partition(".")
    now = settings.renamed.get(first, first) if dot else first
    return f"{now}{dot}{rest}" if now else rest


def _names(plain: Mapping[str, Any], above: str = "") -> str:
    return ", ".join(
        _names(value, f"{name}.") if isinstance(value, dict) else f"{above}{name}"
        for name, value in plain.items()
    )
