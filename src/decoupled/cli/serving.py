"""`serve`: an index behind HTTP."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from decoupled.errors import MissingDependency


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(serve)


def serve(
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="An index folder.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
) -> None:
    """Serve an index over HTTP: search, ask, rerank, and a page to try it on."""
    for package in ("fastapi", "uvicorn"):
        if find_spec(package) is None:
            raise MissingDependency(package, "serve")
    import uvicorn

    from decoupled.engine import Engine
    from decoupled.server.app import create_app

    uvicorn.run(create_app(Engine(index)), host=host, port=port)
