"""Training steps on a GPU as CUDA graphs: one launch where thousands of small kernels wait for the host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

Losses = tuple[Tensor, dict[str, Tensor]]
MOST = 64
"""The most shapes that are captured, which share the memory of the largest; other batches run as ever."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: dict[str, Tensor]
    """The tensors that it reads; a batch is copied into them."""
    losses: Losses


class TrainingGraphs:
    """Losses and gradients of batches, replayed for shapes that were seen before.

    What it replays must depend on nothing but the tensors of a batch, the weights and torch's generator.
    """

    def __init__(self, run: Callable[[Any], Losses], moving: Sequence[Tensor]) -> None:
        """`run` gives the losses of a batch and adds its gradients to those of the `moving` weights."""
        self._run, self._moving = run, moving
        self._seen: set[Hashable] = set()
        self._made: dict[Hashable, _Graph] = {}
        self._gradients: list[Tensor | None] = []
        self._works = all(weight.is_cuda for weight in moving)
        self._pool = torch.cuda.graph_pool_handle() if self._works else None

    def __call__(self, batch: Any) -> Losses:
        """The losses of a batch; the gradients are those of this batch alone."""
        shape = shape_of(batch)
        if shape not in self._made:
            # What a first pass builds for later ones must not lie in the memory of a graph.
            if not self._works or shape not in self._seen or len(self._made) >= MOST:
                self._seen.add(shape)
                return self._run(batch)
            try:
                self._made[shape] = self._capture(batch)
            except RuntimeError as error:
                # Slower, and not worth losing a run for: memory may be short, or a kind may ask the GPU.
                log.warning("steps run without CUDA graphs, which is slower: %s", error)
                self._works = False
                self._made.clear()
                torch.cuda.empty_cache()
                return self._run(batch)
        return self._replay(self._made[shape], batch)

    def _capture(self, batch: Any) -> _Graph:
        inputs = {name: tensor.clone() for name, tensor in tensors_of(batch).items()}
        copy = replace(batch, **inputs)
        if not self._gradients:
            self._gradients = self._probe(copy)
        self._show_gradients()
        there = [gradient for gradient in self._gradients if gradient is not None]
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                # Zeroed inside the graph: a replay must not add to the gradients of the step
                # before.
                torch._foreach_zero_(there)
                loss, parts = self._run(copy)
        except RuntimeError:
            self._gradients = []
            for weight in self._moving:
                weight.grad = None
            _recover(stream)
            raise
        return _Graph(graph=graph, inputs=inputs, losses=(loss.detach(), parts))

    def _probe(self, batch: Any) -> list[Tensor | None]:
        """Buffers for the gradients of the weights that get any; the random state is left as it was."""
        before = torch.cuda.get_rng_state()
        for weight in self._moving:
            weight.grad = None
        self._run(batch)
        torch.cuda.set_rng_state(before)
        return [weight.grad for weight in self._moving]

    def _show_gradients(self) -> None:
        for weight, gradient in zip(self._moving, self._gradients, strict=True):
            # The optimiser's zero_grad removes gradients, but the graph writes to these very
            # tensors.
            weight.grad = gradient

    def _replay(self, graph: _Graph, batch: Any) -> Losses:
        for name, tensor in tensors_of(batch).items():
            graph.inputs[name].copy_(tensor)
        graph.graph.replay()
        self._show_gradients()
        loss, parts = graph.losses
        # Copies: the next replay writes over the graph's own outputs, which the log still needs.
        return loss.clone(), {name: part.clone() for name, part in parts.items()}


def _recover(stream: torch.cuda.Stream) -> None:
    """Recover from a broken capture: torch leaves its stream current, and the generator in the graph."""
    torch.cuda.set_stream(stream)
    generator = torch.cuda.default_generators[stream.device_index]
    generator.graphsafe_set_state(generator.clone_state())


def tensors_of(batch: Any) -> dict[str, Tensor]:
    """The fields of a batch that are tensors, by name."""
    tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: value for name, value in tensors.items() if isinstance(value, Tensor)}


def shape_of(batch: Any) -> Hashable:
    """A key that is equal for batches which one graph serves: all but tensor values and counts of steps."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    replaced = {
        name: (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else value
        for name, value in values.items()
        if name not in ("number", "tokens")
    }
    return tuple(sorted(replaced.items()))
