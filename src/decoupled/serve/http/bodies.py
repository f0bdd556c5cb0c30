"""Bodies of requests: bounded while they arrive, then parsed and validated without holding the event loop.

Nothing that takes long may be done in one call of C, which keeps the interpreter's lock: a body beyond a
megabyte is decoded in pieces and parsed value by value, in a thread, and validation stops at its first few
errors. Smaller ones are parsed at once: threads that compute in Python slow each read of a socket.
"""

import asyncio
import codecs
import ctypes
import json
import json.scanner
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from math import isfinite
from typing import Any

import numpy as np
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.responses import Response
from starlette.types import Receive

from decoupled.serve.http.limits import Limits
from decoupled.serve.http.responses import SMALL, RequestProblem
from decoupled.serve.http.service import Service

STOP = Field(fail_fast=True)
"""A list that is validated up to its first bad item: a million errors take minutes to make."""
LISTS = (
    "documents",
    "texts",
    "ids",
    "passages",
    "queries",
    "items",
    "text_1",
    "text_2",
    "data_1",
    "data_2",
)
"""Fields whose items `Limits.documents` bounds."""

_PIECE = 1 << 20
# Opening brackets as +1, closing as -1, commas as 0: the running sum is the depth.
_STEPS = bytes.maketrans(b"[{]},", b"\x01\x01\xff\xff\x00")
_REST = bytes(set(range(256)) - set(b"[{]},"))


class ClientLeft(Exception):
    """The connection was closed before there was an answer."""


class Outline:
    """How many values a JSON document has and how deep they lie, counted while it arrives."""

    def __init__(self) -> None:
        self.values = self.depth = 0
        self._level, self._quoted, self._rest = 0, False, b""

    def feed(self, part: bytes) -> None:
        """Count the next bytes of the document."""
        if self._rest or b"\\" in part:
            # Once escaped backslashes and quotes are gone, every quote begins or ends a string.
            part = (self._rest + part).replace(rb"\\", b"").replace(rb"\"", b"")
            self._rest = part[-1:] if part.endswith(b"\\") else b""
        pieces = part.split(b'"')
        # Every second piece lies outside of strings; only brackets and commas of it are kept.
        marks = b"".join(pieces[int(self._quoted) :: 2]).translate(None, _REST)
        # An odd number of quotes: the next part begins on the other side of a string's end.
        self._quoted ^= len(pieces) % 2 == 0
        if marks:
            # Each comma and each opening bracket stands for one value.
            self.values += len(marks) - marks.count(b"]") - marks.count(b"}")
            levels = np.frombuffer(marks.translate(_STEPS), np.int8).cumsum(dtype=np.int64)
            self.depth = max(self.depth, self._level + int(levels.max()))
            self._level += int(levels[-1])


class Bodies:
    """Reads the bodies of all clients, within one bound on the bytes that they hold together."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._turn = asyncio.Lock()
        """One part of one large body for each turn of the event loop, however many clients send them."""
        self.held = 0
        """Bytes of bodies that are arriving or being answered, beyond the `SMALL` that each may have."""

    @asynccontextmanager
    async def read(self, receive: Receive, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The whole body, if it is plain, small enough and comes in time; it counts until the block ends."""
        coding = headers.get("content-encoding", "identity")
        if coding.lower() not in ("", "identity"):
            message = (
                f"the body is encoded as {coding[:40]!r}, which is not read here; send it plain"
            )
            raise RequestProblem(415, message, headers={"accept-encoding": "identity"})
        size = headers.get("content-length", "0")
        if size.isdecimal():
            self._limits.check("body_bytes", "the size of the body", int(size))
        # A document is not JSON, and JSON that is not called so is not parsed.
        body, named = bytearray(), headers.get("content-type", "").lower()
        outline = Outline() if "json" in named else None
        held, refusal = 0, None
        try:
            async for part in self._parts(receive):
                # What is refused is read to its end, or the client would not read the answer.
                if refusal is not None:
                    continue
                body += part
                more = max(0, len(body) - SMALL) - held
                self.held, held = self.held + more, held + more
                try:
                    self._check(outline, part)
                except RequestProblem as problem:
                    self.held, held, refusal = self.held - held, 0, problem
                    body.clear()
            if refusal is not None:
                raise refusal
            yield bytes(body)
        finally:
            self.held -= held
            if held > _PIECE:  # when its answer was sent, and nothing holds it any more
                loop = asyncio.get_running_loop()
                loop.call_later(1.0, loop.run_in_executor, None, _return_memory)

    def _check(self, outline: Outline | None, part: bytes) -> None:
        if outline is not None:
            outline.feed(part)
            self._limits.check("depth", "the depth of the body", outline.depth)
            self._limits.check("values", "the number of values in the body", outline.values)
        bound = self._limits.bytes_in_flight
        if self.held > bound:
            why = f"bodies of {bound:,} bytes are under way, this server's limit bytes_in_flight"
            after = {"retry-after": "1"}
            raise RequestProblem(503, f"{why}; try again later", kind="overloaded", headers=after)

    async def _parts(self, receive: Receive) -> AsyncIterator[bytes]:
        """Yield the parts of a body as they arrive, within the limits on size and time."""
        total, seconds = 0, self._limits.body_seconds
        deadline = time.monotonic() + seconds
        while True:
            try:
                part = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except (TimeoutError, asyncio.TimeoutError):
                late = "the body did not arrive within this server's limit body_seconds"
                close = {"connection": "close"}
                raise RequestProblem(
                    408, f"{late} = {seconds:g}", kind="timeout", headers=close
                ) from None
            if part["type"] == "http.disconnect":
                raise ClientLeft
            total += len(part.get("body", b""))
            self._limits.check("body_bytes", "the size of the body", total)
            if total > SMALL:
                async with self._turn:
                    await asyncio.sleep(0)
            yield part.get("body", b"")
            if not part.get("more_body"):
                return


def _return_memory() -> None:
    """Give what a large request needed back to the system, where the allocator can do that."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Reading(APIRoute):
    """A route whose large bodies are parsed and validated in a thread."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, which passes on what is valid already."""
        handler, field = super().get_route_handler(), self.body_field

        def read(content: bytes, limits: Limits) -> Any:
            value = parse(content)
            for name in LISTS if isinstance(value, dict) else ():
                if isinstance(value.get(name), list):
                    limits.check("documents", f"the number of {name}", len(value[name]))
            assert field is not None
            valid, errors = field.validate(value, {}, loc=("body",))
            if errors:
                raise RequestValidationError(errors)
            return valid

        async def handle(request: Request) -> Response:
            if field is not None and "json" in request.headers.get("content-type", ""):
                content = await request.body()
                if not json.detect_encoding(content[:4]).startswith("utf-8"):
                    raise RequestProblem(400, "the body is not JSON in UTF-8")
                if len(content) > SMALL:
                    service: Service = request.app.state.service
                    value = await service.in_thread(read, content, service.limits)
                    request = Parsed(request, value)
                elif content:
                    request = Parsed(request, parse(content))
            return await handler(request)

        return handle


class Parsed(Request):
    """A request with a body that was parsed and validated."""

    def __init__(self, request: Request, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._value = value

    async def body(self) -> bytes:
        """Any bytes that are not empty: FastAPI only asks whether there is a body."""
        return b"{}"

    async def json(self) -> Any:
        """The body's value, which was parsed and validated before."""
        return self._value


class _Decoder(json.JSONDecoder):
    """Makes lists and objects in Python, strings and numbers in C."""

    def __init__(self) -> None:
        super().__init__(parse_constant=_no_number, parse_float=_finite)
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def _no_number(text: str) -> float:
    """Refuse what Python reads as a number and no other client could read in an answer."""
    raise RequestProblem(422, f"the body holds {text[:20]}, which is no number of JSON")


def _finite(text: str) -> float:
    return number if isfinite(number := float(text)) else _no_number(text)


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


def parse(content: bytes) -> Any:
    """The value of a JSON document, a large one made in small steps between which other threads run."""
    pieces = (content[n : n + _PIECE] for n in range(0, len(content), _PIECE))
    try:
        text = "".join(codecs.iterdecode(pieces, "utf-8-sig", "surrogatepass"))
    except UnicodeDecodeError:
        raise RequestProblem(400, "the body is not JSON in UTF-8") from None
    try:
        decoder = _DECODER if len(content) <= _PIECE else _Decoder()
        return decoder.decode(text)
    except ValueError as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else "a number is too long"
        raise RequestProblem(400, f"the body is not JSON: {why}") from None
