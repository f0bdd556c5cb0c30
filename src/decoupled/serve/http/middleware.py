"""Around every request: its id, access, a bounded body, cancellation when the client leaves, its log line."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from decoupled.model.jsonable import JsonObject
from decoupled.search import tracing
from decoupled.serve.http.bodies import Bodies, ClientLeft
from decoupled.serve.http.limits import Access, Limits
from decoupled.serve.http.metrics import Metrics
from decoupled.serve.http.responses import Json, RequestProblem, problem_of

access_log = logging.getLogger("decoupled.access")

LEFT = 499
"""Status in logs and metrics for a client that closed the connection before its answer."""
# A client's request id goes into logs and headers, so only plain characters are taken.
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

ErrorShape = Callable[[RequestProblem], tuple[int, JsonObject]]
"""The status and the JSON of a problem, as the clients of a route expect it."""


class Middleware:
    """ASGI middleware around the whole application.

    Paths in `errors` have their own shape of errors; `place` says where the index lies.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        access: Access,
        metrics: Metrics,
        errors: Mapping[str, ErrorShape],
        place: Callable[[], str],
    ) -> None:
        self._app, self._bodies, self._access = app, Bodies(limits), access
        self._metrics, self._errors, self._place = metrics, errors, place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request: check access, read its body, run the application, log it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        entry = _LogEntry(scope)

        async def sending(message: Message) -> None:
            entry.note(message)
            await send(message)

        try:
            self._access.check(entry.method, scope["path"], entry.headers)
            async with self._bodies.read(receive, entry.headers) as body:
                parent = entry.headers.get("traceparent", "")
                with tracing.span("decoupled.request", parent, request_id=entry.id):
                    await until_left(self._app, entry.scope, body, receive, sending)
        except ClientLeft:
            entry.status = entry.status or LEFT
        except Exception as error:
            problem = problem_of(error, self._place())
            if problem.status == 500:
                logging.getLogger(__name__).exception("request %s failed", entry.id)
            # Once the head of an answer was sent, there can be no other answer.
            if not entry.status:
                await self._error(scope["path"], problem, entry.id)(scope, receive, sending)
        finally:
            entry.write(self._metrics)

    def _error(self, path: str, problem: RequestProblem, request_id: str) -> Json:
        if shape := self._errors.get(path):
            status, body = shape(problem)
        else:
            status, body = problem.status, {"error": problem.message, "error_type": problem.kind}
            body["request_id"] = request_id
        return Json(body, status, headers=problem.headers)


class _LogEntry:
    """One request as the log and the metrics see it: no text, no key."""

    def __init__(self, scope: Scope) -> None:
        self.method = scope["method"]
        # What GET answers, HEAD answers too; the server leaves the body out.
        self.scope = {**scope, "method": "GET"} if self.method == "HEAD" else scope
        self.headers = Headers(scope=scope)
        request_id = self.headers.get("x-request-id", "")
        self.id = request_id if _ID.fullmatch(request_id) else uuid.uuid4().hex
        self.status = 0
        self._begun = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begun

    def note(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.id
            headers["x-total-time"] = str(round(self.seconds * 1e3))

    def write(self, metrics: Metrics) -> None:
        # The path as it is declared, so that ids of passages stay out of logs and labels.
        route, seconds = getattr(self.scope.get("route"), "path", "other"), self.seconds
        metrics.request(route, self.status, seconds)
        fields = {"request_id": self.id, "method": self.method, "route": route}
        fields |= {"status": self.status, "ms": round(seconds * 1e3, 1)}
        access_log.info("request", extra=fields)


async def until_left(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """Run the application on a body that was read; cancel it when the client closes the connection."""
    left = asyncio.Event()
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        if message := next(messages, None):
            return message
        await left.wait()
        return {"type": "http.disconnect"}

    work = asyncio.ensure_future(app(scope, replay, send))
    # The body was read, so the only message that is left is that the client went.
    watch = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientLeft
        await work
    finally:
        # The application may wait for the disconnect or for a result: both waits end here.
        left.set()
        work.cancel()
        watch.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)
