"""The web page, static files and questions to click, and /docs from the OpenAPI description: all offline."""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse

from decoupled.index.index import Index
from decoupled.model.jsonable import JsonObject

STATIC = Path(__file__).parents[1] / "page"
# The page shows passages of any origin: no script, style or picture of theirs is loaded.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
Schema = JsonObject
HEADINGS = 3000
"""Records whose headings are looked at for questions to try."""


def routes(openapi: Callable[[], JsonObject], questions: Sequence[str]) -> APIRouter:
    """`/` and what it loads, with `questions` as examples; the description of all routes for people."""
    router = APIRouter(include_in_schema=False)
    parts = {path.name: path for path in STATIC.iterdir()}

    @router.get("/")
    async def page() -> FileResponse:
        return FileResponse(parts["index.html"], headers=HEADERS)

    @router.get("/static/questions.json")
    async def examples() -> JSONResponse:
        return JSONResponse({"questions": list(questions)}, headers=HEADERS)

    @router.get("/static/{name}")
    async def part(name: str) -> FileResponse:
        # Names are looked up and never joined to a path, so nothing outside the folder is served.
        if name not in parts:
            raise HTTPException(404)
        return FileResponse(parts[name], headers=HEADERS)

    @router.get("/docs")
    async def docs(request: Request) -> HTMLResponse:
        return HTMLResponse(reference(openapi(), str(request.base_url).rstrip("/")))

    return router


def reference(schema: Schema, address: str) -> str:
    """The description as one HTML page; its examples call the server at this address."""
    about = schema["info"]
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(about['title'])} API</title>",
        '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">',
        '<link rel="stylesheet" href="/static/page.css">',
        '<link rel="stylesheet" href="/static/reference.css">',
        '<main class="reference">',
        f'<h1><a class="mark" href="/">{escape(about["title"])}</a> {escape(about["version"])}</h1>',
        f"<p>{prose(about.get('description', ''))}</p>",
        '<p>Types and defaults of the fields: <a href="/openapi.json">openapi.json</a>.</p>',
    ]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts += route(schema, address, (method.upper(), path), operation)
    return "\n".join([*parts, "</main>"])


def described(index: Index) -> JsonObject:
    """What `info --json` prints of an index, with its name and questions to try on it."""
    titles = (excerpt.title for excerpt in islice(index.refresh().scan(), HEADINGS))
    name = index.location.name.rstrip("/").rpartition("/")[2].removesuffix(".idx")
    return {**index.info(), "name": name, "samples": heading_questions(titles)}


def heading_questions(titles: Iterable[str], most: int = 3) -> list[str]:
    """Questions to try on a corpus, made of its own headings: those that ask first, then short ones."""
    # "Guide › 2.1. Limits" is the heading "Limits".
    lasts = (re.sub(r"^[\W\d.]+", "", title.split(" › ")[-1]).strip() for title in titles)
    headings = list(dict.fromkeys(h for h in lasts if 3 < len(h) <= 60))
    asking = [h for h in headings if re.match(r"(?i)(how|what|when|why|which|who|where)\b", h)]
    short = [f"What is {h}?" for h in headings if h not in asking and len(h.split()) <= 3]
    chosen = [h if h.endswith("?") else f"{h}?" for h in asking] or short
    # Spread over the corpus, whose first headings are prefaces.
    return [chosen[(2 * n + 1) * len(chosen) // (2 * most)] for n in range(min(most, len(chosen)))]


def prose(words: str) -> str:
    """Words as HTML, with what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(words))


def route(schema: Schema, address: str, call: tuple[str, str], operation: Schema) -> Iterator[str]:
    """One route: what it does, its fields, an example, its statuses."""
    method, path = call
    yield f"<h2><b>{method}</b> <code>{escape(path)}</code></h2>"
    yield f"<p>{prose(operation.get('description') or operation['summary'])}</p>"
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    for body in bodies(schema, content["schema"]) if content else ():
        named = ", ".join(f"<code>{escape(name)}</code>" for name in body["properties"])
        yield f"<p>Fields: {named}.</p>"
        yield f"<pre>{escape(command(method, address + path, example(body)))}</pre>"
    if content is None:
        yield f"<pre>{escape(command(method, address + path, None))}</pre>"
    yield f"<p>Statuses: {', '.join(sorted(operation['responses']))}.</p>"


def bodies(schema: Schema, body: Schema) -> list[Schema]:
    """The shapes that a body may have."""
    if "$ref" in body:
        return [schema["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]]
    parts = body.get("oneOf") or body.get("anyOf") or []
    return [one for part in parts for one in bodies(schema, part)]


def example(body: Schema) -> Any:
    """The body's own example, or one made of those of its fields."""
    if "example" in body:
        return body["example"]
    needed = {name: body["properties"][name] for name in body.get("required", [])}
    return {name: about["examples"][0] for name, about in needed.items() if "examples" in about}


def command(method: str, url: str, body: Any) -> str:
    """The call as a line for a shell."""
    line = f"curl -X {method} {shlex.quote(url)}"
    if body is None:
        return line
    content = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
    return f"{line} -H 'content-type: application/json' \\\n  -d '{content}'"
