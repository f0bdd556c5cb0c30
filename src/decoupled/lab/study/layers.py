"""What the layers of a joint model do with two texts, and how far a split model departs from it.

Three curves over the layers (DeFormer, figures 2 and 5): how much the states of a passage vary with the query
beside it; the cosine distance between the states of the joint and of a split model, by side; and the share of
attention that crosses the boundary between the texts.

Shapes: B pairs in G groups of N, P passage tokens, T tokens of both texts, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.errors import InputError
from decoupled.lab.bench.report import commit
from decoupled.measure.pairs import Pair
from decoupled.measure.table import ResultTable
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.progress import Progress
from decoupled.train.data.batches import Batch
from decoupled.train.data.examples import Examples
from decoupled.train.reshape import teacher_of
from decoupled.train.suggest import (
    CrossingSums,
    Curve,
    crossed,
    judging,
    layer_states,
    study_batches,
    suggest,
)


@dataclass(frozen=True, kw_only=True)
class Distance:
    """Mean cosine distance of a model's states to the joint model's, from the embedding to the last layer."""

    split: int
    query: Curve
    passage: Curve


@dataclass(frozen=True, kw_only=True)
class LayerStudy:
    """The curves of one model on some data; states have a value for the embedding and for each layer."""

    layers: int
    pairs: int
    passages: int
    """Passages that were read beside several queries."""
    variance: Curve
    """Mean cosine distance of a passage's tokens to their centroid over the queries."""
    variance_spread: Curve
    """Variance of that distance over the queries."""
    crossing_query: Curve
    """Attention of query tokens that goes to the passage; one value per layer."""
    crossing_passage: Curve
    """Attention of passage tokens that goes to the query; one value per layer."""
    distances: dict[str, Distance] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, rounded."""
        return {name: _rounded(value) for name, value in asdict(self).items()}


def layers(
    model: Model,
    *,
    data: Iterable[Pair],
    task: str = "pairs",
    others: Mapping[str, Model] | None = None,
    passages: int = 100,
    queries: int = 5,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """How each layer uses the other text, how far splits depart from the joint model, and where to split.

    `passages` are each read beside `queries` queries; `others` are models to compare, by name.
    """
    ready = judging(model, data, task, None)
    curves = layer_curves(
        model,
        ready.examples(model),
        others=others,
        passages=passages,
        queries=queries,
        progress=progress,
    )
    suggestion = suggest(curves.crossing_query, curves.crossing_passage)
    facts = {"kind": "layers", "commit": commit(), "task": ready.task.name, **curves.to_json()}
    return {**facts, "suggestion": suggestion.to_json()}


def layer_curves(
    model: Model,
    examples: Examples,
    *,
    others: Mapping[str, Model] | None = None,
    passages: int = 100,
    queries: int = 5,
    progress: Progress | None = None,
) -> LayerStudy:
    """The curves of a model's joint form; distances for each of its splits, and for `others` by name.

    `passages` are each read beside `queries` queries: their own first, then queries of other pairs.
    """
    joint = teacher_of(model)
    depth = len(joint.spec.layers)
    for name, other in (others or {}).items():
        if len(other.spec.layers) < depth:
            raise InputError(
                f"{name} has {len(other.spec.layers)} layers and the joint model {depth}; "
                "compare models of the same depth"
            )
    splits = {f"k={k}, as split": Model.split(joint, at=k) for k in range(1, depth)}
    compared = {**splits, **(others or {})}
    chosen = crossed(examples, passages=passages, queries=queries)
    sums = _Sums(depth, queries, compared)
    # Passages stand at the same positions whatever the length of their query, else the variance over queries
    # would be that of the position table. Positions that enter in the attention are relative.
    moving = joint.spec.encoder.embedding.positions
    still = Model.split(joint, at=0, positions="offset") if moving else joint
    with torch.inference_mode():
        for batch in study_batches(joint, chosen, progress):
            sums.add(joint.net, batch)
            sums.add_variance(still.net, batch)
    return sums.result(pairs=len(chosen), passages=chosen.groups)


class _Sums:
    """Running sums over the tokens of all batches."""

    def __init__(self, layers: int, queries: int, compared: Mapping[str, Model]) -> None:
        self.layers, self.queries, self.compared = layers, queries, compared
        self.variance: list[list[float]] = []
        self.crossing = CrossingSums(layers)
        self.distance = {name: np.zeros((2, layers + 1)) for name in compared}

    def add(self, net: PairEncoder, batch: Batch) -> None:
        joint = layer_states(net, batch)
        query = batch.query_ids.shape[1]
        sides = (slice(0, query), slice(query, None))
        real = batch.real
        self.crossing.add(net, batch, joint)
        for name, model in self.compared.items():
            # Layers that a model has beyond the joint one's have nothing to be compared with.
            theirs = layer_states(model.net, batch).states[: self.layers + 1]
            for number, (ours, other) in enumerate(zip(joint.states, theirs, strict=True)):
                apart_BT = _apart(ours, other)
                for side, rows in enumerate(sides):
                    total = apart_BT[:, rows][real[side]].sum()
                    self.distance[name][side, number] += float(total)

    def add_variance(self, net: PairEncoder, batch: Batch) -> None:
        """Per query: mean distance of its passage's tokens to their centroid over the group, by layer."""
        query, real_BP = batch.query_ids.shape[1], batch.real[1]
        groups = len(real_BP) // self.queries
        real_GP = real_BP.view(groups, self.queries, -1)[:, 0]
        means = []
        for x_BTD in layer_states(net, batch).states:
            x_BPD = x_BTD[:, query:]
            x_GNPD = F.normalize(x_BPD, dim=-1).view(groups, self.queries, *x_BPD.shape[1:])
            centre = x_GNPD.mean(1, keepdim=True)
            apart_GNP = _apart(x_GNPD, centre)
            mean_GN = (apart_GNP * real_GP[:, None]).sum(-1) / real_GP.sum(-1)[:, None]
            means.append(mean_GN.flatten().tolist())
        self.variance += [list(row) for row in zip(*means, strict=True)]

    def result(self, *, pairs: int, passages: int) -> LayerStudy:
        variance = np.asarray(self.variance)
        crossing_query, crossing_passage = self.crossing.curves()
        tokens = self.crossing.tokens[:, None]
        distances = {}
        for name, sums in self.distance.items():
            query, passage = map(tuple, (sums / tokens).tolist())
            split = self.compared[name].spec.split
            distances[name] = Distance(split=split, query=query, passage=passage)
        return LayerStudy(
            layers=self.layers,
            pairs=pairs,
            passages=passages,
            variance=tuple(variance.mean(0).tolist()),
            variance_spread=tuple(variance.var(0).tolist()),
            crossing_query=crossing_query,
            crossing_passage=crossing_passage,
            distances=distances,
        )


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """Cosine distance along the last axis, never below 0 by rounding."""
    return (1 - F.cosine_similarity(a, b, -1)).clamp(min=0)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [round(each, 6) for each in value] if isinstance(value, tuple) else value


def layer_table(study: Mapping[str, Any]) -> ResultTable:
    """The curves of a study with its suggestion, for people."""
    columns = ("layer", "variance", "query → passage", "passage → query", "left above")
    crossing = (study["crossing_query"], study["crossing_passage"])
    rows = []
    for layer, left in enumerate(study["suggestion"]["remaining"]):
        shares = [f"{curve[layer - 1]:.3f}" if layer else "" for curve in crossing]
        rows.append((layer, study["variance"][layer], *shares, f"{left:.0%}"))
    return ResultTable(columns=columns, rows=rows)
