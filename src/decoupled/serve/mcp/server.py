"""The tools behind the official SDK: over stdio, over streamable HTTP, or at /mcp of `serve`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
from pydantic import Field
from starlette.applications import Starlette
from starlette.routing import Route

from decoupled.errors import MissingDependency
from decoupled.model.jsonable import JsonObject
from decoupled.serve.http.responses import problem_of

try:
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp.types import CallToolResult, TextContent, ToolAnnotations
except ImportError:
    raise MissingDependency("mcp", "mcp") from None

if TYPE_CHECKING:  # loaded in a thread: a client waits for the server, not for the model
    from decoupled.serve.http.limits import Access
    from decoupled.serve.http.service import Service
    from decoupled.serve.mcp.source import McpSource

Ready = Callable[[Context], Awaitable[tuple["Service", list[str]]]]
"""Gives what answers a call and notes for its reader; may wait, and tell the client how far it is."""
TOKENS = 2000
"""Tokens of an answer by default."""
ABOUT = (
    "Passages of the user's documents, found by words and meaning and read by a model. `search` finds "
    "passages, `ask` gives a short exact answer, `read` the text around a passage, `list` the documents. "
    "Cite `source`."
)
PATH = "/mcp"

Query = Annotated[str, Field(min_length=1, description="What to look for, in words or a sentence.")]
Question = Annotated[str, Field(min_length=1, description="A question with a short answer.")]
Count = Annotated[int, Field(ge=1, le=100, description="How many passages at most.")]
Filter = Annotated[
    JsonObject | None,
    Field(
        description='Only passages with this metadata: {"document": "a.md", "year": {"gte": 2020}}.'
    ),
]
Budget = Annotated[int, Field(description="Most tokens of the answer.")]
Ident = Annotated[str, Field(min_length=1, description="The `id` of a passage that search gave.")]
Around = Annotated[int, Field(description="Characters before and after the passage, up to 1500.")]


def create_mcp(ready: Ready, *, name: str = "decoupled") -> MCPServer[Any]:
    """The four tools over what `ready` gives."""
    server: MCPServer[Any] = MCPServer(
        name=name, version=version("decoupled-transformer"), instructions=ABOUT, log_level="WARNING"
    )

    async def reply(context: Context, tool: str, *arguments: Any) -> CallToolResult:
        place = ""
        try:
            service, notes = await ready(context)
            from decoupled.serve.mcp import tools

            place = service.place
            answer = await getattr(tools, tool)(service, *arguments)
        except Exception as error:
            problem = problem_of(error, place)
            if problem.status == 500:
                raise
            raise ToolError(problem.message) from None
        if notes:
            answer["notes"] = [*notes, *answer.get("notes", ())]
        text = json.dumps(answer, ensure_ascii=False)
        return CallToolResult(content=[TextContent(text=text)], structured_content=answer)

    async def search(
        context: Context,
        query: Query,
        k: Count = 5,
        where: Filter = None,
        max_tokens: Budget = TOKENS,
    ) -> CallToolResult:
        """Find passages of the documents for a query, best first.

        Each has its id, source, characters (start, end), the headings above it, a score from 0 to 1, and of
        its text the sentences that matter to the query. `read` gives the whole text and what stands around.
        """
        return await reply(context, "search", query, k, where, max_tokens)

    async def ask(
        context: Context, question: Question, max_tokens: Budget = TOKENS
    ) -> CallToolResult:
        """Answer a question with words of the documents, or say that they have no answer.

        Each answer has the probability that it is right, and as evidence the places where it stands.
        """
        return await reply(context, "ask", question, max_tokens)

    async def read(
        context: Context, id: Ident, around: Around = 600, max_tokens: Budget = TOKENS
    ) -> CallToolResult:
        """Read a passage whole, with the text of its document around it."""
        return await reply(context, "read", id, around, max_tokens)

    async def list_documents(
        context: Context, where: Filter = None, max_tokens: Budget = TOKENS
    ) -> CallToolResult:
        """List the documents that can be searched: source, title, number of passages."""
        return await reply(context, "list_documents", where, max_tokens)

    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool in (search, ask, read, list_documents):
        named = "list" if tool is list_documents else tool.__name__
        server.add_tool(tool, name=named, annotations=reads)
    return server


def http_route(server: MCPServer[Any]) -> Route:
    """POST at /mcp. Each request stands alone, so that any worker answers it and no session is kept.

    Hosts and keys are checked by the middleware of the server, as for every other route.
    """
    checked_elsewhere = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    server.streamable_http_app(stateless_http=True, transport_security=checked_elsewhere)
    return Route(PATH, StreamableHTTPASGIApp(server.session_manager), methods=["POST"])


# By itself ----------------------------------------------------------------------------------------


def _open(sources: Sequence[str | Path], runtime: str) -> McpSource:
    from decoupled.serve.mcp.source import McpSource

    source = McpSource(sources, runtime=runtime)
    source.start()
    return source


@asynccontextmanager
async def opened(sources: Sequence[str | Path], runtime: str) -> AsyncIterator[Ready]:
    """What answers from the sources, which a thread imports, opens and follows while the block runs."""
    opening = asyncio.ensure_future(asyncio.to_thread(_open, sources, runtime))

    async def ready(context: Context) -> tuple[Service, list[str]]:
        source = await asyncio.shield(opening)
        return await source.service(context.report_progress)

    try:
        yield ready
    finally:
        # A client may leave while the thread still loads; one that ran on at exit would abort the process.
        with anyio.CancelScope(shield=True), suppress(Exception):
            await (await opening).close()


def serve_stdio(sources: Sequence[str | Path], *, runtime: str = "auto") -> None:
    """Answer a client over stdin and stdout until it leaves; all else that is written goes to stderr."""

    async def run() -> None:
        async with opened(sources, runtime) as ready:
            await create_mcp(ready).run_stdio_async()

    anyio.run(run)


def http_app(sources: Sequence[str | Path], access: Access, *, runtime: str = "auto") -> Starlette:
    """The tools at /mcp, behind keys, host checks and limits, and /health."""
    from starlette.responses import PlainTextResponse

    from decoupled.serve.http.limits import Limits
    from decoupled.serve.http.metrics import Metrics
    from decoupled.serve.http.middleware import Middleware

    # What answers begins with the server, within its event loop.
    answering: list[Ready] = []
    server = create_mcp(lambda context: answering[0](context))
    routes = [http_route(server), Route("/health", lambda _: PlainTextResponse("ok"))]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with opened(sources, runtime) as ready, server.session_manager.run():
            answering.append(ready)
            yield

    app = Starlette(routes=routes, lifespan=lifespan)
    around: JsonObject = {"limits": Limits(), "metrics": Metrics(), "errors": {}}
    app.add_middleware(Middleware, access=access, place=lambda: "", **around)
    return app


def serve_http(
    sources: Sequence[str | Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key_file: Path | None = None,
    hosts: Sequence[str] = (),
    runtime: str = "auto",
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the tools over HTTP until a signal; with keys, every client must send one."""
    from decoupled.serve.http.limits import Access, host_name, is_local, read_keys
    from decoupled.serve.http.server import bind, listen

    keys = read_keys(api_key_file) if api_key_file else ()
    named = tuple(map(host_name, hosts)) or (() if is_local(host) else ("*",))
    access = Access(keys=keys, protect_reads=bool(keys), writes=False, hosts=named)
    taken = bind(host, port)
    ready(f"http://{f'[{host}]' if ':' in host else host}:{taken.getsockname()[1]}")
    listen(http_app(sources, access, runtime=runtime), taken)
