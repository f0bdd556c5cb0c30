"""Workers of a build on a Ray cluster: actors that encode parts and write them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from decoupled.errors import DecoupledError
from decoupled.index.store.base import Staged
from decoupled.index.store.location import location_of
from decoupled.index.workers import AHEAD, TRIES, Encoder, in_order
from decoupled.model.tokens import Passage
from decoupled.serve.cluster.ray import connected


@contextmanager
def cluster_workers(
    path: str | Path, address: str, count: int | None, *, runtime: str = "auto"
) -> Iterator[Actors]:
    """Actors for the index at `path` on the cluster at that address, for as long as the block runs."""
    with connected(address, cpus=count) as ray, Actors(ray, path, count, runtime=runtime) as actors:
        yield actors


class Actors(AbstractContextManager["Actors"]):
    """Implements `Workers` with Ray actors, restarted by Ray when they or their machine die.

    with connected("local") as ray, Actors(ray, "docs.idx", 2) as workers:
        index.add(passages, workers=workers)
    """

    def __init__(
        self, ray: Any, path: str | Path, count: int | None = None, *, runtime: str = "auto"
    ) -> None:
        """`count` actors, by default one for each GPU, or for each core where there is none."""
        there = ray.cluster_resources()
        gpus = int(there.get("GPU", 0))
        count = count or gpus or max(1, int(there.get("CPU", 1)))
        # With fewer GPUs than actors nobody asks for one, or some actors would never start.
        resources = {"num_cpus": 1, "num_gpus": 1 if gpus >= count else 0}
        kind = ray.remote(**resources, max_restarts=-1, max_task_retries=TRIES)(Encoder)
        self._ray, self._load = ray, [0] * count
        self._actors = [kind.remote(location_of(path).address, runtime) for _ in self._load]

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            self._ray.kill(actor)

    def stage(self, parts: Iterator[list[Passage]]) -> Iterator[list[Staged]]:
        """Yield the staged parts in their order, those that are ready together."""

        def is_done(sent: tuple[int, Any, str]) -> bool:
            return bool(self._ray.wait([sent[1]], timeout=0)[0])

        return in_order(parts, self._send, is_done, self._result, AHEAD * len(self._actors))

    def _send(self, part: list[Passage]) -> tuple[int, Any, str]:
        """Send a part to the worker with the fewest parts under way; returns what `_result` needs."""
        idlest = self._load.index(min(self._load))
        self._load[idlest] += 1
        return idlest, self._actors[idlest].stage.remote(part), part[0].id

    def _result(self, sent: tuple[int, Any, str]) -> Staged:
        number, reference, first = sent
        try:
            staged: Staged = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DecoupledError):
                raise error.cause from None
            raise
        except self._ray.exceptions.RayError as error:
            raise DecoupledError(
                f"a worker died {TRIES + 1} times over the passages from {first!r} on "
                f"({type(error).__name__}); is memory short? Use fewer workers"
            ) from None
        self._load[number] -= 1
        return staged
