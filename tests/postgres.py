"""A private PostgreSQL for tests, of the package `pgserver` or of Debian; skipped where neither is."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _bin() -> Path | None:
    """The folder of the programs of the newest PostgreSQL that Debian installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@contextmanager
def server(password: str = "s3cr:t@x") -> Iterator[dict[str, str | int]]:
    """Host, port, user and password of a server that lives as long as the block."""
    if (programs := _bin()) is None:
        pytest.skip("PostgreSQL is not installed; apt-get install postgresql brings it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="postgres"))
    # It declines to run as root.
    user = "postgres" if os.geteuid() == 0 else None
    secret = folder / "secret"
    secret.write_text(password)
    if user:
        shutil.chown(folder, user)
        shutil.chown(secret, user)

    def run(program: str, *words: str) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([programs / program, *words], check=True, user=user, cwd=folder, **quiet)

    data = str(folder / "data")
    try:
        run("initdb", "-D", data, "-U", "reader", "-A", "scram-sha-256", f"--pwfile={secret}", "-N")
        options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
        run("pg_ctl", "-D", data, "-w", "-o", options, "start")
        yield {"host": "127.0.0.1", "port": port, "user": "reader", "password": password}
    finally:
        if (Path(data) / "postmaster.pid").exists():
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder)
