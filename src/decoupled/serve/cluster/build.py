"""Open the workers that a build is to have: processes of this machine, or actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from decoupled.errors import InputError
from decoupled.index.ingest import Workers
from decoupled.serve.cluster.actors import Actors
from decoupled.serve.cluster.processes import Processes
from decoupled.serve.cluster.ray import connected


@contextmanager
def workers_of(
    path: str | Path, *, cluster: str | None, count: int | None, runtime: str = "auto"
) -> Iterator[Workers | None]:
    """Workers for the index at `path`; None where neither a cluster nor several workers are wanted.

    Every worker must reach the path: on several machines it is a shared folder or an object store.
    """
    if count is not None and count < 1:
        raise InputError(f"{count} workers; expected 1 or more")
    if cluster is not None:
        with connected(cluster, cpus=count) as ray, Actors(ray, path, count, runtime=runtime) as it:
            yield it
    elif count is not None and count > 1:
        with Processes(path, count, runtime=runtime) as processes:
            yield processes
    else:
        yield None
