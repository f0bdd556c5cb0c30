"""Attention with a memory of the windows before: whole states of the last ones, compressed ones of older.

The windows of a text are rows of one batch, and what a layer remembers is its input there; so all windows
pass a layer together, and each sees what it would see if they came one by one. In a loop that reads window
after window the paper stops the gradient at the memory, and so does `stop`. S: states that are remembered,
G: groups of tokens, C: tokens of a group.
"""

import math
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from decoupled.methods.compressive.part import BUCKETS, Compressive
from decoupled.methods.places import order
from decoupled.model.nn.attention.base import build_attention, hidden
from decoupled.model.nn.attention.dot import DotProductAttention
from decoupled.model.nn.attention.relative import sinusoids
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import Frame, angles, rotate, take
from decoupled.model.parts.linear import LinearSpec

FAINT = -2.0
"""Initial bias of the scores of remembered states: a model without a memory so far stays near itself."""


class Remembered(NamedTuple):
    """States that windows may see: keys and values `[B,H,S,K]`, and `[B,S]` which are real and where."""

    key: Tensor
    value: Tensor
    real: Tensor
    place: Tensor
    """Tokens from their window's start; for a window that sees them, backwards from its own start."""


@build_attention.register(Compressive)
class CompressiveAttention(DotProductAttention):
    """Which window comes before which is said by the frame; without that, it is ordinary attention."""

    compress: nn.Module
    steps: nn.Module

    def __init__(
        self, kind: Compressive, *, width: int, dropout: float, linear: LinearSpec
    ) -> None:
        super().__init__(kind, width=width, dropout=dropout, linear=linear)
        if kind.relative_positions:
            # Nothing at first: windows alone stay as they are. Of two factors one is enough.
            self.width = width
            for last in list(self.steps.parameters())[-1:]:
                nn.init.zeros_(last)
            self.content = nn.Parameter(torch.zeros(kind.heads, kind.head_width))
            self.place = nn.Parameter(torch.zeros(kind.heads, kind.head_width))
        else:
            self.distance = nn.Parameter(torch.full((kind.heads, BUCKETS), FAINT))
        if kind.learns:
            self.compress = nn.Linear(kind.rate * width, width)
            averaging(self.compress)

    def look(self, x_BTD: Tensor, v_BHTK: Tensor, context: Context) -> Tensor:
        frame, kind = context.frame, cast(Compressive, context.layer.attention)
        steps = [] if frame.before_B is None else earlier(frame, kind)
        if not steps and not kind.relative_positions:
            return super().look(x_BTD, v_BHTK, context)
        q_BHRK, k_BHTK = self._queries_and_keys(x_BTD, context)
        past_BTD, past = x_BTD, (k_BHTK, v_BHTK)
        if kind.stop and torch.is_grad_enabled():
            # The maps of keys and values learn from the memory; the states that it holds do not.
            past_BTD = x_BTD.detach()
            key_BHTK = self._queries_and_keys(past_BTD, context)[1]
            past = key_BHTK, self.split_heads(self.value(past_BTD))
        whole = Remembered(*past, frame.real_BT, order(frame)[0])
        # The nearest windows are seen whole, those before them compressed.
        seen = [self._at(whole, *step, kind) for step in steps[: kind.memory]]
        if steps and kind.compressed:
            used_BT = (
                self._used(q_BHRK, whole, seen, steps) if kind.compress == "most-used" else None
            )
            slots_BGD, real_BG, place_BG = self._slots(past_BTD, frame, kind, used_BT)
            slots_BGD = slots_BGD.detach() if kind.stop else slots_BGD
            if kind.relative_positions:
                place_BG = torch.arange(place_BG.shape[1], device=place_BG.device).expand_as(
                    real_BG
                )
            slots = self._remembered(slots_BGD, real_BG, place_BG, frame, kind)
            seen += [self._at(slots, *step, kind) for step in steps[kind.memory :]]
        # One softmax over own tokens and memories, as over [cm; m; h] in the paper.
        k, v = (
            torch.cat([own, *(getattr(one, name) for one in seen)], 2)
            for own, name in ((k_BHTK, "key"), (v_BHTK, "value"))
        )
        bias = self._bias(q_BHRK, seen, context)
        if kind.relative_positions:
            bias = bias + self._relative(q_BHRK, seen, context)
            q_BHRK = q_BHRK + self.content[:, None]
        y_BHRK = self.attend(q_BHRK, k, v, bias)
        # Attention reconstruction (Rae et al., 2020): its gradient reaches the compression alone.
        if steps and self.training and torch.is_grad_enabled() and kind.learns:
            loss = self.reconstruction(x_BTD, frame, kind)
            y_BHRK = cast(Tensor, _Beside.apply(y_BHRK, loss))  # type: ignore[no-untyped-call]
        return y_BHRK

    def mask(self, context: Context) -> Tensor | None:
        return self.rows_of(context.frame.mask(None), context)

    def _at(self, held: Remembered, row_B: Tensor, gap_B: Tensor, kind: Compressive) -> Remembered:
        """The states that each window sees of the one in `row_B`, which begins `gap_B` tokens earlier."""
        at, there_B1 = row_B.clamp(min=0), (row_B >= 0)[:, None]
        key = held.key[at]
        if kind.rotary is not None:
            # Rotations add up, so a key that was turned in its own window is turned back by the gap
            # alone.
            key = rotate(key, *angles(-gap_B[:, None], kind.rotary, kind.head_width))
        back_BS = gap_B[:, None] - held.place[at]
        return Remembered(key, held.value[at], held.real[at] & there_B1, back_BS)

    def _bias(self, q_BHRK: Tensor, seen: list[Remembered], context: Context) -> Tensor:
        """`[B,H,R|1,T+S]` to add to scores: what may not be seen, and how far away the memory is."""
        own = self.mask(context)
        if own is None:
            own = context.frame.real_BT[:, None, None]
        none = context.frame.real_BT[:, :0]
        back = torch.cat([none.long(), *(one.place for one in seen)], 1)
        real = torch.cat([none, *(one.real for one in seen)], 1)
        bias_BHS = q_BHRK.new_zeros(*q_BHRK.shape[:2], back.shape[1])
        if hasattr(self, "distance"):
            # Buckets are powers of two, so one table serves any distance.
            bucket_BS = back.clamp(min=1).float().log2().long().clamp(max=BUCKETS - 1)
            bias_BHS = self.distance[:, bucket_BS].transpose(0, 1).to(q_BHRK.dtype)
        low = hidden(q_BHRK.dtype)
        bias = bias_BHS.masked_fill(~real[:, None], low)[:, :, None]
        inside = torch.zeros_like(own, dtype=q_BHRK.dtype).masked_fill(~own, low)
        shape = (*bias.shape[:2], inside.shape[2], -1)
        return torch.cat([inside.expand(shape), bias.expand(shape)], -1)

    def _relative(self, q_BHRK: Tensor, seen: list[Remembered], context: Context) -> Tensor:
        """`[B,H,R,T+S]` scores of distances, (q + v)·W r over √K, for r the sinusoid of each."""
        place_BT = order(context.frame)[0]
        at_BS = torch.cat([place_BT, *(-one.place for one in seen)], 1)
        far_BRS = take(place_BT, context.rows)[:, :, None] - at_BS[:, None]
        least, most = int(far_BRS.amin()), int(far_BRS.amax())
        step_M = torch.arange(least, most + 1, device=far_BRS.device)
        states_MD = sinusoids(step_M, self.width).to(q_BHRK)
        r_HMK = self.split_heads(self.steps(states_MD[None]))
        scores = (q_BHRK + self.place[:, None]) @ r_HMK.mT / math.sqrt(self.head_width)
        return scores.gather(-1, (far_BRS - least)[:, None].expand(-1, self.heads, -1, -1))

    # Compressing --------------------------------------------------------------------------------------

    def _slots(
        self, x_BTD: Tensor, frame: Frame, kind: Compressive, used_BT: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`[B,G,D]` states for every window, which are real, and where they stand."""
        place_BT, count_BT = order(frame)
        # Ceiling: the last group may be shorter than the rate.
        groups = -(-x_BTD.shape[1] // kind.rate)
        real_BG = torch.arange(groups, device=x_BTD.device) < -(-count_BT[:, :1] // kind.rate)
        if used_BT is not None:
            chosen = used_BT.masked_fill(~frame.real_BT, -1.0).topk(groups, 1).indices
            # Ranked by use; those past the share of a shorter window go to its end, and are none.
            chosen = chosen.masked_fill(~real_BG, x_BTD.shape[1] - 1).sort(1).values
            index = chosen[..., None].expand(-1, -1, x_BTD.shape[-1])
            return x_BTD.gather(1, index), real_BG, place_BT.gather(1, chosen)
        # [B,T,D] -> [B,G,C,D], with zeros after the text.
        more = groups * kind.rate - x_BTD.shape[1]
        x_BGCD = F.pad(x_BTD, (0, 0, 0, more)).view(len(x_BTD), groups, kind.rate, -1)
        real_BGC = F.pad(frame.real_BT, (0, more)).view(len(x_BTD), groups, kind.rate)
        # A group stands at the middle of its tokens.
        place_G = (torch.arange(groups, device=x_BTD.device) + 0.5) * kind.rate - 0.5
        slots_BGD = self._compress(x_BGCD, real_BGC[..., None], kind)
        return slots_BGD, real_BG, place_G.expand(len(x_BTD), -1)

    def _compress(self, x_BGCD: Tensor, real_BGC1: Tensor, kind: Compressive) -> Tensor:
        inside = x_BGCD.masked_fill(~real_BGC1, 0.0)
        if kind.compress == "conv":
            return cast(Tensor, self.compress(inside.flatten(2)))
        if kind.compress == "max":
            # The minimum stands in for padding, and groups of padding alone become 0.
            low = x_BGCD.masked_fill(~real_BGC1, torch.finfo(x_BGCD.dtype).min).amax(2)
            return low.masked_fill(~real_BGC1.any(2), 0.0)
        return inside.sum(2) / real_BGC1.sum(2).clamp(min=1)

    def _remembered(
        self, slots_BGD: Tensor, real_BG: Tensor, place_BG: Tensor, frame: Frame, kind: Compressive
    ) -> Remembered:
        key, value = (self.split_heads(part(slots_BGD)) for part in (self.key, self.value))
        if kind.rotary is not None:
            first_B1 = frame.position_BT[:, :1]
            key = rotate(key, *angles(first_B1 + place_BG, kind.rotary, kind.head_width))
        return Remembered(key, value, real_BG, place_BG)

    @torch.no_grad()
    def _used(
        self,
        q_BHTK: Tensor,
        whole: Remembered,
        seen: list[Remembered],
        steps: list[tuple[Tensor, Tensor]],
    ) -> Tensor:
        """`[B,T]` attention that later windows paid to each token while it was in memory whole."""
        tokens, scale = q_BHTK.shape[2], self.head_width**-0.5
        keys = torch.cat([whole.key, *(one.key for one in seen)], 2)
        real_BS = torch.cat([whole.real, *(one.real for one in seen)], 1)
        scores = (q_BHTK @ keys.mT).float() * scale
        share = scores.masked_fill(~real_BS[:, None, None], -torch.inf).softmax(-1)
        # Summed over heads and looking tokens; padding does not look.
        paid_BS = (share * whole.real[:, None, :, None]).sum((1, 2))
        used_BT = torch.zeros_like(paid_BS[:, :tokens])
        for number, (row_B, _) in enumerate(steps[: len(seen)], 1):
            paid = paid_BS[:, number * tokens : (number + 1) * tokens] * (row_B >= 0)[:, None]
            used_BT.index_add_(0, row_B.clamp(min=0), paid)
        return used_BT

    def reconstruction(self, x_BTD: Tensor, frame: Frame, kind: Compressive) -> Tensor:
        """Mean squared difference between attention to compressed states and to the states they stand for.

        It is content attention, without positions; only the compression learns from it.
        """
        # Detached, like all weights below: this loss must not move what it compares.
        x_BTD = x_BTD.detach()
        row_B, _ = earlier(frame, kind)[kind.memory]
        at, there_B = row_B.clamp(min=0), row_B >= 0
        slots_BGD, real_BG, _ = self._slots(x_BTD, frame, kind, None)

        def fixed(name: str, states: Tensor) -> Tensor:
            module = getattr(self, name)
            weights = {n: t.detach() for n, t in module.named_parameters()}
            return self.split_heads(functional_call(module, weights, (states,)))

        q = fixed("query", x_BTD)
        looks = []
        for states, real in ((x_BTD, frame.real_BT), (slots_BGD, real_BG)):
            # A window without one before it may look anywhere; it is left out of the mean.
            mask = (real[at] | ~there_B[:, None])[:, None, None]
            k, v = fixed("key", states)[at], fixed("value", states)[at]
            looks.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).float())
        counts_BT = frame.real_BT & there_B[:, None]
        apart_BT = (looks[0] - looks[1]).square().mean((1, 3))
        return apart_BT.masked_fill(~counts_BT, 0.0).sum() / counts_BT.sum().clamp(min=1)


def averaging(linear: nn.Linear) -> None:
    """Initialise a linear map of several concatenated states so that it gives their mean."""
    width = linear.out_features
    with torch.no_grad():
        count = linear.in_features // width
        linear.weight.copy_(torch.eye(width).repeat(1, count) / count)
        linear.bias.zero_()


def earlier(frame: Frame, kind: Compressive) -> list[tuple[Tensor, Tensor]]:
    """For each number of steps back: the row of that window (-1 for none), and the tokens since its start.

    Relative positions count along keys, as in the paper, where a compressed state is one.
    """
    assert frame.before_B is not None
    length_B = frame.real_BT.sum(1)
    row_B, gap_B, parts = torch.arange(len(length_B), device=length_B.device), 0 * length_B, []
    for step in range(kind.memory_windows):
        if step == kind.memory and kind.relative_positions:
            length_B = -(-length_B // kind.rate)
        row_B = torch.where(row_B >= 0, frame.before_B[row_B.clamp(min=0)], -1)
        gap_B = gap_B + torch.where(row_B >= 0, length_B[row_B.clamp(min=0)], 0)
        parts.append((row_B, gap_B))
    return parts


class _Beside(torch.autograd.Function):
    """Passes a tensor through unchanged, and adds a loss to whatever loss is computed from it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        # The loss counts with weight 1, whatever gradient arrives for the tensor.
        (loss,) = ctx.saved_tensors
        return grads[0], torch.ones_like(loss)
