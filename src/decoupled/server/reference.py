"""`/docs`: every route with its fields and an example, written from the OpenAPI description, offline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2.5rem 0 0.25rem; font-size: 1.1rem; font-family: ui-monospace, monospace; }
pre { padding: 0.75rem; overflow-x: auto; border: 1px solid color-mix(in srgb, currentColor 20%, transparent);
  border-radius: 6px; }
table { border-collapse: collapse; } td, th { text-align: left; padding: 0.15rem 1rem 0.15rem 0;
  vertical-align: top; } th { font-weight: 600; } code { font-family: ui-monospace, monospace; }
"""

Schema = dict[str, Any]


def page(schema: Schema) -> str:
    """The description as one HTML page."""
    about = schema["info"]
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{escape(about['title'])} API</title><style>{STYLE}</style>",
        f"<h1>{escape(about['title'])} {escape(about['version'])}</h1>",
        f"<p>{escape(about.get('description', ''))}</p>",
        '<p>For programs: <a href="/openapi.json">openapi.json</a>.</p>',
    ]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts += route(schema, path, method.upper(), operation)
    return "\n".join(parts)


def route(schema: Schema, path: str, method: str, operation: Schema) -> Iterator[str]:
    """One route: what it does, its fields, an example, its statuses."""
    yield f"<h2>{method} {escape(path)}</h2>"
    yield f"<p>{escape(operation.get('description') or operation['summary'])}</p>"
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    for body in bodies(schema, content["schema"] if content else None):
        yield from fields(schema, body)
        yield f"<pre>{escape(command(method, path, example(body)))}</pre>"
    if content is None:
        yield f"<pre>{escape(command(method, path, None))}</pre>"
    yield f"<p>Statuses: {', '.join(sorted(operation['responses']))}.</p>"


def bodies(schema: Schema, found: Schema | None) -> list[Schema]:
    """The shapes that a body may have."""
    if found is None:
        return []
    if "$ref" in found:
        return [schema["components"]["schemas"][found["$ref"].rsplit("/", 1)[1]]]
    parts = found.get("oneOf") or found.get("anyOf") or []
    return [one for part in parts for one in bodies(schema, part)]


def fields(schema: Schema, body: Schema) -> Iterator[str]:
    """A table of the body's fields."""
    yield "<table><tr><th>field<th>type<th>default<th></tr>"
    needed = body.get("required", [])
    for name, about in body["properties"].items():
        default = "needed" if name in needed else json.dumps(about.get("default"))
        cells = (
            f"<code>{escape(name)}</code>",
            escape(kind(about)),
            f"<code>{escape(default)}</code>",
            escape(about.get("description", "")),
        )
        yield f"<tr><td>{'<td>'.join(cells)}</tr>"
    yield "</table>"


def kind(about: Schema) -> str:
    """A type in a word or two."""
    if "$ref" in about:
        return str(about["$ref"]).rsplit("/", 1)[1]
    if "enum" in about:
        return " | ".join(map(str, about["enum"]))
    if "anyOf" in about:
        return " | ".join(dict.fromkeys(kind(part) for part in about["anyOf"]))
    if about.get("type") == "array":
        return f"[{kind(about.get('items', {}))}]"
    return str(about.get("type", "any"))


def example(body: Schema) -> Any:
    """The body's own example, or one made of those of its fields."""
    if "example" in body:
        return body["example"]
    given = {
        name: about["examples"][0]
        for name, about in body["properties"].items()
        if "examples" in about
    }
    return {name: value for name, value in given.items() if name in body.get("required", [])}


def command(method: str, path: str, body: Any) -> str:
    """The call as a line for a shell."""
    line = f"curl -X {method} http://127.0.0.1:8000{path}"
    if body is None:
        return line
    content = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
    return f"{line} -H 'content-type: application/json' \\\n  -d '{content}'"
