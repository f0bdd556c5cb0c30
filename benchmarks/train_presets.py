"""The runs of each experiment: what `train_suite.py --preset NAME` executes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run. `start` and `teacher` name a run, `best:PATTERN` of runs, a folder, or `base`."""

    name: str
    dataset: str
    split: int = 0
    start: str = "base"
    teacher: str | None = None
    recipe: str = "plain"
    recipe_from: str | None = None
    """Take the recipe of another run, before `set` applies."""
    set: dict[str, Any] = field(default_factory=dict)
    """Fields of the recipe by dotted name."""
    seed: int = 0
    positions: str | None = None
    cross_embed: str = "none"
    projection: int | None = None
    one_way: Literal["auto"] | None = None
    """`auto`: every cross layer that the head allows is one-way."""
    extra: int = 0
    """Copies of the last layer added on top."""
    augment: dict[str, float] = field(default_factory=dict)
    """`shuffled` and `cropped` pairs, as shares of the data."""
    limit: int | None = None
    """Groups to train on; None is all."""
    tune: float = 0.05
    """Share of the training data that is set aside to choose between runs."""
    bits: tuple[int | None, ...] = (None,)
    shrink: tuple[str, ...] = ()
    """Methods that make the start smaller, before, while and after it is trained."""
    train: bool = True
    save: bool = False
    """Bring the final weights home."""

    def needs(self) -> list[str]:
        """Names and patterns of the runs that must be over before this one."""
        named = (self.start, self.teacher, self.recipe_from)
        return [name for name in named if name and name != "base"]

    @property
    def heavy(self) -> bool:
        """Does it train on long texts, which fill a good part of a GPU?"""
        return self.train and self.dataset.startswith(("squad", "race", "boolq"))

    def seconds(self) -> float:
        """About how long it takes on a GPU that other runs keep busy."""
        if not self.train:
            return 20.0
        if not self.heavy:
            return 20.0 + 10 * float(self.set.get("optimiser.epochs", 2.0))
        share = min(1.0, (self.limit or 90_000) / 90_000)
        return 35 + 75 * share * float(self.set.get("optimiser.epochs", 2.0))


JOINT = "squad-joint"
K3 = "squad-k3-kdlrs-s0"

ABLATION: dict[str, dict[str, Any]] = {
    "none": {"weights.task": 1.0, "weights.kd": 0.0, "weights.lrs": 0.0},
    "kd": {"weights.task": 0.2, "weights.kd": 1.0, "weights.lrs": 0.0},
    "kdlrs": {"weights.task": 0.2, "weights.kd": 1.0, "weights.lrs": 0.5},
    "last": {
        "weights.task": 0.1,
        "weights.kd": 0.9,
        "weights.lrs": 0.0,
        "weights.hidden": 0.5,
        "weights.attention": 0.5,
        "temperature": 4.0,
    },
}
BUDGET: dict[str, Any] = {
    "optimiser.lr": 4e-4,
    "optimiser.batch": 192,
    "optimiser.warmup": 0.1,
    "optimiser.epochs": 2.0,
    "watch.compile": True,
}
"""What every SQuAD student has, unless its name says otherwise."""


def joint_run() -> Run:
    """The teacher for SQuAD."""
    return Run(name=JOINT, dataset="squad", set={**BUDGET, "optimiser.epochs": 3.0})


def student(name: str, split: int, **changes: Any) -> Run:
    """A distilled SQuAD run with the budget that all share."""
    settings = {**BUDGET, **ABLATION["kdlrs"], **changes.pop("set", {})}
    run = Run(
        name=name, dataset="squad", split=split, start=JOINT, teacher=JOINT, recipe="deformer"
    )
    return replace(run, set=settings, **changes)


def ablation(seeds: Sequence[int] = (0, 1, 2)) -> list[Run]:
    """None, KD, KD+LRS and last layer at k=3, equal steps."""
    return [
        student(f"squad-k3-{name}-s{seed}", 3, set=weights, seed=seed)
        for seed in seeds
        for name, weights in ABLATION.items()
    ]


def squad() -> list[Run]:
    """The figures of DeFormer and Decoupled Transformer on SQuAD 1.1, and what goes beyond them."""
    untrained = [
        student(f"squad-k{k}-untrained", k, train=False, teacher=None) for k in range(1, 7)
    ]
    sweep = [student(f"squad-k{k}", k) for k in (4, 1, 2, 5, 6)]
    beyond = [
        student("squad-k4-step", 4, start=K3, teacher=K3),
        student("squad-k4-extra", 4, extra=1),
        student("squad-k3-pretrained", 3, start="base"),
        student("squad-k3-crossadd", 3, cross_embed="add"),
        student("squad-k3-offset", 3, positions="offset"),
        student("squad-k3-shuffled", 3, augment={"shuffled": 0.5}),
        student("squad-k3-cropped", 3, augment={"cropped": 0.5}),
        student("squad-any", 5, set={"splits": [1, 2, 3, 4, 5]}),
    ]
    first, others = ablation((0,)), ablation((1, 2))
    return [joint_run(), *first, *untrained, *sweep, *beyond, *others]


def long() -> list[Run]:
    """Six epochs: what patience brings at k=3, k=4, and with the projection."""
    more = {"optimiser.epochs": 6.0}
    return [
        joint_run(),
        student("squad-k3-p96-long", 3, projection=96, bits=(None, 8, 4), set=more),
        student("squad-k3-long", 3, set=more),
        student("squad-k4-long", 4, set=more),
    ]


def compress() -> list[Run]:
    """The learned projection at k=3: widths, phases, losses, bits."""

    def run(name: str, width: int, **settings: Any) -> Run:
        return student(
            f"squad-k3-{name}", 3, start=K3, projection=width, bits=(None, 8, 4), set=settings
        )

    widths = [run(f"p{width}", width) for width in (96, 192, 128, 48, 24)]
    others = [
        run("p96-one", 96, **{"squeeze.phases": 1}),
        run("p96-attention", 96, **{"squeeze.loss": "attention"}),
        run("p96-margin", 96, **{"squeeze.loss": "margin"}),
    ]
    return [joint_run(), *ablation((0,)), *widths, *others]


def task_runs(dataset: str, splits: Sequence[int], **settings: Any) -> list[Run]:
    """A joint model of a dataset, and each split distilled from it."""
    changes = {**BUDGET, "optimiser.epochs": 4.0, **settings.pop("set", {})}
    joint = Run(name=f"{dataset}-joint", dataset=dataset, set=changes, **settings)
    distilled = [
        replace(
            joint,
            name=f"{dataset}-k{k}",
            split=k,
            start=joint.name,
            teacher=joint.name,
            recipe="deformer",
            set={**ABLATION["kdlrs"], **changes},
        )
        for k in splits
    ]
    return [joint, *distilled]


def pairs() -> list[Run]:
    """Sentence pairs: joint and every split."""
    every = range(1, 7)
    small = {"optimiser.batch": 64, "optimiser.lr": 2e-4, "optimiser.epochs": 12.0}
    middle = {"optimiser.batch": 64, "optimiser.lr": 2e-4}
    return [
        *task_runs("mnli", every, set=middle),
        *task_runs("twitter", every, set={**middle, "optimiser.epochs": 3.0}),
        # Too few pairs to learn a split from: the teacher labels sentences paired at random.
        *(
            replace(run, augment={"shuffled": 1.0}) if run.split else run
            for run in task_runs("mrpc", every, set=small)
        ),
    ]


def reading() -> list[Run]:
    """Longer texts: joint and k=3."""
    race = {"optimiser.batch": 24, "optimiser.lr": 1e-4, "optimiser.epochs": 2.0}
    boolq = {"optimiser.batch": 32, "optimiser.lr": 1e-4, "optimiser.epochs": 6.0}
    return [
        *task_runs("race", [3], set=race, limit=20_000),
        *task_runs("boolq", [3], set=boolq),
    ]


def one_way() -> list[Run]:
    """One-way cross layers beside the exact split, equal steps: spans and the ranking of paragraphs."""
    spans = [student(f"squad-k{k}-oneway", k, one_way="auto") for k in (3, 2, 4)]
    exact = [student(K3, 3), student("squad-k2", 2), student("squad-k4", 4)]
    steps = {"optimiser.epochs": 1.0, "optimiser.batch": 48}
    ranking = task_runs("squad-rank", [3], set=steps, limit=16_000)
    frozen = [
        replace(run, name=f"{run.name}-oneway", one_way="auto") for run in ranking if run.split
    ]
    return [joint_run(), *spans[:1], *ranking, *frozen, *spans[1:], *exact]


def others() -> list[Run]:
    """Tasks that the figures do not need: no-answer spans, ranking, more sentence pairs."""
    small = {"optimiser.batch": 32, "optimiser.lr": 1e-4}
    return [
        *task_runs("qqp", range(1, 7), set={**small, "optimiser.epochs": 6.0}),
        *task_runs("squad2", [3], set={"optimiser.epochs": 3.0}),
        *task_runs("wikiqa", [3], set={**small, "optimiser.epochs": 4.0}),
        *(run for name in ("snli", "scitail", "paws") for run in task_runs(name, [3], set=small)),
    ]


PRESETS = {
    "squad": squad,
    "long": long,
    "compress": compress,
    "pairs": pairs,
    "reading": reading,
    "one-way": one_way,
    "others": others,
}
