"""The reference runtime: the torch model as it is, on any device that torch knows."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoupled.errors import InputError
from decoupled.model.codec import Codec
from decoupled.model.model import Model
from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import Side
from decoupled.model.states import Encoded, Encoding, Ragged, States
from decoupled.model.tokens import Ids
from decoupled.runtime.base import (
    Before,
    Links,
    Logits,
    Passages,
    R,
    Runtime,
    T,
    required_codec,
    rounded_up,
    unpadded,
    wrong_device,
)

log = logging.getLogger(__name__)

OLDEST_TRITON = (3, 2)
"""The oldest Triton that works, of torch 2.6: older ones lack a setting that the kernels use."""
STEP = 16
"""Texts are padded to multiples of this, so that their last bits do not depend on each other's lengths."""


class TorchRuntime:
    """Runs a `Model`. Passages that come encoded are decoded by `codec`."""

    name = "torch"
    mixes = True
    callers = 1

    def __init__(self, model: Model, codec: Codec | None = None) -> None:
        self.model, self.codec = model, codec
        self.spec, self.tokenizer = model.spec, model.tokenizer
        self._lanes = Lanes()

    @property
    def token_budget(self) -> int:
        """Padded tokens of a batch: on a CPU few enough to stay in cache, else plenty."""
        return 2048 if self.model.device.type == "cpu" else 65536

    def tensors(self, prefix: str) -> dict[str, npt.NDArray[np.generic]]:
        return self.model.tensors(prefix)

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if self.model.device.type == "cpu":
            return self._lanes.each(work, items)
        return [work(item) for item in items]

    @torch.inference_mode()
    def encode(
        self,
        side: Side,
        ids: Sequence[Ids],
        *,
        query_length: int = 0,
        vectors: bool = True,
        before: Before | None = None,
    ) -> Encoding:
        batch = Ragged.stack(ids)
        text = self.spec.text
        window = text.query_tokens if side == "query" else text.passage_tokens
        # Beyond the window there may be no positions.
        longest = int(batch.lengths.max(initial=0))
        padded_BT, real = batch.pad(min(rounded_up(longest, STEP), window))
        real_BT, ids_BT = self._tensor(real), self._tensor(padded_BT.astype(np.int64))
        before_B = None if before is None else self._tensor(before)
        x_BTW, vector_BV = self.model.net.input(
            side, ids_BT, real_BT, query_length, vectors=vectors, before_B=before_B
        )
        states = States(x_BTW[real_BT].float().cpu().numpy(), batch.lengths)
        return Encoding(states, vector_BV.float().cpu().numpy())

    @torch.inference_mode()
    def cross(
        self,
        query: States,
        passages: Passages,
        heads: Sequence[HeadKind],
        *,
        owner: npt.NDArray[np.int64] | None = None,
        last: int | None = None,
        links: Links | None = None,
    ) -> Logits:
        pair = self._tensors(query, passages, owner)
        links_BB = None if links is None else self._tensor(links)
        logits = self.model.net.cross(*pair, heads, last=last, links_BB=links_BB)
        real_BP = pair[-1].cpu().numpy()
        return {
            kind: unpadded(kind, x.float().cpu().numpy(), real_BP) for kind, x in logits.items()
        }

    def _tensors(
        self, query: States, passages: Passages, owner: npt.NDArray[np.int64] | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States of the queries and of the passages of a batch, each with what is real of them."""
        states = (
            required_codec(self.codec).decode(passages)
            if isinstance(passages, Encoded)
            else passages
        )
        if not isinstance(states, States):
            raise wrong_device()
        passage_BPD, real_BP = states.pad()
        query_1QD, real_1Q = (query if owner is None else query.select(owner)).pad()
        dtype = next(self.model.net.parameters()).dtype
        return (
            # One query is expanded to all pairs without a copy.
            self._tensor(query_1QD).expand(len(states), -1, -1).to(dtype),
            self._tensor(real_1Q).expand(len(states), -1),
            self._tensor(passage_BPD).to(dtype),
            self._tensor(real_BP),
        )

    def keep(self, encoded: Encoded) -> None:
        """Return None: the codec decodes in our own memory."""

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.model.device)


class Lanes:
    """Batches side by side: as many threads as torch uses cores, made on first use, a core for each.

    On a CPU that beats all cores on one batch after the other: their threads need not wait for each other
    after every operation, which costs most where other programs run too.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`work` on every item, results in order."""
        count = torch.get_num_threads()
        if count < 2 or len(items) < 2:
            return [work(item) for item in items]
        return list(self._open(count).map(work, items))

    def _open(self, count: int) -> ThreadPoolExecutor:
        with self._guard:
            if self._pool is None:
                pool = ThreadPoolExecutor(count, "lane", _one_core)
                # The barrier makes every thread start now, so that each runs its initialiser before
                # the next line.
                together = threading.Barrier(count)
                list(pool.map(lambda _: together.wait(), range(count)))
                # What a thread sets is also what threads to come begin with.
                torch.set_num_threads(count)
                self._pool = pool
            return self._pool


def _one_core() -> None:
    torch.get_num_threads()  # the first look in a thread overrides what was set before it
    torch.set_num_threads(1)


def open_model(source: str | Path) -> Model:
    """A model folder, a checkpoint or a hub name, loaded where it runs fastest."""
    model = Model.open(source)
    return model.to("cuda") if torch.cuda.is_available() else model


def load_model(source: Model | str | Path) -> Model:
    """The model of a folder, a checkpoint or a hub name; one that is loaded stays as it is."""
    return source if isinstance(source, Model) else Model.open(source)


def open_joint(model: Model) -> TorchRuntime:
    """A runtime for the same weights unsplit."""
    return TorchRuntime(Model.split(model, at=0))


def open_torch(source: Model | str | Path, codec: Codec | None, name: str) -> Runtime:
    """A runtime in torch: on a GPU, by its fast path where that is possible; else on the CPU."""
    model = load_model(source)
    if name != "torch" and (fast := _cuda(model, codec, name)):
        return fast
    if model is not source and torch.cuda.is_available():
        # Only a model that was loaded here is moved: the caller's own stays where it is.
        half = name == "auto" and torch.cuda.is_bf16_supported()
        model.to("cuda", torch.bfloat16 if half else None)
    return TorchRuntime(model, codec)


def _cuda(model: Model, codec: Codec | None, name: str) -> Runtime | None:
    """The fast path for GPUs, where the machine and the model allow it."""
    forced = name == "cuda"
    if lacks := _cuda_lacks():
        if forced:
            raise InputError(f"runtime {name!r} cannot run here: {lacks}; choose auto or torch")
        return None
    from decoupled.runtime.cuda.runtime import CudaRuntime
    from decoupled.runtime.cuda.weights import unsupported_reason

    if not forced and (why := unsupported_reason(model.spec)):
        log.warning(
            "a %s model runs on the GPU through torch, without the fast path: %s",
            model.spec.family,
            why,
        )
        return None
    return CudaRuntime(model, codec)


def _cuda_lacks() -> str | None:
    """What this machine lacks for the fast path; None where it lacks nothing."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if torch.cuda.get_device_capability() < (8, 0):
        return f"{torch.cuda.get_device_name()} has no bf16 arithmetic"
    if find_spec("triton") is None:
        return "the package triton is not installed"
    import triton

    major, minor = (int(part) for part in triton.__version__.split(".")[:2])
    if (major, minor) < OLDEST_TRITON:
        return f"triton {triton.__version__} is older than {'.'.join(map(str, OLDEST_TRITON))}"
    return None
