"""Adaptive depth (Elbayad et al., 2020): each pair is read up to the exit at which its rule is content.

A pair that goes on continues from the layer where it was judged; none is read twice.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from decoupled.errors import InputError
from decoupled.model.codec import Codec
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.nn.frame import ALL, Frame, take
from decoupled.model.nn.head import rows_needed
from decoupled.model.parts.exits import EXITS
from decoupled.model.parts.head import HeadKind
from decoupled.model.scoring import Floats
from decoupled.model.states import States
from decoupled.runtime.base import Logits, Passages, unpadded
from decoupled.runtime.torch import TorchRuntime
from decoupled.train.data.batches import Batch, Batches
from decoupled.train.data.tasks import Task
from decoupled.train.loop.forward import EVALUATION_TOKENS, Pass, forward_pair
from decoupled.train.losses import masked
from decoupled.train.objectives.base import Objective
from decoupled.train.recipe import Distillation, Optimiser, Recipe

Rule = Literal["layer", "confidence", "halt"]
QUANTILES = np.linspace(1, 0, 40)
"""Thresholds that are tried for an exit, among what it says on development data."""


@dataclass(frozen=True, kw_only=True)
class Depth:
    """The rule by which pairs stop: after a fixed layer, or where an exit is above its threshold.

    What must be above it is the probability of the exit's own best answer (`confidence`), or of the learned
    map that halts (`halt`).
    """

    rule: Rule
    layer: int | None = None
    thresholds: tuple[float, ...] = ()
    """One per exit; 1 lets all pairs go on."""


class AdaptiveRuntime(TorchRuntime):
    """The torch runtime of a model with exits, each pair read as deep as the rule says."""

    def __init__(self, model: Model, depth: Depth, codec: Codec | None = None) -> None:
        super().__init__(model, codec)
        exits, layers = model.spec.exits, model.spec.layers
        ends = [*(one.layer for one in exits), len(layers)]
        if not exits or any(one.reversible for one in layers) or model.spec.store == "kv":
            raise InputError(
                "depth needs exits, no reversible layers and no stored keys: `with_exits`"
            )
        if depth.rule == "halt" and not all(one.halts for one in exits):
            raise InputError("the exits have no map that halts; add it with `halts` and train it")
        chosen = (
            depth.layer in ends if depth.rule == "layer" else len(depth.thresholds) == len(exits)
        )
        if not chosen:
            raise InputError(
                f"{depth} is not for exits after {ends}; give a layer, or each a threshold"
            )
        self.depth, self.left = depth, Counter[int]()

    @property
    def shares(self) -> dict[str, float]:
        """The share of the pairs that ended at each layer, and the mean share of cross layers run."""
        total, split = max(1, self.left.total()), self.spec.split
        run = sum(count * (layer - split) for layer, count in self.left.items())
        shares = {str(layer): count / total for layer, count in sorted(self.left.items())}
        return {**shares, "layers_run": run / total / (len(self.spec.layers) - split)}

    @torch.inference_mode()
    def cross(
        self, query: States, passages: Passages, heads: Sequence[HeadKind], **how: Any
    ) -> Logits:
        """Logits of each pair from the exit where it stopped; `left` counts those layers."""
        if how.get("last") is not None or how.get("links") is not None:
            raise InputError("with adaptive depth no single exit is read, and no hops are followed")
        pair = self._tensors(query, passages, how.get("owner"))
        logits, layer_B = read_adaptively(self.model.net, pair, heads, self.depth)
        self.left.update(layer_B.tolist())
        real_BP = pair[-1].cpu().numpy()
        return {k: unpadded(k, x.float().cpu().numpy(), real_BP) for k, x in logits.items()}


def read_adaptively(
    net: PairEncoder, pair: tuple[Tensor, ...], heads: Sequence[HeadKind], depth: Depth
) -> tuple[dict[HeadKind, Tensor], Tensor]:
    """Logits of every pair from the exit where it stopped, and `[B]` those layers."""
    query_BQD, query_real, passage_BPD, passage_real = pair
    states = net.restore("query", query_BQD), net.restore("passage", passage_BPD)
    x_BTD, frame = net.join(states[0], query_real, states[1], passage_real)
    width, first, logits = query_BQD.shape[1], net.spec.split, dict[HeadKind, Tensor]()
    going_B = torch.arange(len(x_BTD), device=x_BTD.device)
    layer_B = torch.zeros_like(going_B)
    for end in (*range(len(net.spec.exits)), None):
        layer = len(net.spec.layers) if end is None else net.spec.exits[end].layer
        rows = rows_needed([net.spec.head(k) for k in heads], width) if end is None else ALL
        x_BTD = net.stack(x_BTD, frame, rows=rows, first=first, last=layer, query=width)
        if end is None:
            own = net.read(x_BTD, frame.real_BT, rows, width, heads)
        else:
            own = exit_logits(net, end, x_BTD, frame.real_BT, width, heads)
        real_BR = take(frame.real_BT, rows_needed([net.spec.head(heads[0])], width))
        if end is None or depth.layer == layer:
            stops_B = torch.ones_like(going_B, dtype=torch.bool)
        elif depth.rule == "layer":
            stops_B = torch.zeros_like(going_B, dtype=torch.bool)
        elif depth.rule == "halt":
            stops_B = halting(net, end, x_BTD, frame.real_BT).sigmoid() > depth.thresholds[end]
        else:
            stops_B = confidence(heads[0], own[heads[0]], real_BR) > depth.thresholds[end]
        for kind, values in own.items():
            shape = len(layer_B), *values.shape[1:]
            logits.setdefault(kind, values.new_zeros(shape))[going_B[stops_B]] = values[stops_B]
        layer_B[going_B[stops_B]] = layer
        x_BTD, going_B, first = x_BTD[~stops_B], going_B[~stops_B], layer
        frame = Frame(frame.position_BT[~stops_B], frame.real_BT[~stops_B], padded=frame.padded)
        if not len(going_B):
            break
    return logits, layer_B


def exit_logits(
    net: PairEncoder,
    end: int,
    x_BTD: Tensor,
    real_BT: Tensor,
    width: int,
    heads: Sequence[HeadKind],
) -> dict[HeadKind, Tensor]:
    """Logits of heads of an exit from the output of its layer."""
    logits = {}
    for kind in heads:
        rows = rows_needed([net.spec.head(kind)], width)
        key = net.spec.exits[end].key(kind)
        logits[kind] = net.leave(key, take(x_BTD, rows), take(real_BT, rows))
    return logits


def halting(net: PairEncoder, end: int, x_BTD: Tensor, real_BT: Tensor) -> Tensor:
    """`[B]` logits of stopping at an exit, of the mean state of the pair."""
    weight = real_BT[..., None].to(x_BTD.dtype)
    logits: Tensor = net.exits[net.spec.exits[end].key("halt")](
        (x_BTD * weight).sum(1) / weight.sum(1)
    )
    return logits[:, 0]


def confidence(kind: HeadKind, logits: Tensor, real_BS: Tensor) -> Tensor:
    """`[B]` probability of the best that a head says: yes or no, a class, or a start and an end."""
    if kind == "span":
        return masked(logits, real_BS[..., None]).softmax(1).amax(1).prod(-1)
    if kind == "classes":
        return logits.float().softmax(-1).amax(-1)
    return logits[:, 0].float().abs().sigmoid()


def oracle(likelihood_BE: Tensor, penalty: float) -> Tensor:
    """`[B]` the exit that a pair should take: the likeliest label, less a penalty for every exit passed."""
    depth_E = torch.arange(likelihood_BE.shape[1], device=likelihood_BE.device)
    return (likelihood_BE - penalty * depth_E).argmax(1)


def log_taken(halt_BE: Tensor) -> Tensor:
    """`[B,E+1]` log-probability of stopping at each exit, the last one taking the rest."""
    reach, stop = F.logsigmoid(-halt_BE).cumsum(1), F.logsigmoid(halt_BE)
    return F.pad(reach, (1, 0)) + F.pad(stop, (0, 1))


def calibrated(rule: Rule, signal_NE: Floats, right_NE: Floats, most: float) -> Depth:
    """The rule with the lowest thresholds that keep the loss on these pairs at `most`, exit by exit.

    `signal` is what the exits say (a column each), `right` what every exit and the last layer score.
    """
    now_N, going_N = right_NE[:, -1].copy(), np.ones(len(right_NE), np.bool_)
    least, thresholds = float(now_N.mean()) - most, []
    for column, right in zip(signal_NE.T, right_NE.T, strict=False):
        chosen = 1.0
        for value in np.quantile(column, QUANTILES).tolist():
            if np.where(going_N & (column > value), right, now_N).mean() < least:
                break
            chosen = value
        stops = going_N & (column > chosen)
        now_N, going_N = np.where(stops, right, now_N), going_N & ~stops
        thresholds.append(chosen)
    return Depth(rule=rule, thresholds=tuple(thresholds))


# Training -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DepthSettings(Distillation):
    """Settings of the exits: what is trained, and what a layer costs."""

    whole: bool = False
    """Train all of the model, exits and last layer alike (aligned training); else the exits alone."""
    penalty: float = 0.1
    """Log-likelihood that every further exit must bring for the oracle of halting."""


DEPTH = Recipe(
    name="depth", objective="depth", settings=DepthSettings(), optimiser=Optimiser(lr=1e-3)
)


class DepthObjective(Objective):
    """Mean loss of all exits and the last layer, and where exits halt, that of the oracle's choice."""

    settings_kind = DepthSettings

    def trains(self, name: str) -> bool:
        """The exits, or everything."""
        return self.recipe.of(DepthSettings).whole or name.startswith(EXITS)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and each loss, detached."""
        settings = self.recipe.of(DepthSettings)
        self.student.train(settings.whole)
        logits, halt_BE = every_exit(self.student, batch, self.task, whole=settings.whole)
        likelihood_BE = torch.stack([_scored(self.task, one, batch)[0] for one in logits], 1)
        parts = {"exits": -likelihood_BE.mean()}
        if halt_BE is not None:
            best_B = oracle(likelihood_BE.detach(), settings.penalty)
            parts["halt"] = F.nll_loss(log_taken(halt_BE), best_B)
        return sum(parts.values(), torch.zeros(())), {n: v.detach() for n, v in parts.items()}


OBJECTIVE = DepthObjective


def every_exit(
    net: PairEncoder, batch: Batch, task: Task, *, whole: bool = False
) -> tuple[list[Tensor], Tensor | None]:
    """Logits of all exits and of the last layer, and `[B,E]` logits of halting."""
    with torch.set_grad_enabled(whole and torch.is_grad_enabled()):
        out = forward_pair(net, batch, task.head, how=Pass(hidden=True))
    width, halt, logits = batch.query_ids.shape[1], list[Tensor](), list[Tensor]()
    for end, one in enumerate(net.spec.exits):
        x_BTD = out.hidden[one.layer - net.spec.split - 1]
        logits += exit_logits(net, end, x_BTD, out.real, width, (task.head,)).values()
        # Detached: what halts follows the states, which must not move for it.
        halt += [halting(net, end, x_BTD.detach(), out.real)] if one.halts else []
    return [*logits, out.logits], torch.stack(halt, 1) if halt else None


@torch.inference_mode()
def signals(net: PairEncoder, batches: Batches, task: Task) -> tuple[Floats, Floats | None, Floats]:
    """`[N,E]` confidence and halting probability at each exit, and `[N,E+1]` whether each is right."""
    rows: list[list[Tensor]] = [[], [], []]
    net.eval()
    for batch in batches.walk(batches.ordered(EVALUATION_TOKENS // 4)):
        logits, halt_BE = every_exit(net, batch, task)
        sure = [confidence(task.head, one, batch.span_real) for one in logits[:-1]]
        rows[0].append(torch.stack(sure, 1))
        rows[1] += [] if halt_BE is None else [halt_BE.sigmoid()]
        rows[2].append(torch.stack([_scored(task, one, batch)[1] for one in logits], 1))
    sure_NE, halts_NE, right_NE = (
        torch.cat(each).double().cpu().numpy() if each else None for each in rows
    )
    assert sure_NE is not None and right_NE is not None
    return sure_NE, halts_NE, right_NE


def _scored(task: Task, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """`[B]` log-likelihood of the label, and whether the best is the label: of a span, both of its ends."""
    label, first = batch.label.long(), batch.label[:, 0].long()
    if task.head == "span":
        shares = masked(logits, batch.span_real[..., None]).log_softmax(1)
        right = (shares.argmax(1) == label).all(1)
        return shares.gather(1, label[:, None]).sum((1, 2)), right
    if task.head == "classes":
        loss = F.cross_entropy(logits.float(), first, reduction="none")
        return -loss, logits.argmax(1) == first
    if task.head == "rank":
        score, target = logits[:, 0].float(), first > 0
        loss = F.binary_cross_entropy_with_logits(score, target.float(), reduction="none")
        return -loss, (score > 0) == target
    raise InputError(
        "the options of a question are compared with each other; exits cannot stop one"
    )
