"""Listen: uvicorn with one process, JSON logs on stderr, a stop that finishes what was accepted."""

from __future__ import annotations

import ctypes
import json
import logging
import signal
import socket
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import uvicorn
from fastapi import FastAPI

from decoupled.errors import InputError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
GRACE = 30
"""Seconds that a stop waits for answers that are under way."""


class JsonLines(logging.Formatter):
    """One JSON object a line; times are UTC."""

    FIELDS = ("request_id", "method", "route", "status", "ms")

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in self.FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_config(level: str) -> dict[str, Any]:
    """For `logging.config`: everything as JSON lines on stderr."""
    handler = {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonLines}},
        "handlers": {"stderr": handler},
        "loggers": {
            "decoupled": {"handlers": ["stderr"], "level": level.upper(), "propagate": False},
            "uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
        },
    }


def bind(host: str, port: int) -> socket.socket:
    """Take an address, without listening yet; port 0 takes any that is free."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        taken = socket.socket(family, kind, number)
    except OSError as error:
        raise InputError(f"{host} is no address of this machine ({error.strerror})") from None
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        taken.close()
        raise InputError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another --host or --port"
        ) from None
    return taken


def steady_memory() -> None:
    """Give large blocks back when freed: glibc would keep ever more of them, as batches vary in size."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(option, 1 << 20)


def listen(app: FastAPI, taken: socket.socket, *, level: str = "info") -> None:
    """Serve until a signal; then answer what was accepted, and return."""
    config = uvicorn.Config(
        app,
        log_config=log_config(level),
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=GRACE,
    )
    steady_memory()
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal again when it is done, for whoever handled it before: us.
        signal.signal(number, lambda *_: None)
    uvicorn.Server(config).run(sockets=[taken])
