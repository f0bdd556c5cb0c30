"""The door of the server: request id, key, bounded body, a watch on the client, one line of log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
import uuid
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from decoupled.serve.http import problems
from decoupled.serve.http.access import Access
from decoupled.serve.http.limits import Limits
from decoupled.serve.http.metrics import Metrics
from decoupled.serve.http.problems import Problem

log = logging.getLogger("decoupled.access")

LEFT = 499
"""What is logged for a client that did not wait; nobody is there to read it."""
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, limits: Limits, access: Access, metrics: Metrics) -> None:
        self._app, self._limits, self._access, self._metrics = app, limits, access, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = _Visit(scope)

        async def sending(message: Message) -> None:
            visit.note(message)
            await send(message)

        try:
            self._access.check(visit.method, scope["path"], visit.headers)
            body = await read_body(receive, visit.headers, self._limits)
            await until_left(self._app, visit.scope, body, receive, sending)
        except ClientLeft:
            visit.status = visit.status or LEFT
        except Exception as error:
            problem = problems.of(error)
            if problem.status == 500:
                logging.getLogger(__name__).exception("request %s failed", visit.id)
            if not visit.status:
                await answer(problem, scope, sending, visit.id)
        finally:
            self._metrics.request(visit.route, visit.status, visit.seconds)
            visit.write()


class ClientLeft(Exception):
    """The connection was closed before there was an answer."""


class _Visit:
    """One request as the log and the metrics see it: no text, no key."""

    def __init__(self, scope: Scope) -> None:
        self.method = scope["method"]
        # What GET answers, HEAD answers too; the server leaves the body out.
        self.scope = {**scope, "method": "GET"} if self.method == "HEAD" else scope
        self.headers = Headers(scope=scope)
        given = self.headers.get("x-request-id", "")
        self.id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        self.status = 0
        self._begun = time.perf_counter()
        self.scope.setdefault("state", {})["request_id"] = self.id

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begun

    @property
    def route(self) -> str:
        """The path as it is declared, so that ids of passages stay out of logs and labels."""
        return getattr(self.scope.get("route"), "path", "other")

    def note(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.id
            headers["x-total-time"] = str(round(self.seconds * 1e3))

    def write(self) -> None:
        log.info(
            "request",
            extra={
                "request_id": self.id,
                "method": self.method,
                "route": self.route,
                "status": self.status,
                "ms": round(self.seconds * 1e3, 1),
            },
        )


async def read_body(receive: Receive, headers: Mapping[str, str], limits: Limits) -> bytes:
    """The whole body, if it is plain, small enough and comes in time."""
    coding = headers.get("content-encoding", "identity")
    if coding.lower() not in ("", "identity"):
        raise Problem(
            status=415,
            message=f"the body is encoded as {coding[:40]!r}, which is not read here; send it plain",
            headers={"accept-encoding": "identity"},
        )
    size = headers.get("content-length", "0")
    if size.isdecimal() and int(size) > limits.body_bytes:
        raise body_too_long(int(size), limits)
    parts: list[bytes] = []
    length = 0
    deadline = time.monotonic() + limits.body_seconds
    while True:
        try:
            message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
        except (TimeoutError, asyncio.TimeoutError):
            raise Problem(
                status=408,
                message=f"the body did not arrive within this server's limit body_seconds = "
                f"{limits.body_seconds:g}",
                kind="timeout",
                headers={"connection": "close"},
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientLeft
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > limits.body_bytes:
            raise body_too_long(length, limits)
        if not message.get("more_body"):
            return b"".join(parts)


def body_too_long(size: int, limits: Limits) -> Problem:
    """A body beyond the limit; what is left of it is not read."""
    problem = problems.too_long(
        "the size of the body", size, "body_bytes", limits.body_bytes, status=413
    )
    problem.headers["connection"] = "close"
    return problem


async def until_left(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """Run the application on a body that was read; cancel it when the client closes the connection."""
    left = asyncio.Event()
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            await left.wait()
            return {"type": "http.disconnect"}
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    work = asyncio.ensure_future(app(scope, again, send))
    watch = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientLeft
        await work
    finally:
        left.set()
        work.cancel()
        watch.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)


async def answer(problem: Problem, scope: Scope, send: Send, request_id: str) -> None:
    """A problem in the shape that the route's clients expect."""
    path = scope["path"]
    body = problems.body_for(path, problem, request_id)
    await send_json(send, problems.status_for(path, problem), body, problem.headers)


async def send_json(send: Send, status: int, body: Any, headers: Mapping[str, str]) -> None:
    """One JSON response."""
    content = json.dumps(body).encode()
    names = {
        "content-type": "application/json",
        "content-length": str(len(content)),
        **headers,
    }
    raw = [(name.encode(), value.encode("latin-1")) for name, value in names.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": content})
