"""Layers over two streams whose inputs are computed back from their outputs (Gomez et al., 2017; Reformer).

Each block adds what it makes of one stream to the other, in turns: `y1 = x1 + F(x2)`, `y2 = x2 + G(y1)`. So
`x2 = y2 - G(y1)` and `x1 = y1 - F(x2)`, and training keeps the two streams after the last layer alone,
however many layers there are. A run of such layers starts from two copies of its input and ends with their
mean.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import take

Step = tuple[Callable[[Tensor, Context], Tensor], Context]
"""A block, which returns its input with a change added, and its context."""


def duplicate(x_BTD: Tensor) -> Tensor:
    """Both streams side by side, `[B,T,2D]`."""
    return torch.cat([x_BTD, x_BTD], -1)


def mean(pair: Tensor) -> Tensor:
    """`[B,T,D]` mean of both streams, which leaves the run of layers."""
    first, second = pair.chunk(2, -1)
    return (first + second) / 2


def advance(pair: Tensor, steps: Sequence[Step]) -> Tensor:
    """Both streams after these blocks, for the rows that the blocks give."""
    target, source = pair.chunk(2, -1)
    for step in steps:
        rows = step[1].rows
        # The streams change roles after each block: y1 = x1 + F(x2), then y2 = x2 + G(y1).
        target, source = take(source, rows), take(target, rows) + _change(step, source)
    return torch.cat([target, source], -1)


def _change(step: Step, source: Tensor) -> Tensor:
    block, context = step
    return block(source, context) - take(source, context.rows)


def recomputed(pair: Tensor, steps: Sequence[Step]) -> Tensor:
    """`advance` over all rows, keeping nothing for the gradient but its result."""
    # Inputs that need no gradient would leave the parameters inside without one.
    anchor = torch.zeros((), device=pair.device, requires_grad=True)
    outputs: Tensor = _Recomputed.apply(pair, anchor, steps)  # type: ignore[no-untyped-call]
    return outputs


class _Recomputed(torch.autograd.Function):
    """Gradients of parameters are added where they belong as the blocks are run again, last one first."""

    @staticmethod
    def forward(ctx: Any, pair: Tensor, anchor: Tensor, steps: Sequence[Step]) -> Tensor:
        ctx.steps, ctx.cast = steps, _autocast(pair)
        ctx.random = []
        for step in steps:
            # Dropout must be the same when the block is run again.
            ctx.random.append(_random_state(pair))
            pair = advance(pair, [step])
        ctx.save_for_backward(pair)
        return pair

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (pair,) = ctx.saved_tensors
        (target, source), (to_target, to_source) = pair.chunk(2, -1), grads[0].chunk(2, -1)
        for step, random in zip(reversed(ctx.steps), reversed(ctx.random), strict=True):
            # Each block exchanged the names of the streams: what it read is the target now.
            read = target.detach().requires_grad_()
            with torch.enable_grad(), _restored(random, pair), ctx.cast():
                change = _change(step, read)
            torch.autograd.backward(change, to_source.to(change.dtype))
            assert read.grad is not None
            # x2 = y2 - G(y1): the stream before the block is what it is now without the change.
            target, source = source - change.detach(), target
            to_target, to_source = to_source, to_target + read.grad
        return torch.cat([to_target, to_source], -1), None, None


def _autocast(x: Tensor) -> Callable[[], AbstractContextManager[object]]:
    kind = x.device.type
    on, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype) if on else nullcontext()


def _random_state(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """The state of the random generators that dropout draws from."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(x.device) if x.is_cuda else None


@contextmanager
def _restored(state: tuple[Tensor, Tensor | None], x: Tensor) -> Iterator[None]:
    """Within the block, random numbers repeat those drawn after that state."""
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1], x.device)
        yield
