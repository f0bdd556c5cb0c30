"""What `pretrain` is given: the settings of its objectives, their recipes, and the options of the command."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from decoupled.errors import InputError, OptionError
from decoupled.train.loop.loop import suited_to_machine
from decoupled.train.recipe import Optimiser, Recipe, Settings, check

SHARES = ("mask", "shuffled", "generator", "exchanged", "held")


@dataclass(frozen=True, kw_only=True)
class Pretraining(Settings):
    """The settings of pre-training: what is hidden, exchanged and moved in unlabelled texts."""

    renamed: ClassVar[Mapping[str, str]] = {"pretraining": ""}

    tokens: int = 128
    """The most tokens of a text, or of two together."""
    mask: float = 0.15
    """Share of the tokens that are to be guessed."""
    words: int = 1
    """Whole words in a row that are hidden together, at most; 0 hides single tokens."""
    pair: float = 1.0
    """Weight of the loss of pairs."""
    shuffled: float = 0.05
    """Share of the tokens in windows of another order (`structbert`)."""
    window: int = 3
    generator: float = 0.25
    """Width of ELECTRA's generator as a share of the model's; 0 draws replacements at random instead."""
    tied: bool = True
    """Whether the generator reads the tables of the model."""
    detect: float = 50.0
    """Weight of detecting replaced tokens; 50 in ELECTRA."""
    hidden_only: bool = False
    """Whether to detect only where a token was hidden, and not everywhere."""
    exchanged: float = 0.5
    """Share of the names that are exchanged for others of their kind (`wklm`)."""
    held: float = 0.05
    """Share of the documents that are set aside, to measure on."""

    def __post_init__(self) -> None:
        check(self, "from 0", *SHARES, "words", "pair", "detect")
        check(self, "from 1", "tokens")
        if not 2 <= self.window <= 16:
            raise InputError(f"window={self.window}; choose 2..16 tokens")
        for name in SHARES:
            if (share := getattr(self, name)) > 1:
                raise InputError(f"{name}={share}; choose a share, 0 to 1")


PRETRAIN = {
    name: Recipe(
        name=name,
        objective=name,
        optimiser=Optimiser(lr=lr, epochs=1.0, batch=64, warmup=0.1, ema=0.0),
        settings=Pretraining(mask=mask),
    )
    for name, lr, mask in (
        *(("mlm", 1e-4, 0.15), ("nsp", 1e-4, 0.15), ("sop", 1e-4, 0.15)),
        *(("electra", 2e-4, 0.15), ("structbert", 1e-4, 0.15), ("wklm", 5e-5, 0.05)),
    )
}
"""How an encoder learns from texts without labels, by objective; rates suit one that has learnt already."""


def pretrain_recipe(objective: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of an objective as suits this machine, with `changes` by dotted field name."""
    if objective not in PRETRAIN:
        raise OptionError("objective", f"is {objective!r}; choose {', '.join(PRETRAIN)}")
    return suited_to_machine(
        PRETRAIN[objective], {"optimiser.batch": 16, "watch.log_every": 5}, changes
    )


@dataclass(frozen=True, kw_only=True)
class PretrainingOptions:
    """The options of the command that decide a run."""

    corpus: tuple[str, ...]
    objective: str
    base: str | None
    spec: str | None
    gazetteer: str | None
    steps: int | None


def check_options(
    objective: str, *, base: object, spec: object, gazetteer: object, keep_generator: bool
) -> None:
    """Raise `InputError` for options that do not go together."""
    if base is None and spec is None:
        raise InputError(
            "neither base nor spec is given; name the model to train further, or describe a new one"
        )
    if gazetteer and objective != "wklm":
        raise _misplaced("gazetteer", "wklm", objective)
    if keep_generator and objective != "electra":
        raise _misplaced("keep_generator", "electra", objective)


def _misplaced(option: str, whose: str, objective: str) -> OptionError:
    problem = f"is for objective {whose}, and it is {objective}; leave it out"
    return OptionError(option, problem)
