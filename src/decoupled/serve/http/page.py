"""The web page, static files and questions to click, and /docs with the OpenAPI description: all offline."""

import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import islice
from pathlib import Path

from fastapi import APIRouter, HTTPException
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse

from decoupled.index.index import Index
from decoupled.model.jsonable import JsonObject

STATIC = Path(__file__).parents[1] / "page"
POLICY = (
    "default-src 'none'; script-src 'self'{0}; style-src 'self'{0}; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    # The page shows passages of any origin: no script, style or picture of theirs is loaded.
    "Content-Security-Policy": POLICY.format(""),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
# Swagger's page has scripts and styles inline; it shows nothing but the description of the routes.
INLINE = {"Content-Security-Policy": POLICY.format(" 'unsafe-inline'")}
SWAGGER = ("swagger-ui-bundle.js", "swagger-ui.css")
HEADINGS = 3000
"""Records whose headings are looked at for questions to try."""


def routes(questions: Sequence[str]) -> APIRouter:
    """`/` and what it loads, with `questions` as examples, and `/docs` to read and try the routes."""
    router = APIRouter(include_in_schema=False)
    swagger = Path(str(files("fastapi_offline"))) / "static"
    parts = {path.name: path for path in (*STATIC.iterdir(), *(swagger / n for n in SWAGGER))}

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
    async def docs() -> HTMLResponse:
        page = get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="decoupled API",
            swagger_js_url=f"/static/{SWAGGER[0]}",
            swagger_css_url=f"/static/{SWAGGER[1]}",
            swagger_favicon_url="/static/icon.svg",
            swagger_ui_parameters={"tryItOutEnabled": True, "defaultModelsExpandDepth": 0},
        )
        page.headers.update({**HEADERS, **INLINE})
        return page

    return router


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
    chosen = [(h.capitalize() if h.isupper() else h).rstrip("?") + "?" for h in asking] or short
    # Spread over the corpus, whose first headings are prefaces.
    return [chosen[(2 * n + 1) * len(chosen) // (2 * most)] for n in range(min(most, len(chosen)))]
