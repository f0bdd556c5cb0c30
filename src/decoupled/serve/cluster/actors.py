"""Workers on a Ray cluster: actors, restarted by Ray when they or their machine die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from decoupled.errors import DecoupledError
from decoupled.index.store.commit import Staged
from decoupled.model.tokens import Passage
from decoupled.serve.cluster.worker import DEPTH, Encoder, address_of, in_order

TRIES = 5
"""How often Ray sends a part again when its worker dies."""


class Actors:
    """Implements `Workers` with Ray actors.

    with connected("local") as ray, Actors(ray, "docs.idx", 2) as workers:
        index.add(passages, workers=workers)
    """

    def __init__(
        self,
        ray: Any,
        path: str | Path,
        count: int | None = None,
        *,
        threads: int = 1,
        runtime: str = "auto",
    ) -> None:
        """`count` actors, by default one for each GPU, or for each `threads` cores where there is none."""
        self._ray = ray
        there = ray.cluster_resources()
        gpus = int(there.get("GPU", 0))
        self.count = count or gpus or max(1, int(there.get("CPU", 1)) // threads)
        kind = ray.remote(
            num_cpus=threads,
            num_gpus=1 if gpus >= self.count else 0,
            max_restarts=-1,
            max_task_retries=TRIES,
        )(Encoder)
        self.actors = [kind.remote(address_of(path), runtime) for _ in range(self.count)]
        self._load = [0] * self.count

    def __enter__(self) -> Actors:
        return self

    def __exit__(self, *exception: object) -> None:
        for actor in self.actors:
            self._ray.kill(actor)

    def stage(self, parts: Iterator[list[Passage]]) -> Iterator[list[Staged]]:
        """What became of each part, in their order."""
        return in_order(
            parts,
            send=self._send,
            is_done=self._is_done,
            result=self._result,
            ahead=DEPTH * self.count,
        )

    def _send(self, part: list[Passage]) -> tuple[int, Any, str]:
        """To the worker with the fewest parts that nobody has fetched yet."""
        idlest = self._load.index(min(self._load))
        self._load[idlest] += 1
        return idlest, self.actors[idlest].stage.remote(part), part[0].id

    def _is_done(self, sent: tuple[int, Any, str]) -> bool:
        return bool(self._ray.wait([sent[1]], timeout=0)[0])

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
