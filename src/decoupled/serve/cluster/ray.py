"""How Ray is reached: an address, or a small cluster on this machine."""

import os
import secrets
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from decoupled.errors import DecoupledError, MissingDependency
from decoupled.model.jsonable import JsonObject

LOCAL = "local"


@contextmanager
def connected(address: str, *, cpus: int | None = None) -> Iterator[Any]:
    """Ray, connected for as long as the block runs; `local` starts a cluster on this machine.

    A connection that the process has already is used, and left as it is.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without this Ray hides GPUs from workers that ask for none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    own = private() if address == LOCAL and "ray" not in sys.modules else {}
    with environment({name: value for name, value in own.items() if name not in os.environ}):
        try:
            ray = import_module("ray")
        except ModuleNotFoundError:
            raise MissingDependency("ray", "cluster") from None
        if ray.is_initialized():
            yield ray
        else:
            _start(ray, address, cpus)
            try:
                yield ray
            finally:
                ray.shutdown()


@cache
def private() -> Mapping[str, str]:
    """Settings that keep a cluster of this machine to it: whoever reaches a port of Ray can run code.

    Ray reads them when it is imported; for one who did that before, it makes a token itself. It listens on
    loopback alone, as it does by itself on other systems than Linux, and asks for a token that only this
    process and its workers know.
    """
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", **token}


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, for this process and those that are started, while the block runs."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _start(ray: Any, address: str, cpus: int | None) -> None:
    quiet: JsonObject = {"log_to_driver": False, "logging_level": "WARNING"}
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
