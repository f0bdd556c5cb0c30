"""What the layers of a joint model do with two texts, and how far a split model departs from it.

Three curves over the layers (DeFormer, figures 2 and 5): how much the states of a passage vary with the query
beside it; the cosine distance between the states of the joint and of a split model, by side; and the share of
attention that crosses the boundary between the texts.

Shapes: B pairs, Q query tokens, P passage tokens, T = Q + P, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.errors import InputError
from decoupled.measure.table import ResultTable
from decoupled.model.model import Model
from decoupled.model.nn.block import Context
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.progress import Progress, counter
from decoupled.model.spec import Side
from decoupled.train.data.batches import Batch, Batches, repeated
from decoupled.train.data.examples import Examples
from decoupled.train.reshape import teacher_of

Curve = tuple[float, ...]
TOKENS = 4096
"""Padded tokens of a batch: every layer's states and scores are held at once."""


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
    joint.net.eval()
    batches = Batches(chosen, joint.device, pad=joint.spec.text.pad)
    step = counter(progress, len(chosen))
    with torch.inference_mode():
        for batch in batches.walk(batches.ordered(TOKENS * queries)):
            sums.add(joint.net, batch, compared)
            sums.add_variance(still.net, batch)
            step(len(batch.rows))
    return sums.result(pairs=len(chosen), passages=chosen.groups)


def crossed(examples: Examples, *, passages: int, queries: int, seed: int = 0) -> Examples:
    """Groups of one passage with `queries` queries: its own first, then some of other pairs."""
    draw = np.random.default_rng(seed)
    order = draw.permutation(np.unique(examples.passage_of))[:passages]
    every = np.unique(examples.query_of)
    query_of, passage_of = [], []
    for passage in order.tolist():
        own = np.unique(examples.query_of[examples.passage_of == passage])
        chosen = draw.permutation(own)[:queries].tolist()
        rest = (q for q in draw.permutation(every).tolist() if q not in own)
        chosen += islice(rest, queries - len(chosen))
        if len(chosen) < queries:
            raise InputError(
                f"the data has {len(every)} different queries; give at least "
                f"{queries}, so that passages can be read beside several"
            )
        query_of += chosen
        passage_of += [passage] * queries
    zeros = np.zeros(len(query_of), np.int32)
    return replace(
        examples,
        query_of=np.asarray(query_of, np.int32),
        passage_of=np.asarray(passage_of, np.int32),
        label=np.stack([zeros, zeros], 1),
        score=zeros.astype(np.float32),
        question=zeros,
        part=zeros,
        per_group=queries,
        share="none",
        truth=None,
    )


# One batch ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Passed:
    """The states of every layer of one model for a batch, the embedding first, `[B,T,D]` each."""

    states: list[Tensor]
    contexts: list[Context]
    """Of the layers above the split."""


def layer_states(net: PairEncoder, batch: Batch) -> Passed:
    """Run a model at its own split and keep what every layer gives, both sides in one sequence."""
    query_real, passage_real = batch.real
    query, query_end = _alone(net, "query", batch)
    passage, passage_end = _alone(net, "passage", batch)
    kept = [torch.cat(pair, 1) for pair in zip(query, passage, strict=True)]
    x_BTD, frame = net.join(query_end, query_real, passage_end, passage_real, padded=True)
    contexts: list[Context] = []

    def observe(context: Context, _: Tensor, y_BTD: Tensor) -> None:
        contexts.append(context)
        kept.append(y_BTD)

    net.stack(x_BTD, frame, first=net.spec.split, observe=observe)
    return Passed(states=kept, contexts=contexts)


def _alone(net: PairEncoder, side: Side, batch: Batch) -> tuple[list[Tensor], Tensor]:
    """States of one side up to the split, and what the cross component is given of it."""
    ids, real, repeat = (getattr(batch, f"{side}_{name}") for name in ("ids", "real", "repeat"))
    ids, real = repeated(ids, repeat), repeated(real, repeat)
    inputs: list[Tensor] = []
    end = net.hidden(
        side,
        ids,
        real,
        query_length=batch.real[0].sum(1, keepdim=True),
        padded=True,
        observe=lambda _, x_BTD, __: inputs.append(x_BTD),
    )
    return [*inputs, end], net.restore(side, net.compress(side, end))


def crossing(net: PairEncoder, passed: Passed, number: int, query: int) -> tuple[Tensor, Tensor]:
    """Share of attention that crosses the boundary in layer `number`, by row: `[B,Q]` and `[B,P]`."""
    context = next(c for c in passed.contexts if c.number == number)
    block = net.stack.attending(context)
    share_BTT = block.weights(passed.states[number], context).mean(1)
    return share_BTT[:, :query, query:].sum(-1), share_BTT[:, query:, :query].sum(-1)


class _Sums:
    """Running sums over the tokens of all batches."""

    def __init__(self, layers: int, queries: int, compared: Mapping[str, Model]) -> None:
        self.layers, self.queries = layers, queries
        self.variance: list[list[float]] = []
        self.crossing = np.zeros((2, layers))
        self.tokens = np.zeros(2)
        self.distance = {name: np.zeros((2, layers + 1)) for name in compared}
        self.splits = {name: model.spec.split for name, model in compared.items()}

    def add(self, net: PairEncoder, batch: Batch, compared: Mapping[str, Model]) -> None:
        joint = layer_states(net, batch)
        query = batch.query_ids.shape[1]
        sides = (slice(0, query), slice(query, None))
        real = batch.real
        self.tokens += [int(mask.sum()) for mask in real]
        for number in range(self.layers):
            for side, share in enumerate(crossing(net, joint, number, query)):
                self.crossing[side, number] += float(share[real[side]].sum())
        for name, model in compared.items():
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
        crossing_query, crossing_passage = self.crossing / self.tokens[:, None]
        distances = {}
        for name, sums in self.distance.items():
            query, passage = map(tuple, (sums / self.tokens[:, None]).tolist())
            distances[name] = Distance(split=self.splits[name], query=query, passage=passage)
        return LayerStudy(
            layers=self.layers,
            pairs=pairs,
            passages=passages,
            variance=tuple(variance.mean(0).tolist()),
            variance_spread=tuple(variance.var(0).tolist()),
            crossing_query=tuple(crossing_query.tolist()),
            crossing_passage=tuple(crossing_passage.tolist()),
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
