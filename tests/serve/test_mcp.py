"""The official client against the tools: over stdio in a process of its own, and at /mcp of `serve`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

pytest.importorskip("mcp")
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

import decoupled as dc
from decoupled.serve.http.app import create_app
from decoupled.serve.http.limits import Access
from decoupled.serve.mcp.server import opened
from decoupled.serve.mcp.source import McpSource, folder_index
from served import listening

PAGES = {
    "dracula.md": "# Dracula\n\nDracula is a novel. Bram Stoker wrote it. It came out in 1897.\n",
    "rivers.md": "# Rivers\n\n## Poland\n\nThe Vistula flows through Warsaw. It is 1,047 km long.\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = tmp_path / "docs"
    place.mkdir()
    for name, text in PAGES.items():
        (place / name).write_text(text)
    return place


@asynccontextmanager
async def over_stdio(*sources: object):
    command = [sys.executable, "-m", "decoupled", "mcp", *map(str, sources)]
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    async with Client(stdio_client(parameters)) as client:
        yield client


async def call(client, name: str, **given):
    return await client.call_tool(name, given)


async def good(client, name: str, **given) -> dict:
    answer = await call(client, name, **given)
    assert not answer.is_error, answer.content
    return answer.structured_content


async def bad(client, name: str, **given) -> str:
    answer = await call(client, name, **given)
    assert answer.is_error
    return answer.content[0].text


async def finds_asks_and_reads(client) -> None:
    tools = {tool.name for tool in (await client.list_tools()).tools}
    assert tools == {"search", "ask", "read", "list"}
    first = (await good(client, "search", query="Who wrote Dracula?", k=1))["passages"][0]
    assert first["source"] == "dracula.md" and first["headings"] == "Dracula"
    assert "Stoker" in first["text"] and first["end"] > first["start"] >= 0
    answers = (await good(client, "ask", question="Which river flows through Warsaw?"))["answers"]
    assert "Vistula" in answers[0]["text"] and answers[0]["evidence"][0]["source"] == "rivers.md"
    unknown = await good(client, "ask", question="Who painted the Mona Lisa?")
    assert unknown["answers"] == [] and unknown["verdict"].startswith("no answer found")
    assert "1897" in (await good(client, "read", id=first["id"]))["text"]
    listed = await good(client, "list", where={"document": "rivers.md"})
    assert [one["source"] for one in listed["documents"]] == ["rivers.md"]


def test_a_folder_over_stdio(folder):
    async def run() -> None:
        async with over_stdio(folder) as client:
            told = []

            async def progress(done, total, message) -> None:
                told.append(message)

            await client.call_tool("list", {}, progress_callback=progress)
            await finds_asks_and_reads(client)
            # Bad input is an answer, and the server lives on.
            assert "no passage 'nope'" in await bad(client, "read", id="nope")
            assert "give 100 or more" in await bad(client, "search", query="a", max_tokens=9)
            assert "query" in await bad(client, "search", query="")
            assert "filter" in await bad(client, "search", query="a", where={"n": {"near": 1}})
            (folder / "new.md").write_text("# Otters\n\nOtters eat fish and crabs.\n")
            await until(lambda: sources(client), "new.md")
            (folder / "new.md").unlink()
            folder.rename(folder.parent / "away")
            assert "is not there any more" in await bad(client, "search", query="Dracula")
            (folder.parent / "away").rename(folder)
            await finds_asks_and_reads(client)

    asyncio.run(run())
    assert folder_index([str(folder.resolve())]).is_relative_to(folder.parent / "cache")


async def sources(client) -> str:
    return str(await good(client, "list"))


async def until(look, word: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while word not in await look():
        assert time.monotonic() < end, f"{word} did not come"
        await asyncio.sleep(0.2)


@pytest.mark.slow
def test_two_servers_of_one_folder_and_a_client_that_leaves(folder):
    async def run() -> None:
        async with over_stdio(folder) as one, over_stdio(folder) as other:
            await asyncio.gather(finds_asks_and_reads(one), finds_asks_and_reads(other))
            call_that_nobody_waits_for = asyncio.ensure_future(good(one, "search", query="Warsaw"))
            await asyncio.sleep(0)
            call_that_nobody_waits_for.cancel()
            await finds_asks_and_reads(one)

    asyncio.run(run())


def test_stdout_has_nothing_but_the_protocol(folder):
    command = [sys.executable, "-m", "decoupled", "mcp", str(folder)]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stdout == b""


def test_a_client_that_leaves_at_once_leaves_no_thread_behind(folder):
    async def run() -> None:
        async with opened([folder], "auto"):
            pass

    anyio.run(run)
    assert not [one for one in threading.enumerate() if one.name == "mcp-source"]


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("served")
    for name, text in PAGES.items():
        (place / name).write_text(text)
    dc.build_index(place, place / "docs.idx")
    return place / "docs.idx"


def test_the_routes_of_serve_have_keys_hosts_and_limits(index):
    app = create_app(dc.Engine(index), access=Access(keys=(b"secret",), protect_reads=True))
    with listening(app) as address:

        async def run() -> None:
            import httpx2

            headers = {"authorization": "Bearer secret"}
            async with (
                httpx2.AsyncClient(headers=headers) as http,
                Client(streamable_http_client(f"{address}/mcp", http_client=http)) as client,
            ):
                await finds_asks_and_reads(client)
                assert "query_characters" in await bad(client, "search", query="a" * 9000)
                assert (await http.get(f"{address}/mcp")).status_code == 405
            async with httpx2.AsyncClient() as http:
                assert (await http.post(f"{address}/mcp", json={})).status_code == 401

        asyncio.run(run())


def test_answers_fit_the_budget(index):
    source = McpSource([index])
    source.start()

    async def run() -> None:
        from decoupled.serve.mcp import tools

        async def tell(*_: object) -> None:
            return

        service, notes = await source.service(tell)
        count = service.engine.runtime.tokenizer.lengths
        assert notes == []
        for budget in (100, 150, 400):
            for answer in (
                await tools.search(service, "Warsaw Dracula", 5, None, budget),
                await tools.ask(service, "Who wrote Dracula?", budget),
                await tools.list_documents(service, None, budget),
            ):
                assert count([str(answer)])[0] <= budget
        await source.close()

    asyncio.run(run())


def test_what_agents_ask_loads_no_web_framework():
    code = (
        "import sys, decoupled.serve.mcp.source, decoupled.serve.mcp.tools; "
        "print({'fastapi', 'uvicorn', 'torch'} & sys.modules.keys())"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "set()"
