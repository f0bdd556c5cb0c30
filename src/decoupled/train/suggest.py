"""Where to split a model before any training: by the attention between both texts, layer by layer.

A layer below the split reads one text alone and gives up the attention that it spent on the other, so a split
should leave enough of that attention to the layers above it. `decoupled split --at auto` and `Model.split`
ask this module; `decoupled lab layers` draws more curves from the same states.

Shapes: B pairs, Q query tokens, P passage tokens, T = Q + P, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoupled.errors import InputError
from decoupled.measure.pairs import Pair
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
LEAVE = 0.5
"""Share of the attention between the texts that must remain above the split. Of the three values that were
tried (0.3, 0.4, 0.5) it agrees best with the trained sweeps of benchmarks/suggestion.py, and is farthest from
where a curve changes its answer: fitted to them, not tested by them."""


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A split to train at, and what speaks for each of them."""

    split: int
    remaining: tuple[float, ...]
    """Share of the crossing attention above each split, from 0 to all layers."""

    @property
    def line(self) -> str:
        """The suggestion and its reason, in words."""
        left = self.remaining[self.split]
        return (
            f"split at {self.split}: the deepest that leaves {left:.0%} of the attention between both texts "
            "above it; distil it next"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, rounded."""
        return {"split": self.split, "remaining": [round(value, 4) for value in self.remaining]}


def suggest_split(
    model: Model, data: Iterable[Pair], *, limit: int = 200, progress: Progress | None = None
) -> Suggestion:
    """The deepest split that leaves half of the attention between both texts above it, to be distilled."""
    examples = judging(model, data, "pairs", limit).examples(model)
    joint = teacher_of(model)
    sums = CrossingSums(len(joint.spec.layers))
    with torch.inference_mode():
        for batch in study_batches(joint, crossed(examples, passages=50, queries=5), progress):
            sums.add(joint.net, batch, layer_states(joint.net, batch))
    return suggest(*sums.curves())


def suggest(
    crossing_query: Sequence[float], crossing_passage: Sequence[float], *, leave: float = LEAVE
) -> Suggestion:
    """The deepest split that leaves enough of the attention between both texts to the layers above it.

    A layer that reads one text alone gives up the attention that it spent on the other. Training moves some
    of it up, as far as the layers above have room for it.
    """
    mass = [(a + b) / 2 for a, b in zip(crossing_query, crossing_passage, strict=True)]
    total = sum(mass)
    if not mass or total <= 0:
        raise InputError("the curves hold no attention between the texts; measure them on pairs")
    remaining = tuple(sum(mass[k:]) / total for k in range(len(mass) + 1))
    good = [k for k in range(len(mass)) if remaining[k] >= leave]
    return Suggestion(split=max(good, default=0), remaining=remaining)


def judging(model: Model, data: Iterable[Pair], task: str, limit: int | None) -> Prepared:
    """The pairs that judge a model, which must have a head."""
    if not model.spec.heads:
        raise InputError(
            "the model has no head, so there is nothing to judge; fine-tune it first: "
            "decoupled distill MODEL -o OUT --data DATA --recipe plain"
        )
    return prepare(data, model, task, train=False, limit=limit)


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


def study_batches(
    joint: Model, groups: Examples, progress: Progress | None = None
) -> Iterator[Batch]:
    """Batches of whole groups, small enough to hold what every layer gives."""
    joint.net.eval()
    batches = Batches(groups, joint.device, pad=joint.spec.text.pad)
    step = counter(progress, len(groups))
    for batch in batches.walk(batches.ordered(TOKENS * groups.per_group)):
        yield batch
        step(len(batch.rows))


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


class CrossingSums:
    """Attention that crosses between the texts, summed over the tokens of all batches."""

    def __init__(self, layers: int) -> None:
        self.shares = np.zeros((2, layers))
        self.tokens = np.zeros(2)

    def add(self, net: PairEncoder, batch: Batch, passed: Passed) -> None:
        """Add the tokens of one batch, with the states that the joint model has for them."""
        self.tokens += [int(mask.sum()) for mask in batch.real]
        for number in range(self.shares.shape[1]):
            shares = crossing(net, passed, number, batch.query_ids.shape[1])
            for side, share in enumerate(shares):
                self.shares[side, number] += float(share[batch.real[side]].sum())

    def curves(self) -> tuple[Curve, Curve]:
        """Mean share of the query's and of the passage's attention, one value per layer."""
        query, passage = (self.shares / self.tokens[:, None]).tolist()
        return tuple(query), tuple(passage)
