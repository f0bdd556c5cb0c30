"""Documents: those that are sent to be read, and files of passages while these are as they were read."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from operator import add
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from decoupled.index.documents.files import UnreadableError
from decoupled.index.documents.passages import passages_in
from decoupled.index.formats.encodings import read_text
from decoupled.index.formats.streams import in_memory
from decoupled.index.index import Index
from decoupled.index.origins import Origin, Origins
from decoupled.index.stale import document_of
from decoupled.serve.http.limits import SOURCE
from decoupled.serve.http.native import ERRORS, Ident, Stored
from decoupled.serve.http.responses import Json, RequestProblem
from decoupled.serve.http.service import Service

_BLOCK = 1 << 18
_LARGEST = 16 << 20
"""Bytes of a text that is shown; a longer one is a download."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}
# No script of a file runs, and it loads nothing. A browser does not show PDFs in such a sandbox.
_SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
_BOXED = {**_HEADERS, "Content-Security-Policy": _SANDBOX + "frame-ancestors 'none'"}


def routes(service: Service) -> APIRouter:
    """Routes that read a document, and that open the file of a passage where `Access.files` allows it."""
    router = APIRouter(tags=["decoupled"], responses=ERRORS)
    reading, most = asyncio.Lock(), service.limits.documents
    raw = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    sent = {"requestBody": {"content": raw, "required": True}}

    @router.put("/v1/documents/{name}", responses={200: {"model": Stored}}, openapi_extra=sent)
    async def put_document(name: str, request: Request) -> Response:
        """Store the passages of a document, such as a PDF; the ending of its name says how it is read."""
        async with reading:  # one at a time: a reader may take much memory
            tokenizer = service.engine.runtime.tokenizer
            read = await asyncio.to_thread(passages_in, name, await request.body(), tokenizer)
        parts = [await service.add(read[n : n + most]) for n in range(0, len(read), most)]
        counts = ("added", "unchanged", "replaced", "ids")
        return Json({**parts[-1], **{n: reduce(add, (part[n] for part in parts)) for n in counts}})

    @router.get(SOURCE + "{ident:text}", response_class=Response)
    async def source(ident: Ident) -> Response:
        """The file that a passage was read from, if it is as it was then."""
        return await asyncio.to_thread(lambda: source_reply(service.index(), ident))

    return router


def source_reply(index: Index, ident: str) -> Response:
    """The file of a passage: a PDF, a page without its scripts, other text as such, or a download."""
    snapshot = index.refresh()
    excerpt = snapshot.texts(snapshot.locate([ident]))[0]
    # Not the list of when the index was opened: a file may have been read again since.
    origin = Origins.load(index.location).file_of(document_of(ident, excerpt.meta))
    if origin is None:
        raise RequestProblem(404, f"the index lists no file for {ident!r:.200}", kind="not_found")
    file = _opened(origin)
    if file.read(5) == b"%PDF-":
        return StreamingResponse(_blocks(file), headers=_HEADERS, media_type="application/pdf")
    if origin.size <= _LARGEST:
        file.seek(0)
        with suppress(UnreadableError):
            text = read_text(in_memory(file.read())).encode("utf-8", "replace")
            file.close()
            kind = "html" if origin.format == "html" else "plain"
            return Response(text, headers=_BOXED, media_type=f"text/{kind}; charset=utf-8")
    name = f"attachment; filename*=UTF-8''{quote(Path(origin.path).name, safe='')}"
    headers = {**_BOXED, "Content-Disposition": name}
    return StreamingResponse(_blocks(file), headers=headers, media_type="application/octet-stream")


def _opened(origin: Origin) -> BinaryIO:
    """The file, if its size and times are still those that it had when it was read."""
    name = Path(origin.path).name
    # A pipe in its place would have the server wait for whoever writes to it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        file = os.fdopen(os.open(origin.path, flags), "rb")
    except OSError as error:
        why = f"{name} is not there any more ({error.strerror})"
        raise RequestProblem(410, f"{why}; index its folder again", kind="gone") from None
    # Compared with what was opened: whatever lies or leads there now is another file.
    if not origin.is_file(os.fstat(file.fileno())):
        file.close()
        why = f"{name} is not as it was when it was indexed"
        raise RequestProblem(410, f"{why}; index it again", kind="gone")
    return file


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while block := file.read(_BLOCK):
            yield block
