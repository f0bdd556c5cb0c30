"""The runs of `shrink_suite.py`: every method alone, on the split model, and together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from train_presets import BUDGET, Run

SEEDS = (0, 1, 2)
LENGTHS: dict[str, tuple[float, float, dict[str, Any]]] = {
    "squad": (3.0, 2.0, BUDGET),
    "mnli": (4.0, 2.0, BUDGET),
    "mrpc": (8.0, 6.0, {**BUDGET, "optimiser.batch": 32, "optimiser.lr": 1e-4}),
}
"""Per dataset: epochs of the models that are made smaller, epochs of all that are made of them, the rest."""

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


def both(*methods: str, losses: dict[str, Any] | None = None) -> Variant:
    """The same methods on both."""
    return Variant(joint=methods, split=methods, losses=losses)


VARIANTS: dict[str, Variant] = {
    # The same budget and no method: what more training alone does.
    "longer": both("untie", losses=GUIDED),
    "share": Variant(joint=("share:groups=2",), split=("share:groups=1",), losses=GUIDED),
    "share-attention": both("share:mode=attention,groups=1", losses=GUIDED),
    "share-ffn": both("share:mode=ffn,groups=1", losses=GUIDED),
    "factorise": both("factorise-embedding:rank=128", losses=GUIDED),
    "bands": both("band-embedding", losses=LABELS),
    "vocabulary": both("reduce-vocabulary:size=8000", losses=LABELS),
    "heads": both("prune-heads:share=0.4", losses=GUIDED),
    "heads-random": both("prune-heads:share=0.4,by=random", losses=GUIDED),
    "neurons": both("prune-neurons:share=0.5", losses=GUIDED),
    "weights": both("prune-weights:sparsity=0.5", losses=GUIDED),
    "fixed": both("fix-heads:learned=1", losses=GUIDED),
    "fixed-all": both("fix-heads:learned=0", losses=GUIDED),
    "low-rank": both("low-rank:keep=0.5,whiten=true", losses=GUIDED),
    "int8": both("quantise"),
    "int8-static": both("quantise:inputs=static"),
    "int8-weights": both("quantise:inputs=float"),
    "int4-weights": both("quantise:bits=4,inputs=float,group=64"),
    "int8-aware": both("quantise", losses=GUIDED),
    "int4-aware": both("quantise:bits=4,inputs=float,group=64", losses=GUIDED),
    # Seed 001's table 2: half the layers by Theseus, by distillation, by fine-tuning the first ones.
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
    epochs, _, rest = LENGTHS[dataset]
    settings = {**rest, "optimiser.epochs": epochs}
    joint = Run(name=f"{dataset}-joint-s{seed}", dataset=dataset, set=settings, seed=seed)
    split = replace(
        joint,
        name=f"{dataset}-k3-s{seed}",
        split=3,
        start=joint.name,
        teacher=joint.name,
        recipe="deformer",
        set={**settings, **GUIDED},
    )
    return [joint, split]


def made(dataset: str, kind: str, name: str, variant: Variant, seed: int) -> Run | None:
    """A variant of the joint model or of the split one; None where it has none."""
    methods = variant.joint if kind == "joint" else variant.split
    if methods is None:
        return None
    _, epochs, rest = LENGTHS[dataset]
    guided = variant.losses is not None and variant.losses.get("weights.kd")
    return Run(
        name=f"{dataset}-{kind}-{name}-s{seed}",
        dataset=dataset,
        start=f"{dataset}-{kind}-s{seed}",
        split=0 if kind == "joint" else 3,
        teacher=f"{dataset}-joint-s{seed}" if guided else None,
        recipe="deformer" if guided else "plain",
        set={**rest, "optimiser.epochs": epochs, **(variant.losses or {})},
        seed=seed,
        shrink=methods,
        train=variant.losses is not None,
    )


def alone(datasets: Sequence[str], seeds: Sequence[int] = SEEDS) -> list[Run]:
    """Every method on both models of every dataset, a whole seed before the next."""
    runs: list[Run] = []
    for seed in seeds:
        for dataset in datasets:
            runs += starts(dataset, seed)
            for kind in ("joint", "k3"):
                found = [made(dataset, kind, n, variant, seed) for n, variant in VARIANTS.items()]
                runs += [run for run in found if run is not None]
            runs += dropped(dataset, seed)
    return runs


def dropped(dataset: str, seed: int) -> list[Run]:
    """Fine-tuned with LayerDrop, then every other layer taken out, without more training."""
    epochs, _, rest = LENGTHS[dataset]
    whole = Run(
        name=f"{dataset}-dropped-s{seed}",
        dataset=dataset,
        set={**rest, "optimiser.epochs": epochs},
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


def pruning() -> list[Run]:
    """Heads and neurons removed by importance, by weight and by chance, and nothing trained."""
    runs: list[Run] = []
    for seed in SEEDS:
        runs += starts("squad", seed)
        for unit in ("heads", "neurons"):
            for by in ("importance", "weight", "random"):
                for share in (0.2, 0.4, 0.6, 0.8):
                    text = f"prune-{unit}:share={share},by={by},seed={seed}"
                    name = f"cut-{unit}-{by}-{round(100 * share)}"
                    found = [made("squad", k, name, both(text), seed) for k in ("joint", "k3")]
                    runs += [run for run in found if run is not None]
    return runs


def together() -> list[Run]:
    """Split, projection, int8 codes of the states and smaller layers, on SQuAD."""
    runs: list[Run] = []
    _, epochs, rest = LENGTHS["squad"]
    for seed in SEEDS:
        runs += starts("squad", seed)
        narrow = Run(
            name=f"squad-k3-p96-s{seed}",
            dataset="squad",
            start=f"squad-k3-s{seed}",
            split=3,
            projection=96,
            teacher=f"squad-joint-s{seed}",
            recipe="deformer",
            set={**rest, "optimiser.epochs": epochs, **GUIDED},
            seed=seed,
            bits=(None, 8),
        )
        runs.append(narrow)
        runs += [
            replace(
                narrow,
                name=f"squad-k3-p96-{name}-s{seed}",
                start=narrow.name,
                projection=None,
                shrink=methods,
                save=not seed,
            )
            for name, methods in TOGETHER.items()
        ]
    return runs


PRESETS = {
    "squad": lambda: alone(["squad"]),
    "pairs": lambda: alone(["mnli", "mrpc"]),
    "pruning": pruning,
    "together": together,
}
