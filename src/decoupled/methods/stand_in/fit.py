"""Learned rows that stand in for the other text of a pair below the split, fitted without labels.

In the joint model a passage is read beside its query from the first layer on; split, it is read alone, which
its layers never saw. A few learned rows beside each text, trained so that the split model says what the joint
one says, bring most of that back. Everything else stays as it is: thousands of parameters, and minutes.

Shapes: B pairs in G groups of C, Q query tokens, P passage tokens, N stand-in rows, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor

from decoupled.errors import InputError
from decoupled.measure.pairs import read_pairs
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import Side
from decoupled.model.split import unsplit
from decoupled.model.states import Ragged
from decoupled.model.tokens import Ids
from decoupled.runtime.cpu import multiplies_halves
from decoupled.search.starter import sample_passages
from decoupled.train import losses
from decoupled.train.data.synthetic import query_from, rarity
from decoupled.train.loop.forward import autocast
from decoupled.train.place import Count
from decoupled.train.recipe import Precision

ROWS = 8
"""Rows of a stand-in where nothing else is said: as many as a typical query has tokens."""
STEPS, GROUPS, CANDIDATES = 120, 4, 5
"""Steps of a fit, queries of a step, and passages that each of them is read with."""
MOST = 20_000
"""The most pairs of a file that a fit draws from."""
POOL = 200
"""Random passages among which the ones nearest to a query are its candidates."""
TOKENS = 96
"""The most tokens of a passage that a fit reads."""
RATE, MARGIN = 2e-3, 0.05
"""Learning rate, and weight of the differences between scores beside their order."""
SIDES: tuple[Side, Side] = ("query", "passage")


def with_stand_in(
    model: Model,
    pairs: Sequence[tuple[str, str]],
    *,
    rows: int = ROWS,
    steps: int = STEPS,
    seed: int = 0,
    progress: Count | None = None,
) -> Model:
    """The split model with stand-in rows, fitted so that its first head says what the joint model's says.

    `pairs` are queries with a passage each, of any relevance; other passages that share words with a query
    are its further candidates. The model must not have been trained since its split.
    """
    if not pairs:
        raise InputError("a stand-in is fitted on pairs of query and passage; give at least one")
    did = {"did": "fit stand-in", "rows": rows, "steps": steps}
    fitted = model.rebuild(replace(model.spec, stand_in=rows), did)
    joint = model.rebuild(unsplit(model.spec), {}).net.eval()
    net, head = fitted.net.eval().requires_grad_(False), model.spec.heads[0].kind
    draw = _Draw(fitted, pairs, np.random.default_rng(seed))
    _start(net, draw.batch())
    learned = [net.stand_in[side].requires_grad_() for side in SIDES]
    optimiser = torch.optim.Adam(learned, lr=RATE)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
    precision: Precision = "bf16" if model.device.type != "cpu" or multiplies_halves() else "fp32"
    for step in range(steps):
        batch = draw.batch()
        with autocast(model.device, precision):
            with torch.no_grad():
                target = _logits(joint, batch, head)
            loss = _apart(head, _logits(net, batch, head), target, batch)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        slower.step()
        if progress is not None:
            progress(step + 1, steps)
    net.requires_grad_()
    return fitted


def fit_stand_in(
    model: Model, data: str | Path | None = None, *, rows: int = ROWS, progress: Count | None = None
) -> Model:
    """The split model with stand-in rows, fitted on pairs or, without any, on the bundled passages."""
    if data is not None:
        pairs = [(pair.query, pair.passage) for pair in islice(read_pairs(data), MOST)]
        return with_stand_in(model, pairs, rows=rows, progress=progress)
    texts, draw = list(sample_passages()), Random(0)
    rare = rarity(passage.text for passage in texts)
    drawn = ((query_from(p.text, p.title, draw, rare), p.text) for p in texts)
    pairs = [(query.query, query.without or text) for query, text in drawn if query is not None]
    return with_stand_in(model, pairs, rows=rows, progress=progress)


@dataclass(frozen=True, kw_only=True)
class _Groups:
    """Queries `[G,Q]` and passages `[B,P]`, the candidates of each query one after the other."""

    query: Tensor
    query_real: Tensor
    passage: Tensor
    passage_real: Tensor

    @property
    def count(self) -> int:
        """Candidates of each query."""
        return len(self.passage) // len(self.query)


class _Draw:
    """Queries with candidates, drawn from pairs by a generator."""

    def __init__(
        self, model: Model, pairs: Sequence[tuple[str, str]], draw: np.random.Generator
    ) -> None:
        tokenizer = model.tokenizer
        self.draw, self.device = draw, model.device
        self.queries = tokenizer.queries([query for query, _ in pairs])
        cut = tokenizer.cut([passage for _, passage in pairs], min(TOKENS, tokenizer.passage_room))
        self.passages = [windows[0].ids for windows in tokenizer.windows(cut)]
        self.tokens = [frozenset(ids.tolist()) for ids in self.passages]

    def batch(self) -> _Groups:
        """The candidates of random queries: its own passage, and the nearest of a random pool."""
        some = self.draw.integers(0, len(self.queries), GROUPS)
        candidates = [self.passages[n] for own in some for n in self._near(int(own))]
        query, query_real = self._padded([self.queries[n] for n in some])
        passage, passage_real = self._padded(candidates)
        return _Groups(
            query=query, query_real=query_real, passage=passage, passage_real=passage_real
        )

    def _near(self, own: int) -> list[int]:
        words = frozenset(self.queries[own].tolist())
        pool = self.draw.integers(0, len(self.passages), POOL).tolist()
        # Passages without the query's words are told apart by any model; near ones are not.
        pool.sort(key=lambda n: len(words & self.tokens[n]), reverse=True)
        return [own, *pool[: CANDIDATES - 1]]

    def _padded(self, ids: list[Ids]) -> tuple[Tensor, Tensor]:
        padded, real = Ragged.stack(ids).pad()
        return torch.from_numpy(padded.astype(np.int64)).to(self.device), torch.from_numpy(real).to(
            self.device
        )


@torch.no_grad()
def _start(net: PairEncoder, batch: _Groups) -> None:
    """Let the rows begin as the embedding of a real query and of a real passage."""
    ids_of: dict[Side, Tensor] = {"query": batch.query, "passage": batch.passage}
    for side, other in zip(SIDES, reversed(SIDES), strict=True):
        ids = ids_of[other]
        place = torch.arange(net.spec.stand_in, device=ids.device)
        token = ids[0, place % ids.shape[1]][None]
        first = net.spec.stand_in_position(side)
        net.stand_in[side].copy_(net.embed(other, token, first + place[None])[0])


def _logits(net: PairEncoder, batch: _Groups, head: HeadKind) -> Tensor:
    """Logits of all pairs; a joint model gets the length of each passage's query."""
    count, real = batch.count, batch.query_real.repeat_interleave(batch.count, 0)
    query, _ = net.input("query", batch.query, batch.query_real, vectors=False)
    length = real.sum(1, keepdim=True)
    passage, _ = net.input(
        "passage", batch.passage, batch.passage_real, query_length=length, vectors=False
    )
    query = query.repeat_interleave(count, 0)
    return net.cross(query, real, passage, batch.passage_real, heads=[head])[head].float()


def _apart(head: HeadKind, ours: Tensor, joint: Tensor, batch: _Groups) -> Tensor:
    """The distance of the split model's logits from the joint model's, by the kind of the head."""
    if head == "span":
        real = torch.nn.functional.pad(batch.passage_real, (1, 0), value=True)[:, None]
        start_end = ours.transpose(1, 2), joint.transpose(1, 2)
        return losses.kd(start_end[0], start_end[1], 1.0, real.expand(-1, 2, -1))
    if head == "classes":
        return losses.kd(ours, joint, 1.0, None)
    # A score has a meaning among the candidates of a query.
    ours, joint = (x.view(-1, batch.count) for x in (ours, joint))
    return losses.kd(ours, joint, 1.0, None) + MARGIN * losses.margin_mse(ours, joint)
