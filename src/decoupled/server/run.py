"""Listen: uvicorn with one process, JSON logs on stderr, a stop that finishes what was accepted."""

from __future__ import annotations

import json
import logging
from typing import Any

import uvicorn
from fastapi import FastAPI

GRACE = 30
"""Seconds that a stop waits for answers that are under way."""


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    FIELDS = ("request_id", "method", "route", "status", "ms")

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
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


def listen(app: FastAPI, *, host: str, port: int, level: str = "info") -> None:
    """Serve until a signal; then answer what was accepted, and return."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=log_config(level),
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=GRACE,
        h11_max_incomplete_event_size=64 << 10,
    )
    uvicorn.Server(config).run()
