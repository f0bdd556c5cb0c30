"""Man pages, rst, EPUB, AsciiDoc, Org, RTF, ODT, pptx, LaTeX and others, through pandoc's one tree."""

import io
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from decoupled.index.documents.files import File, OtherError, UnreadableError, needed
from decoupled.index.formats.blocks import TextBlock, one_line
from decoupled.index.formats.encodings import read_text
from decoupled.index.formats.streams import read_bytes

FORMATS = {
    "man": (".man", ".roff", ".mdoc"),  # and .1 to .9, which `sources.format_of` knows
    "rst": (".rst", ".rest"),
    "epub": (".epub",),
    "asciidoc": (".adoc", ".asciidoc"),
    "org": (".org",),
    "rtf": (".rtf",),
    "odt": (".odt", ".ott"),
    "pptx": (".pptx",),
    "ipynb": (".ipynb",),
    "latex": (".tex", ".latex", ".ltx"),
    "typst": (".typ",),
    "docbook": (".docbook", ".dbk"),
    "textile": (".textile",),
    "mediawiki": (".wiki", ".mediawiki"),
    "pod": (".pod",),
    "fb2": (".fb2",),
}
"""The formats that pandoc reads for us, by its names for them, with their endings."""
_BINARY = frozenset({"odt", "pptx", "epub"})
_PAGE = re.compile(r"^[.'][ \t]*(?:TH|Dd|so)\b", re.MULTILINE)
_MDOC = re.compile(r"^\.[ \t]*Dd\b", re.MULTILINE)
# A file that another includes is read by itself, or is not there; pandoc stops at an empty condition.
_INCLUDE = re.compile(r"^(?:include|ifn?def|ifeval|endif)::.*$", re.MULTILINE)
# A style that is based on itself has pandoc's reader go round for ever.
_OWN_BASE = re.compile(r"(\\s(\d+)(?!\d)[^;{}]{0,200}?)\\sbasedon\2(?!\d)")
_MARKS = frozenset(("todo", "done", "tag"))
_GRAPHIC = re.compile(r"\[Graphic: .*\]")
# A title with a line under it, which pandoc does not know, and the sign of each level.
_TARGET = re.compile(r"\s*<[^<>]*>$")
_UNDERLINED, _LEVELS = re.compile(r"^(\S.*)\n(([=~^+-])\3+)$", re.MULTILINE), "=-~^+"


def pandoc_blocks(file: File, stream: io.BufferedReader) -> Iterator[TextBlock]:
    """The blocks of a document that pandoc reads; its title stands above them."""
    needed("pypandoc", "pypandoc_binary")
    name = file.format.name
    if name in _BINARY:
        raw = read_bytes(stream)
    else:
        text = read_text(stream)
        if name == "man":
            if not _PAGE.search(text):
                raise OtherError("is no man page; if it is text, give --as-text '*.ENDING'")
            name = "mdoc" if _MDOC.search(text) else name
        if name == "asciidoc":
            text = _UNDERLINED.sub(_one_line_title, _INCLUDE.sub("", text))
        if name == "rtf":
            text = _OWN_BASE.sub(r"\1", text)
        raw = text.encode("utf-8", "replace")
    tree = _parsed(name, raw)
    title = _title(tree["meta"]) or _page_name(tree["blocks"] if name == "pod" else ())
    if title:
        yield TextBlock(title, 1)
    for block in _blocks(tree["blocks"]):
        yield block._replace(level=block.level and block.level + bool(title))


def _one_line_title(match: re.Match[str]) -> str:
    title, line, sign = match.groups()
    if abs(len(title) - len(line)) > 2:
        return match[0]
    return f"\n{'=' * (1 + _LEVELS.index(sign))} {title}\n"


def _parsed(name: str, raw: bytes) -> Any:
    """The tree of a document: pandoc runs within the limits of this process, and opens no other file."""
    import pypandoc

    command = [pypandoc.get_pandoc_path(), "--sandbox", "--from", name, "--to", "json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        _limit(process.pid)
        output, errors = process.communicate(raw)
    if process.returncode == -getattr(signal, "SIGXCPU", 0):
        raise UnreadableError("takes too long to read for its size")
    if process.returncode:
        why = one_line(errors.decode("utf-8", "replace"))[:160]
        raise UnreadableError(f"is not whole {name} ({why or f'exit code {process.returncode}'})")
    try:
        return json.loads(output)
    except RecursionError:
        raise UnreadableError("is nested too deeply") from None


def _limit(pid: int) -> None:
    """Leave pandoc the processor time that this file has left: its own clock begins at zero."""
    with suppress(ImportError, AttributeError, OSError):  # only Linux limits another process
        import resource

        most, hard = resource.getrlimit(resource.RLIMIT_CPU)
        if most != resource.RLIM_INFINITY:
            left = max(1, most - int(time.process_time()))
            resource.prlimit(pid, resource.RLIMIT_CPU, (left, hard))


def _page_name(tree: Any) -> str:
    """The name that a manual page in pod begins with: "perlsec - Perl security" is `perlsec`."""
    if [node["t"] for node in tree[:2]] != ["Header", "Para"]:
        return ""
    name, dash, _ = _words(tree[1]["c"]).partition(" - ")
    return one_line(name) if dash and len(name) < 60 else ""


def _title(meta: Any) -> str:
    """The title that a document has; a man page is called `ls(1)`."""
    title = _words(meta.get("title", {}))
    section = _words(meta.get("section", {}))
    return f"{title.lower()}({section})" if title and section else title


def _blocks(tree: Any) -> Iterator[TextBlock]:
    """The blocks of a list of nodes, in their order."""
    for node in tree:
        kind, content = node["t"], node.get("c")
        if kind == "DefinitionList":
            for term, definitions in content:
                yield from _defined(one_line(_words(term)), definitions)
            continue
        block = _block(kind, content)
        if block.text.strip() and not _GRAPHIC.fullmatch(block.text):
            yield block
        match kind:
            case "BulletList" | "OrderedList":
                for item in content[1] if kind == "OrderedList" else content:
                    yield from _blocks(item)
            case "BlockQuote":
                yield from _blocks(content)
            case "Div" | "Figure" if "toctree" not in content[0][1]:
                yield from _blocks(content[-1])


def _block(kind: str, content: Any) -> TextBlock:
    """The text of a node that holds no other blocks; empty for one that does."""
    match kind:
        case "Header":  # less the state and the tags of an outline
            words = [n for n in content[2] if n["t"] != "Span" or not _MARKS & {*n["c"][0][1]}]
            return TextBlock(one_line(_words(words)), content[0])
        case "Para" | "Plain":
            return TextBlock(one_line(_words(content)))
        case "CodeBlock":
            return TextBlock(content[1].strip("\n"), lines=True)
        case "LineBlock":
            return TextBlock("\n".join(map(_words, content)).strip(), lines=True)
        case "Table":
            return TextBlock("\n".join(_rows(content)), lines=True)
        case _:
            return TextBlock("")


def _defined(term: str, definitions: Any) -> Iterator[TextBlock]:
    """What a term means, under the term."""
    for block in (block for definition in definitions for block in _blocks(definition)):
        yield block._replace(text=f"{term}\n{block.text}") if term and not block.level else block
        term = ""
    if term:
        yield TextBlock(term)


def _rows(node: Any) -> Iterator[str]:
    """The rows of a table, cells apart by bars: below any node, a row is a list of cells of five parts."""
    if isinstance(node, list):
        if len(node) == 2 and isinstance(node[1], list) and node[1] and all(map(_is_cell, node[1])):
            yield " | ".join(one_line(" ".join(b.text for b in _blocks(c[4]))) for c in node[1])
        else:
            for part in node:
                yield from _rows(part)


def _is_cell(node: Any) -> bool:
    return isinstance(node, list) and len(node) == 5 and isinstance(node[4], list)


def _words(node: Any) -> str:
    """The text of inline nodes, without what only a printer understands."""
    if isinstance(node, list):
        return "".join(map(_words, node))
    if not isinstance(node, dict):
        return ""
    kind: str = node.get("t", "")
    content: Any = node.get("c")
    if kind in ("Space", "SoftBreak", "LineBreak"):
        return " "
    if kind in ("Str", "MetaString"):
        return str(content)
    if kind in ("Code", "Math"):
        # A role of Sphinx, `:ref:`the words <target>``, reads as its words.
        role = kind == "Code" and "interpreted-text" in content[0][1]
        return _TARGET.sub("", content[1]).lstrip("~!") if role else str(content[1])
    if kind == "Quoted":
        return f'"{_words(content[1])}"'
    if kind == "Note":
        return f" ({_words(content).strip()})"
    return f" {_words(content)} " if kind == "Image" else _words(content)
