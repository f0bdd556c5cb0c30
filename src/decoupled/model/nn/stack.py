"""A range of layers over their slots, computing no row that nobody reads."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import cast

import torch
from torch import Tensor, nn

from decoupled.model import annex
from decoupled.model.nn.attention import AttentionBlock
from decoupled.model.nn.block import Context, Source, build_block
from decoupled.model.nn.frame import ALL, FIRST, Frame, Rows, take
from decoupled.model.nn.linear import build_norm
from decoupled.model.parts.attention import RelativeSpec
from decoupled.model.parts.layer import Block
from decoupled.model.spec import EncoderSpec

Run = Callable[[Context, Tensor], Tensor]
LayerHook = Callable[[Context, Tensor, Run], Tensor]
"""A function that runs in place of a layer, or around it; its third argument runs the layer."""
Observe = Callable[[Context, Tensor, Tensor], None]
"""A function that is called with the context, input and output of each layer of a pass."""


class RelativeTable(nn.Module):
    """The table of relative positions, normalised once per forward pass."""

    def __init__(self, spec: RelativeSpec, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(spec.rows, spec.width or width)
        self.norm = build_norm(spec.norm, width) if spec.norm else nn.Identity()

    def forward(self) -> Tensor:
        return self.norm(self.table.weight)


class Stack(nn.Module):
    """The layers of an encoder. Slots are built once, however many layers use them."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.attention = nn.ModuleDict()
        self.ffn = nn.ModuleDict()
        for block in spec.blocks:
            if not hasattr(self, block.name):
                self.add_module(block.name, nn.ModuleDict())
            slots = cast(nn.ModuleDict, getattr(self, block.name))
            if str(block.slot) not in slots:
                slots[str(block.slot)] = build_block(
                    block.part, block, width=spec.width, dropout=spec.dropout
                )
        self.relative = RelativeTable(spec.relative, spec.width) if spec.relative else None
        self.norm = build_norm(spec.final_norm, spec.width) if spec.final_norm else None
        self._hooks: list[LayerHook] = []

    @contextmanager
    def hook(self, act: LayerHook) -> Iterator[None]:
        """Within the block every layer runs through `act`: how training skips or replaces layers."""
        self._hooks.append(act)
        try:
            yield
        finally:
            self._hooks.remove(act)

    def forward(
        self,
        x_BTD: Tensor,
        frame: Frame,
        *,
        rows: Rows = ALL,
        first: int = 0,
        last: int | None = None,
        query: int = 0,
        source: Source | None = None,
        observe: Observe | None = None,
    ) -> Tensor:
        """Run layers `first..last-1` (all by default) and return the given rows of the last one.

        Rows that are not asked for are left out of the last layer, where nothing reads them. A layer with
        frozen passages moves the first `query` rows only. Cross-attention looks at the
        `source`, if there is one.
        """
        last = len(self.spec.layers) if last is None else last
        relative = self.relative() if self.relative is not None else None
        contexts = []
        for number in range(first, last):
            layer = self.spec.layers[number]
            # Only the last layer may leave rows out: every other one is read by the layer above.
            needed = rows if number == last - 1 else ALL
            # Frozen passage rows are not computed but passed on, so leaving them out would save
            # nothing.
            if layer.passage == "frozen" and query and needed != FIRST:
                needed = ALL
            context = Context(
                number=number,
                layer=layer,
                frame=frame,
                rows=needed,
                query=query,
                relative=relative,
                source=source,
                chunk=self.spec.chunk,
            )
            contexts.append(context)
        # Runs of reversible layers share two streams, which are joined again where the run ends.
        for paired, run in groupby(contexts, lambda context: context.layer.reversible):
            x_BTD = (self._pairs if paired else self._each)(list(run), x_BTD, observe)
        x_BTD = take(x_BTD, rows) if not contexts or contexts[-1].rows == ALL else x_BTD
        # Where no layer is left above a split, the states below it are normalised already.
        ends = last == len(self.spec.layers) and (contexts or not last)
        return self.norm(x_BTD) if self.norm is not None and ends else x_BTD

    def _each(self, run: Sequence[Context], x_BTD: Tensor, observe: Observe | None) -> Tensor:
        for context in run:
            y_BTD = self._run(context, x_BTD)
            if observe is not None:
                observe(context, x_BTD, y_BTD)
            x_BTD = y_BTD
        return x_BTD

    def _pairs(self, run: Sequence[Context], x_BTD: Tensor, observe: Observe | None) -> Tensor:
        """Run reversible layers. Hooks see both streams; observers the one read first, and the mean."""
        reversible = annex.load("reversible.module")
        pair: Tensor = reversible.duplicate(x_BTD)
        # Hooks and observers need each layer's values, which recomputation does not keep.
        if torch.is_grad_enabled() and not self._hooks and observe is None:
            whole = [context for context in run if context.rows == ALL]
            steps = [step for context in whole for step in self._steps(context)]
            pair, run = reversible.recomputed(pair, steps), run[len(whole) :]

        def watch(context: Context, x: Tensor, y: Tensor) -> None:
            if observe is not None:
                observe(context, x.chunk(2, -1)[1], reversible.mean(y))

        return cast(Tensor, reversible.mean(self._each(run, pair, watch)))

    def _run(self, context: Context, x_BTD: Tensor, depth: int = 0) -> Tensor:
        if depth == len(self._hooks):
            return self.layer(context, x_BTD)
        return self._hooks[depth](context, x_BTD, lambda c, x: self._run(c, x, depth + 1))

    def layer(self, context: Context, x_BTD: Tensor) -> Tensor:
        """One layer as the spec describes it."""
        frozen = context.layer.passage == "frozen" and context.query and context.rows != FIRST
        if frozen:
            # A one-way layer: passage rows serve as keys and values, and only the query's rows
            # move.
            context = replace(context, rows=(slice(0, context.query),))
        steps = self._steps(context)
        if context.layer.reversible:
            return cast(Tensor, annex.load("reversible.module").advance(x_BTD, steps))
        y_BRD = x_BTD
        for module, within in steps:
            y_BRD = module(y_BRD, within)
        return torch.cat([y_BRD, x_BTD[:, context.query :]], 1) if frozen else y_BRD

    def _steps(self, context: Context) -> list[tuple[nn.Module, Context]]:
        """The modules of a layer, each with its own context."""
        blocks = context.layer.blocks
        # Rows are left out by the last block that mixes them; those before it must give all.
        mixing = max(n for n, block in enumerate(blocks) if not self._rowwise(block, context))
        modules = [getattr(self, block.name)[str(block.slot)] for block in blocks]
        every = replace(context, rows=ALL)
        return [(one, context if n == mixing else every) for n, one in enumerate(modules)]

    def _rowwise(self, block: Block, context: Context) -> bool:
        return block.part.rowwise or (block.part.reads_source and context.source is not None)

    def attending(self, context: Context) -> AttentionBlock:
        """The attention block of a layer, which also says how it scores and weighs tokens."""
        return cast(AttentionBlock, self.attention[str(context.layer.attention_slot)])
