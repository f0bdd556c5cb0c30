"""Shards on Ray Serve: one application per share of the index, with replicas, restarted when they die."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from decoupled.errors import DecoupledError, InputError
from decoupled.index.index import Index
from decoupled.index.manifest import read_manifest
from decoupled.index.store.base import Share
from decoupled.index.store.location import location_of
from decoupled.model.jsonable import JsonObject
from decoupled.search.engine import Engine
from decoupled.serve.cluster.engine import SECONDS, ShardedEngine, ShardLost
from decoupled.serve.cluster.ray import connected
from decoupled.serve.live import LiveEngine

QUEUE = 4
"""Calls that a replica may have at once; where more wait, Ray Serve starts another replica."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How an index is spread over a cluster."""

    shards: int = 2
    replicas: int = 1
    """Processes of each shard that always run."""
    most_replicas: int = 1
    """Processes of each shard under load."""
    threads: int = 1
    """Cores of each process."""
    gpus: float = 0
    """GPUs of each process; a fraction shares one."""
    memory: str | None = None
    """Budget, such as 2GB, within which each process keeps states in memory."""
    runtime: str = "auto"

    def __post_init__(self) -> None:
        if self.shards < 1 or self.replicas < 1:
            raise InputError(
                f"{self.shards} shards of {self.replicas} replicas; expected at least 1 of each"
            )


class ShardServer:
    """An engine over one share, as a replica of a shard."""

    def __init__(self, path: str, number: int, layout: Layout) -> None:
        share = Share(number=number, count=layout.shards)
        index = Index.open(path, runtime=layout.runtime, share=share)
        # Which candidates are worth reading is a matter of all of them, and no shard has those.
        self._live = LiveEngine(Engine(index, memory=layout.memory, cascade=1.0))
        _ = self._live.engine.runtime  # loaded before the first query comes

    def call(self, method: str, args: tuple[Any, ...], options: JsonObject) -> Any:
        """Call a method of the engine; returns its result, or the `DecoupledError` that it raised."""
        try:
            return getattr(self._live.refresh(), method)(*args, **options)
        # Returned and not raised: Ray would wrap it in an error of its own.
        except DecoupledError as error:
            return error


@dataclass(frozen=True)
class RemoteShard:
    """Implements `Shard` with a handle of Ray Serve."""

    handle: Any
    error: type[Exception]

    def send(self, method: str, *args: Any, **options: Any) -> Callable[[float], Any]:
        """Send the call to a replica; where it dies or is too slow, the shard counts as lost."""
        response = self.handle.call.remote(method, args, options)

        def wait(seconds: float) -> Any:
            try:
                value = response.result(timeout_s=seconds)
            except TimeoutError as error:
                # Nobody waits for it any more, and the replica has others to answer.
                response.cancel()
                raise ShardLost from error
            except self.error as error:
                raise ShardLost from error
            if isinstance(value, DecoupledError):
                raise value
            return value

        return wait


@contextmanager
def deployed(
    path: str | Path, layout: Layout, *, cluster: str = "local", seconds: float = SECONDS
) -> Iterator[ShardedEngine]:
    """The shards of an index, running for as long as the block runs, behind one engine.

    Every node must reach the path: on several machines it is a shared folder or an object store.
    """
    read_manifest(path)
    processes = layout.shards * max(layout.replicas, layout.most_replicas)
    # Ray Serve's own processes count as well.
    with connected(cluster, cpus=processes * layout.threads + 1) as ray:
        serve = import_module("ray.serve")
        serve.start(proxy_location="Disabled")
        try:
            shards = []
            for number in range(layout.shards):
                bound = _deployment(serve, layout).bind(location_of(path).address, number, layout)
                handle = serve.run(bound, name=f"shard-{number}", route_prefix=None)
                shards.append(RemoteShard(handle, ray.exceptions.RayError))
            yield ShardedEngine(shards, Index.open(path, runtime=layout.runtime), seconds=seconds)
        finally:
            serve.shutdown()


def _deployment(serve: Any, layout: Layout) -> Any:
    """A shard for Ray Serve: dead replicas are noticed within seconds, queues call for more of them."""
    replicas: JsonObject = {"num_replicas": layout.replicas}
    if layout.most_replicas > layout.replicas:
        bounds = {"min_replicas": layout.replicas, "max_replicas": layout.most_replicas}
        # At half of what a replica may have at once, another is started before anyone must wait.
        replicas = {"autoscaling_config": {**bounds, "target_ongoing_requests": QUEUE / 2}}
    return serve.deployment(
        ray_actor_options={"num_cpus": layout.threads, "num_gpus": layout.gpus},
        max_ongoing_requests=QUEUE,
        health_check_period_s=1,
        health_check_timeout_s=5,
        graceful_shutdown_timeout_s=2,
        **replicas,
    )(ShardServer)
