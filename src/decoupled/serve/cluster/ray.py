"""How Ray is reached: an address, or a small cluster on this machine."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from decoupled.errors import DecoupledError, MissingDependency

LOCAL = "local"


@contextmanager
def connected(address: str, *, cpus: int | None = None) -> Iterator[Any]:
    """Ray, connected for as long as the block runs; `local` starts a cluster on this machine.

    A connection that the process has already is used, and left as it is.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Workers keep the environment they are given; without this Ray hides GPUs from those that ask for none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray = import_module("ray")
    except ModuleNotFoundError:
        raise MissingDependency("ray", "cluster") from None
    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "WARNING"}
    here = {"num_cpus": cpus, "object_store_memory": 256 << 20, "include_dashboard": False}
    try:
        with warnings.catch_warnings():
            # Ray forks only to start programs anew, which Lance cannot know.
            warnings.filterwarnings("ignore", message="lance is not fork-safe")
            if address == LOCAL:
                ray.init(_node_ip_address="127.0.0.1", **here, **quiet)
            else:
                # Ray itself would end the process after a while where nobody listens.
                host, _, port = address.rpartition("//")[2].rpartition(":")
                if host and port.isdigit():
                    socket.create_connection((host, int(port)), timeout=5).close()
                ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise DecoupledError(
            f"no Ray cluster answers at {address!r} ({error}); start one with `ray start --head`, or "
            f"say {LOCAL!r} for one on this machine"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()
