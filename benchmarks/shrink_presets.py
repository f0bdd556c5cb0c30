"""Runs on smaller models: what `train_suite.py --preset shrink` executes.

Every method alone on the joint model and on the one split at 3, on SQuAD, MNLI and MRPC, three seeds, one
budget; importance against chance, untrained; split, projection, int8 and smaller layers together. Feed
OUT/results.jsonl to `train_collect.py --kind shrink --specs`, and what it writes to `shrink_speed.py`, which
measures the same models on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from train_presets import BUDGET, Run

SEEDS = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a dataset's runs may spend: the models that are made smaller, and all that are made of them."""

    start: float
    after: float
    limit: int | None = None
    """Questions that a smaller model is trained on; None is all."""
    set: dict[str, Any]

    def short(self, losses: dict[str, Any] | None) -> dict[str, Any]:
        """The recipe of a smaller model: over before compiling would pay."""
        after = {"optimiser.epochs": self.after, "watch.compile": False}
        return {**self.set, **after, **(losses or {})}


SMALL = {**BUDGET, "optimiser.batch": 64, "optimiser.lr": 2e-4, "watch.compile": False}
BUDGETS = {
    "squad": Budget(start=2.0, after=1.0, limit=22_000, set=BUDGET),
    "mnli": Budget(start=3.0, after=1.0, set=SMALL),
    "mrpc": Budget(start=10.0, after=5.0, set=SMALL),
}

GUIDED = {"weights.task": 0.2, "weights.kd": 1.0, "weights.lrs": 0.5}
TARGETS = {"weights.task": 0.2, "weights.kd": 1.0, "weights.lrs": 0.0}
LABELS = {"weights.task": 1.0, "weights.kd": 0.0, "weights.lrs": 0.0}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A method as it is applied to the joint model and to the one split at 3."""

    joint: tuple[str, ...] | None = None
    split: tuple[str, ...] | None = None
    losses: dict[str, Any] | None = None
    """What it is trained by; None leaves it as the method made it."""

    def methods(self, kind: str) -> tuple[str, ...] | None:
        """Those of the `joint` or the `split` model; None where it has none."""
        return self.joint if kind == "joint" else self.split


def both(*methods: str, losses: dict[str, Any] | None = None) -> Variant:
    """The same methods on both."""
    return Variant(joint=methods, split=methods, losses=losses)


def whole(*methods: str, losses: dict[str, Any] | None = None) -> Variant:
    """On the joint model alone."""
    return Variant(joint=methods, losses=losses)


VARIANTS: dict[str, Variant] = {
    # The same budget and no method: what more training alone does.
    "longer": both("untie", losses=GUIDED),
    "share": Variant(joint=("share:groups=2",), split=("share:groups=1",), losses=GUIDED),
    "share-attention": whole("share:mode=attention,groups=1", losses=GUIDED),
    "share-ffn": whole("share:mode=ffn,groups=1", losses=GUIDED),
    "factorise": both("factorise-embedding:rank=128", losses=GUIDED),
    "bands": both("band-embedding", losses=LABELS),
    "vocabulary": both("reduce-vocabulary:size=8000", losses=LABELS),
    "heads": both("prune-heads:share=0.4", losses=GUIDED),
    "heads-random": whole("prune-heads:share=0.4,by=random", losses=GUIDED),
    "neurons": both("prune-neurons:share=0.5", losses=GUIDED),
    "weights": both("prune-weights:sparsity=0.5", losses=GUIDED),
    "fixed": both("fix-heads:learned=1", losses=GUIDED),
    "fixed-all": whole("fix-heads:learned=0", losses=GUIDED),
    "low-rank": both("low-rank:keep=0.5,whiten=true", losses=GUIDED),
    "int8": both("quantise"),
    "int8-static": both("quantise:inputs=static"),
    "int8-weights": whole("quantise:inputs=float"),
    "int4-weights": both("quantise:bits=4,inputs=float,group=64"),
    "int8-aware": both("quantise", losses=GUIDED),
    "int4-aware": whole("quantise:bits=4,inputs=float,group=64", losses=GUIDED),
    # BERT-of-Theseus, table 2: half the layers by Theseus, by distillation, by fine-tuning the first ones.
    "theseus": Variant(joint=("theseus:layers=3",), split=("theseus:layers=2",), losses=LABELS),
    "theseus-constant": Variant(joint=("theseus:layers=3,schedule=constant",), losses=LABELS),
    "kd": Variant(
        joint=("student:layers=3,start=first",),
        split=("student:layers=2,start=first",),
        losses=TARGETS,
    ),
    "kd-hidden": Variant(
        joint=("student:layers=3",),
        split=("student:layers=2",),
        losses={**GUIDED, "match": "uniform"},
    ),
    "first": Variant(
        joint=("student:layers=3,start=first",),
        split=("student:layers=2,start=first",),
        losses=LABELS,
    ),
    "narrow": Variant(joint=("student:width=192",), losses={**GUIDED, "match": "uniform"}),
    # Every other layer goes and nothing is trained; `dropped` was trained with LayerDrop before.
    "every-other": Variant(joint=("keep-layers:every=2",)),
    "searched": Variant(joint=("keep-layers:count=3",), split=("keep-layers:count=4",)),
    "learned": Variant(joint=("keep-layers:count=3,by=learned,steps=200",)),
}

ORDER: dict[str, Variant] = {
    "theseus": VARIANTS["theseus"],
    "theseus-early": whole("theseus:layers=3,until=0.4", losses=LABELS),
    "theseus-whole": whole("theseus:layers=3,frozen=false", losses=LABELS),
    "kd": VARIANTS["kd"],
    "first": VARIANTS["first"],
    # As in the paper: layers that were never fine-tuned before.
    "kd-pretrained": VARIANTS["kd"],
    "first-pretrained": VARIANTS["first"],
}
"""BERT-of-Theseus, table 2, with the budget of the joint model."""

TOGETHER: dict[str, tuple[str, ...]] = {
    "int8": ("quantise",),
    "slim": ("factorise-embedding:rank=128", "prune-neurons:share=0.25,above=0.5", "quantise"),
    "slimmer": (
        "factorise-embedding:rank=128",
        "prune-heads:share=0.3",
        "prune-neurons:share=0.5",
        "quantise",
    ),
    "thin": ("factorise-embedding:rank=128", "low-rank:keep=0.6,whiten=true", "quantise"),
}
"""On the split model with a projection of the states to 96."""


def starts(dataset: str, seed: int) -> list[Run]:
    """The joint model and the one split at 3 that everything else is made of."""
    budget = BUDGETS[dataset]
    settings = {**budget.set, "optimiser.epochs": budget.start}
    joint = Run(name=f"{dataset}-joint-s{seed}", dataset=dataset, set=settings, seed=seed)
    split = replace(
        joint,
        name=f"{dataset}-split-s{seed}",
        split=3,
        start=joint.name,
        teacher=joint.name,
        recipe="deformer",
        set={**settings, **GUIDED},
    )
    return [joint, split]


def made(dataset: str, kind: str, name: str, variant: Variant, seed: int) -> Run:
    """A variant of the joint model or of the split one."""
    methods = variant.methods(kind)
    assert methods is not None
    budget = BUDGETS[dataset]
    guided = variant.losses is not None and variant.losses.get("weights.kd")
    return Run(
        name=f"{dataset}-{kind}-{name}-s{seed}",
        dataset=dataset,
        start=f"{dataset}-{kind}-s{seed}",
        split=0 if kind == "joint" else 3,
        teacher=f"{dataset}-joint-s{seed}" if guided else None,
        recipe="deformer" if guided else "plain",
        set=budget.short(variant.losses),
        limit=budget.limit,
        seed=seed,
        shrink=methods,
        train=variant.losses is not None,
    )


def alone(dataset: str, seed: int) -> list[Run]:
    """Every method on both models of a dataset."""
    made_of = [
        made(dataset, kind, name, variant, seed)
        for name, variant in VARIANTS.items()
        for kind in ("joint", "split")
        if variant.methods(kind) is not None
    ]
    return [*starts(dataset, seed), *dropped(dataset, seed), *made_of]


def dropped(dataset: str, seed: int) -> list[Run]:
    """Fine-tuned with LayerDrop, then every other layer taken out, without more training."""
    budget = BUDGETS[dataset]
    whole = Run(
        name=f"{dataset}-dropped-s{seed}",
        dataset=dataset,
        set={**budget.set, "optimiser.epochs": budget.start},
        seed=seed,
        shrink=("layerdrop:rate=0.2",),
    )
    half = replace(
        whole,
        name=f"{dataset}-dropped-every-other-s{seed}",
        start=whole.name,
        shrink=("keep-layers:every=2",),
        train=False,
    )
    return [whole, half]


def pruning(seed: int) -> list[Run]:
    """Heads and neurons of the joint model removed by importance and by chance, and nothing trained."""
    return [
        made(
            "squad",
            "joint",
            f"cut-{unit}-{by}-{round(100 * share)}",
            whole(f"prune-{unit}:share={share},by={by},seed={seed}"),
            seed,
        )
        for unit in ("heads", "neurons")
        for by in ("importance", "random")
        for share in (0.2, 0.4, 0.6)
    ]


def ordering(dataset: str, seed: int) -> list[Run]:
    """Half the layers by Theseus, by distillation and by fine-tuning the first ones, as long as the start."""
    budget = BUDGETS[dataset]
    runs = []
    for name, variant in ORDER.items():
        short = made(dataset, "joint", name, variant, seed)
        runs.append(
            replace(
                short,
                name=f"{dataset}-joint-{name}-long-s{seed}",
                start="base" if name.endswith("-pretrained") else short.start,
                set={**budget.set, "optimiser.epochs": budget.start, **(variant.losses or {})},
                limit=None,
            )
        )
    return runs


def together(seed: int) -> list[Run]:
    """Split, projection, int8 codes of the states and smaller layers, on SQuAD."""
    budget = BUDGETS["squad"]
    narrow = Run(
        name=f"squad-split-p96-s{seed}",
        dataset="squad",
        start=f"squad-split-s{seed}",
        split=3,
        projection=96,
        teacher=f"squad-joint-s{seed}",
        recipe="deformer",
        set=budget.short(GUIDED),
        limit=budget.limit,
        seed=seed,
        bits=(None, 8),
    )
    smaller = [
        replace(
            narrow,
            name=f"squad-split-p96-{name}-s{seed}",
            start=narrow.name,
            projection=None,
            shrink=methods,
        )
        for name, methods in TOGETHER.items()
    ]
    return [narrow, *smaller]


def shrink() -> list[Run]:
    """Everything, a whole seed before the next, the datasets in turn; the long runs last."""
    runs: list[Run] = []
    for seed in SEEDS:
        lists = [alone(dataset, seed) for dataset in ("squad", "mnli", "mrpc")]
        lists[0] += [*together(seed), *pruning(seed)]
        runs += [run for row in zip_longest(*lists) for run in row if run is not None]
    for seed in SEEDS:
        runs += [run for dataset in BUDGETS for run in ordering(dataset, seed)]
    return runs
