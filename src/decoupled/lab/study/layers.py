"""What the layers of a joint model do with two texts, and how far a split model departs from it.

Three curves over the layers (DeFormer, figures 2 and 5): how much the states of a passage vary with the query
beside it; the cosine distance between the states of the joint and of a split model, by side; and the share of
attention that crosses the boundary between the texts.

Shapes: B pairs in G groups of N, P passage tokens, T tokens of both texts, D width.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
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
from decoupled.model.nn.block import Context
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.progress import Progress, counter
from decoupled.model.spec import Side
from decoupled.train.data.batches import Batch, Batches, repeated
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import Prepared, prepare
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
    """How each layer uses the other text, and how far splits depart from the joint model.

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
    return {"kind": "layers", "commit": commit(), "task": ready.task.name, **curves.to_json()}


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
    batches = Batches(chosen, joint.device, pad=joint.spec.text.pad)
    step = counter(progress, len(chosen))
    with torch.inference_mode():
        for batch in batches.walk(batches.ordered(TOKENS * queries)):
            sums.add(joint.net, batch)
            sums.add_variance(still.net, batch)
            step(len(batch.rows))
    return sums.result(pairs=len(chosen), passages=chosen.groups)


def judging(model: Model, data: Iterable[Pair], task: str, limit: int | None) -> Prepared:
    """The pairs that judge a model, which must have a head."""
    if not model.spec.heads:
        raise InputError(
            "the model has no head, so there is nothing to judge; fine-tune it first: "
            "decoupled distill MODEL -o OUT --data DATA --recipe plain"
        )
    return prepare(data, model, task, train=False, limit=limit)


def crossed(examples: Examples, *, passages: int, queries: int) -> Examples:
    """Groups of one passage with `queries` queries: its own first, then some of other pairs."""
    draw = np.random.default_rng(0)
    order = draw.permutation(np.unique(examples.passage_of))[:passages]
    every = np.unique(examples.query_of)
    if len(every) < queries:
        few = f"the data has {len(every)} different queries; give at least {queries}, so that passages"
        raise InputError(f"{few} can be read beside several")
    rows = []
    for passage in order.tolist():
        own = np.unique(examples.query_of[examples.passage_of == passage])
        chosen = draw.permutation(own)[:queries].tolist()
        rest = (q for q in draw.permutation(every).tolist() if q not in own)
        chosen += islice(rest, queries - len(chosen))
        rows += [(query, passage) for query in chosen]
    query_of, passage_of = np.asarray(rows, np.int32).T
    # Labels and scores are those of the first example: nothing here reads them.
    alone = replace(examples, per_group=1, share="none", truth=None)
    bare = alone.select(np.zeros(len(rows), np.int64))
    return replace(bare, query_of=query_of, passage_of=passage_of, per_group=queries)


# One batch ----------------------------------------------------------------------------------------


def layer_states(net: PairEncoder, batch: Batch) -> tuple[list[Tensor], list[Context]]:
    """States `[B,T,D]` of every layer at the model's own split, the embedding first, and cross contexts."""
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
    return kept, contexts


def _alone(net: PairEncoder, side: Side, batch: Batch) -> tuple[list[Tensor], Tensor]:
    """States of one side up to the split, and what the cross component is given of it."""
    ids, repeat = (getattr(batch, f"{side}_{name}") for name in ("ids", "repeat"))
    inputs: list[Tensor] = []
    end = net.hidden(
        side,
        repeated(ids, repeat),
        batch.real[0 if side == "query" else 1],
        query_length=batch.real[0].sum(1, keepdim=True),
        padded=True,
        observe=lambda _, x_BTD, __: inputs.append(x_BTD),
    )
    return [*inputs, end], net.restore(side, net.compress(side, end))


def crossing(
    net: PairEncoder, x_BTD: Tensor, context: Context, query: int
) -> tuple[Tensor, Tensor]:
    """Share of a layer's attention that crosses the boundary, by row: `[B,Q]` and `[B,P]`."""
    share_BTT = net.stack.attending(context).weights(x_BTD, context).mean(1)
    return share_BTT[:, :query, query:].sum(-1), share_BTT[:, query:, :query].sum(-1)


class _Sums:
    """Running sums over the tokens of all batches."""

    def __init__(self, layers: int, queries: int, compared: Mapping[str, Model]) -> None:
        self.layers, self.queries, self.compared = layers, queries, compared
        self.variance: list[list[float]] = []
        self.crossing = np.zeros((2, layers))
        self.tokens = np.zeros(2)
        self.distance = {name: np.zeros((2, layers + 1)) for name in compared}

    def add(self, net: PairEncoder, batch: Batch) -> None:
        states, contexts = layer_states(net, batch)
        query = batch.query_ids.shape[1]
        sides = (slice(0, query), slice(query, None))
        real = batch.real
        self.tokens += [int(mask.sum()) for mask in real]
        for number, context in enumerate(contexts):
            for side, share in enumerate(crossing(net, states[number], context, query)):
                self.crossing[side, number] += float(share[real[side]].sum())
        for name, model in self.compared.items():
            # Layers that a model has beyond the joint one's have nothing to be compared with.
            theirs = layer_states(model.net, batch)[0][: self.layers + 1]
            for number, (ours, other) in enumerate(zip(states, theirs, strict=True)):
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
        for x_BTD in layer_states(net, batch)[0]:
            x_BPD = x_BTD[:, query:]
            x_GNPD = F.normalize(x_BPD, dim=-1).view(groups, self.queries, *x_BPD.shape[1:])
            centre = x_GNPD.mean(1, keepdim=True)
            apart_GNP = _apart(x_GNPD, centre)
            mean_GN = (apart_GNP * real_GP[:, None]).sum(-1) / real_GP.sum(-1)[:, None]
            means.append(mean_GN.flatten().tolist())
        self.variance += [list(row) for row in zip(*means, strict=True)]

    def result(self, *, pairs: int, passages: int) -> LayerStudy:
        variance = np.asarray(self.variance)
        tokens = self.tokens[:, None]
        crossing_query, crossing_passage = map(tuple, (self.crossing / tokens).tolist())
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
    """The curves of a study, for people."""
    columns = ("layer", "variance", "query → passage", "passage → query")
    # The embedding has states and no attention.
    shares = zip(*(["", *study[f"crossing_{side}"]] for side in ("query", "passage")), strict=True)
    rows = [(n, study["variance"][n], *both) for n, both in enumerate(shares)]
    return ResultTable(columns=columns, rows=rows)
