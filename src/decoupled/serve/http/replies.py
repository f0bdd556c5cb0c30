"""Responses: JSON of any text, and headers that say where the time went."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from decoupled.serve.http.service import Found


class Json(Response):
    """A JSON document. Lone surrogates, which UTF-8 cannot hold, are escaped."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The document's bytes."""
        try:
            return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            return json.dumps(content, allow_nan=False).encode()


def reply(content: Any, found: Found, *, device: str) -> Json:
    """A result, with the headers of Text Embeddings Inference; times are in milliseconds."""
    worked = sum(r.timing.total_ms for r in found.results[:1])
    headers = {
        "x-compute-type": device,
        "x-compute-time": str(round(worked + found.waited * 1e3)),
        "x-compute-characters": str(found.characters),
        "x-compute-tokens": str(found.tokens),
        "x-queue-time": str(round(found.waited * 1e3)),
        "x-inference-time": str(round(worked)),
    }
    return Json(content, headers=headers)
