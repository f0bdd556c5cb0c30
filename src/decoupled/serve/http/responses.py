"""What goes back to a client: JSON of any text; and what goes wrong, as a status and a message."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from decoupled.errors import (
    DecoupledError,
    IndexBusy,
    InputError,
    MissingDependency,
    MissingRecord,
    SpecError,
)

SMALL = 64 << 10
"""Bytes of JSON that are read and written on the event loop; a body that small is always let in."""
_PATH = re.compile(r"(?:\w+:/)?/?(?:[\w.@~+-]+/){2,}([\w.@~+-]+)")
"""Where a file lies: an answer names the file alone."""


class Json(Response):
    """A JSON document. Lone surrogates, which UTF-8 cannot hold, are escaped."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The document's bytes."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8", "backslashreplace")


class LargeJson(Json):
    """A large JSON document, written in small steps between which other threads run."""

    def render(self, content: Any) -> bytes:
        """The document's bytes."""
        pieces = json.JSONEncoder(ensure_ascii=False, allow_nan=False).iterencode(content)
        return b"".join([piece.encode("utf-8", "backslashreplace") for piece in pieces])


@dataclass(eq=False)
class RequestProblem(Exception):
    """An answer that is not a result; `kind` is one word for programs."""

    status: int
    message: str
    kind: str = "validation"
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


def problem_of(error: Exception, place: str = "") -> RequestProblem:
    """Any error as a problem; what nobody expected says nothing about its cause.

    `place` is where the index lies, which answers do not tell: they name its last part.
    """
    problem = _problem_of(error)
    if place and not isinstance(error, MissingRecord):
        problem.message = problem.message.replace(place, place.rstrip("/").rpartition("/")[2])
    return problem


def _problem_of(error: Exception) -> RequestProblem:
    match error:
        case RequestProblem():
            return error
        case MissingRecord():
            return RequestProblem(404, str(error), kind="not_found")
        case IndexBusy():
            message = "another process is writing to the index; try again"
            return RequestProblem(409, message, kind="busy", headers={"retry-after": "1"})
        case SpecError():
            return RequestProblem(422, str(error), kind="backend")
        case InputError() | MissingDependency():
            return RequestProblem(422, str(error))
        case MemoryError():
            message = "the request does not fit into memory; send fewer or shorter texts"
            return RequestProblem(413, message, kind="memory")
        case DecoupledError() | OSError():
            expected = isinstance(error, DecoupledError)
            message = _PATH.sub(r"\1", str(error)) if expected else "the index cannot be read"
            return RequestProblem(503, message, kind="index", headers={"retry-after": "5"})
    return RequestProblem(500, "an unexpected error; the log has it", kind="internal")
