"""Connections: uvicorn's protocol, bounded in their number, in the head of a request, and in time.

uvicorn has no time limit for headers and httptools none for their size. Connections that wait for a request
give way to new ones, so that neither idle nor half-open ones can shut anybody out.
"""

import asyncio
import json
import logging
import time
from asyncio import TimerHandle
from collections import Counter
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NoReturn

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from decoupled.serve.http.limits import Limits

_log = logging.getLogger(__name__)

ACCEPTED = 64
"""Connections that the event loop accepts at a time, before any of them can be closed again."""
RESERVED = 2 * ACCEPTED + 128
"""Descriptors that connections leave to those on their way in and out, to the index and to logs."""
PIECE = 32 << 10
"""Bytes that are read from a connection before it is the turn of the others; asyncio takes 256 KiB."""
PIPELINED = 16
"""Requests that a client may send without waiting for an answer."""
TAKEN = 64 << 10
"""Bytes of an answer that a client takes in `_STALLED` seconds, or is no longer waited for."""
# Seconds between log lines, between probes of a client, and for it to take `TAKEN` bytes.
_QUIET, _PROBES, _STALLED = 10.0, (0.05, 0.25, 1.0), 30.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Gate:
    """What the connections of a server share: those that wait for a request, the longest waiting first.

    Answers that were sent and not yet taken hold as many bytes together as bodies may.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.most = limits, most_connections(limits.connections)
        self.waiting: dict[Connection, None] = {}
        self.unread: dict[Connection, None] = {}
        self._events: Counter[str] = Counter()
        self._told = -_QUIET

    def make_room(self) -> bool:
        """Close the connection that has waited longest, if any waits."""
        longest = next(iter(self.waiting), None)
        if longest is not None:
            del self.waiting[longest]
            longest.transport.abort()
        return longest is not None

    def bound_unread(self) -> None:
        """Close the connections that have been taking their answers longest, while all hold too much."""
        sizes = {each: each.transport.get_write_buffer_size() for each in self.unread}
        held = sum(sizes.values())
        for each, size in sizes.items():
            if held <= self.limits.bytes_in_flight:
                return
            each.drop("closed, since answers that were not read held bytes_in_flight")
            held -= size

    def note(self, event: str) -> None:
        """Log what happened; what happens again soon is counted in the next line."""
        self._events[event] += 1
        if time.monotonic() - self._told >= _QUIET:
            counts = "; ".join(f"{count} {what}" for what, count in self._events.items())
            _log.warning("connections, at most %d: %s", self.most, counts)
            self._events.clear()
            self._told = time.monotonic()


def most_connections(limit: int) -> int:
    """Connections that this process can have, at most `limit`; raises its limit of open files if it can."""
    try:
        import resource
    except ModuleNotFoundError:
        return limit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < limit + RESERVED:
        more = limit + RESERVED if hard == resource.RLIM_INFINITY else min(hard, limit + RESERVED)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
        return max(16, min(limit, soft - RESERVED))
    return limit


class Connection(HttpToolsProtocol):
    """One connection; it is in `gate.waiting` whenever a complete head of a request is waited for."""

    def __init__(self, *args: Any, gate: Gate, **options: Any) -> None:
        super().__init__(*args, **options)
        self._gate = gate
        self._deadline: TimerHandle | None = None
        self._reading: TimerHandle | None = None
        self._in_head, self._head, self._refusal = False, 0, (400, "")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection; where there are too many, close one that waits for a request."""
        super().connection_made(transport)
        with suppress(AttributeError):  # only asyncio's own transports have it
            transport.max_size = PIECE  # type: ignore[attr-defined]
        if len(self.connections) > self._gate.most:
            if not self._gate.make_room():
                self._gate.note("refused, while all others were being answered")
                self._refuse(503, "too many connections; try again later")
                return
            self._gate.note("closed while waiting for a request, to let others in")
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that was closed."""
        self._stop_waiting()
        self._gate.unread.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head; its time begins with its first byte."""
        if self in self._gate.waiting and self._deadline is None:
            self._wait_for_head()
        in_head = self._in_head
        super().data_received(data)
        # A head that ended within this piece was counted by its headers already.
        if in_head and self._in_head:
            self._head += len(data)
            if self._head > self._gate.limits.header_bytes:
                self._gate.note("closed for headers beyond the limit")
                self._refuse(431, self._too_large)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio asks whether to keep it
        """A client that sent its whole request and closed its side may still wait for the answer."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        cycle.keep_alive = False
        self._probe(0)
        return True

    def _probe(self, turn: int) -> None:
        """Send an interim answer; if the client left, its system refuses it and the connection ends."""
        cycle = self.cycle
        if self.transport.is_closing() or cycle.response_started or self.pipeline:
            return
        if cycle.scope["http_version"] == "1.1":
            self.transport.write(_CONTINUE)
            self.loop.call_later(_PROBES[min(turn, len(_PROBES) - 1)], self._probe, turn + 1)

    # Callbacks of the parser ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin to count the head of a request."""
        super().on_message_begin()
        self._in_head, self._head = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one more header, or stop the parser at the first beyond the limit."""
        super().on_header(name, value)
        if len(self.headers) > self._gate.limits.headers:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        """A request begins to be answered, unless its head is too large."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._gate.limits.header_bytes:
            self._refuse_head()
        if len(self.pipeline) >= PIPELINED:
            self._refusal = (
                429,
                f"more than {PIPELINED} requests were sent at once; wait for answers",
            )
            # The parser stops at an exception, and uvicorn then calls `send_400_response`.
            raise ValueError(self._refusal[1])
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, and for the client to take what was sent."""
        super().on_response_complete()
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self._gate.waiting[self] = None
        if self._reading is not None:  # an earlier answer was read, or this one were not sent
            self._reading.cancel()
        if left := self.transport.get_write_buffer_size():
            self._gate.unread[self] = None
            self._gate.bound_unread()
            self._reading = self.loop.call_later(_STALLED, self._check_taken, left)

    def _check_taken(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if not left:
            self._gate.unread.pop(self, None)
        elif left > before - TAKEN:
            self.drop("closed, since the client did not read its answer")
        else:
            self._reading = self.loop.call_later(_STALLED, self._check_taken, left)

    def drop(self, why: str) -> None:
        """Close the connection at once, without sending the rest of its answer."""
        self._gate.unread.pop(self, None)
        self._gate.note(why)
        self.transport.abort()

    # Refusing -------------------------------------------------------------------------------------

    def _refuse_head(self) -> NoReturn:
        """Stop the parser by an exception, and remember to answer with status 431."""
        self._gate.note("closed for headers beyond the limit")
        self._refusal = 431, self._too_large
        raise ValueError(self._too_large)

    @property
    def _too_large(self) -> str:
        limits = self._gate.limits
        bounds = f"header_bytes = {limits.header_bytes:,}, headers = {limits.headers}"
        return f"the headers are beyond this server's limits {bounds}; send less"

    def _wait_for_head(self) -> None:
        seconds = self._gate.limits.header_seconds
        self._gate.waiting[self] = None
        self._deadline = self.loop.call_later(seconds, self._late)

    def _stop_waiting(self) -> None:
        self._gate.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        seconds = self._gate.limits.header_seconds
        self._gate.note(f"closed without a request within {seconds:g} s")
        late = f"no request within this server's limit header_seconds = {seconds:g}"
        self._refuse(408, late)

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser does not read."""
        status, why = self._refusal
        self._refuse(status, why or msg)

    def _refuse(self, status: int, why: str) -> None:
        """Send an error in the form of our own routes, and close the connection."""
        self._stop_waiting()
        if self.transport.is_closing():
            return
        kind = "overloaded" if status == 503 else "limit" if status in (429, 431) else "validation"
        body = json.dumps({"error": why, "error_type": kind, "request_id": ""}).encode()
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "content-type: application/json"]
        lines += [f"content-length: {len(body)}", "connection: close"]
        lines += ["retry-after: 1"] if status in (429, 503) else []
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()
