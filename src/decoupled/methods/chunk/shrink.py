"""Less memory: chunked feed-forward maps, and activations that are computed again."""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from decoupled.errors import SpecError
from decoupled.methods.method import BeforeSteps, Method
from decoupled.model.nn.block import Context
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.nn.stack import Run
from decoupled.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class ChunkFeedForward(Method):
    """Feed-forward maps take so many tokens of each text at a time; every result stays the same."""

    name: ClassVar[str] = "chunk-ffn"

    tokens: int = 128

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The encoder with that chunk size."""
        if self.tokens < 1:
            raise SpecError(f"tokens={self.tokens}; choose 1 or more")
        return replace(spec, encoder=replace(spec.encoder, chunk=self.tokens))


@dataclass(frozen=True, kw_only=True)
class CheckpointGradients(Method):
    """While training, keep only the input of each layer and compute the rest again for the gradient."""

    name: ClassVar[str] = "checkpoint-gradients"
    by_training: ClassVar[bool] = True

    @contextmanager
    def hook(self, student: PairEncoder, teacher: PairEncoder | None) -> BeforeSteps:
        """Run each layer under checkpointing while training; dropout is the same in both passes."""

        def act(context: Context, x_BTD: Tensor, run: Run) -> Tensor:
            if not student.training:
                return run(context, x_BTD)
            return checkpoint(run, context, x_BTD, use_reentrant=False)

        with student.stack.hook(act):
            yield None
