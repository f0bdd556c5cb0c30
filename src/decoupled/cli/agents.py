"""`mcp`: an index, or a folder that is kept indexed, as tools of an agent."""

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.errors import InputError, need


def mcp(
    sources: Annotated[
        list[Path],
        Argument(metavar="SOURCE…", help="An index; or files and folders to keep an index of."),
    ],
    http: Annotated[bool, Option("--http", help="Streamable HTTP instead of stdio.")] = False,
    host: opt.Host = "127.0.0.1",
    port: opt.Port = 8000,
    api_key_file: Annotated[
        Path | None, Option(help="Keys, one a line, one of which each client must send.")
    ] = None,
    allow_host: opt.Proxies = None,
    runtime: opt.Runtime = "auto",
) -> None:
    """Offer search, ask, read and list to agents (Model Context Protocol), over stdio or HTTP."""
    need(("mcp", "mcp"), ("watchfiles", "mcp"))
    for source in sources:
        if not source.exists() and "://" not in str(source):
            raise InputError(f"{source} does not exist; name an index, a file or a folder")
    from decoupled.serve.mcp.server import serve_http, serve_stdio

    if not http:
        return serve_stdio(sources, runtime=runtime)
    run = partial(serve_http, sources, host=host, port=port, runtime=runtime)
    run = partial(run, api_key_file=api_key_file, hosts=allow_host or ())
    run(ready=lambda at: printing.note(f"agents connect to {at}/mcp (stop: Ctrl-C)"))
