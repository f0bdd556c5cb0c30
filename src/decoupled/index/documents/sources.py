"""From what the user names to the files that are read: folders, standard input, extensions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from decoupled.errors import InputError
from decoupled.index.documents.files import File, Format, Problem, Problems
from decoupled.index.documents.json import json_lines, json_list
from decoupled.index.documents.streams import PACKED, unpacked
from decoupled.index.documents.tables import table_rows
from decoupled.index.documents.text import documents, text_lines

Source = str | Path

FORMATS = (
    Format(name="jsonl", suffixes=(".jsonl", ".ndjson"), read=json_lines),
    Format(name="json", suffixes=(".json",), read=json_list, counts="item"),
    Format(name="csv", suffixes=(".csv",), read=table_rows, table=True),
    Format(name="tsv", suffixes=(".tsv",), read=table_rows, table=True),
    Format(name="document", suffixes=(".txt", ".md", ".markdown"), read=documents, counts="piece"),
    Format(name="lines", read=text_lines),
    Format(name="stream", read=text_lines),  # what has no name: rows.py looks at its first bytes
)
"""Every format; a new one is a reader in a file of its own and a line here."""
BY_NAME = {known.name: known for known in FORMATS}
_BY_SUFFIX = {suffix: known for known in FORMATS for suffix in known.suffixes}
_STDIN = "-"


def single_file(source: Source) -> File:
    """The one file that a source names; a folder, no file or an unknown extension is an error."""
    if str(source) == _STDIN:
        return File(path=None, shown="stdin", name="stdin", format=BY_NAME["stream"])
    path = Path(source)
    if path.is_dir():
        raise InputError(f"{source} is a folder; name a file in it")
    if (known := _format(path)) is None:
        raise InputError(f"{source}: {_unknown(path)}")
    return File(path=path, shown=str(source), name=unpacked(path).name, format=known)


def check_sources(sources: Sequence[Source]) -> None:
    """Raise `InputError` at once for no source, a missing file or an unknown extension."""
    if not sources:
        raise InputError("no corpus is named; give files, folders, or - for standard input")
    for source in sources:
        if isinstance(source, (list, tuple)):
            raise InputError(f"a source is {source!r:.60}; give paths one by one, or as *paths")
        if not Path(source).is_dir():
            single_file(source)


def list_files(sources: Sequence[Source], problems: Problems) -> Iterator[File]:
    """The files of all sources in a fixed order; those of no known form are noted, not read."""
    named = [Path(s) for s in sources if str(s) != _STDIN]
    shared = _shared_folder(named)
    for source in sources:
        path = Path(source)
        if str(source) == _STDIN:
            yield single_file(source)
            continue
        for found in _walk(path, problems) if path.is_dir() else [path]:
            if not found.exists():
                tell = problems.fail if found == path else problems.note
                tell(Problem(path=str(found), message="is gone, or a link to nothing"))
                continue
            if (known := _format(found)) is None:
                problems.note(Problem(path=str(found), message=_unknown(found)))
                continue
            name = unpacked(Path(os.path.relpath(found, shared))).as_posix()
            yield File(path=found, shown=str(found), name=name, format=known)


def total_bytes(sources: Sequence[Source]) -> int | None:
    """Bytes on disk of all that would be read; None when a source is a stream without a size."""
    check_sources(sources)
    total = 0
    for file in list_files(sources, Problems("skip")):
        if file.path is None or file.format.name == "stream":
            return None
        total += file.path.stat().st_size
    return total


def beir_corpus(folder: Path, files: Sequence[str], folders: Sequence[str]) -> Path | None:
    """The corpus file of a folder in BEIR's layout: corpus.jsonl beside queries or judgments."""
    corpus = [n for n in sorted(files) if unpacked(Path(n)).name.lower() == "corpus.jsonl"]
    beside = any(n.startswith(("queries", "qrels")) for n in (*files, *folders))
    return folder / corpus[0] if corpus and beside else None


def _format(path: Path) -> Format | None:
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path")
    if not path.is_file():
        return BY_NAME["stream"]  # a pipe, such as a shell's <(…), has no extension
    return _BY_SUFFIX.get(unpacked(path).suffix.lower())


def _unknown(path: Path) -> str:
    suffix = unpacked(path).suffix.lower()
    found = f"the extension {suffix!r} is not known" if suffix else "it has no extension"
    return (
        f"{found}; expected {' '.join(_BY_SUFFIX)}, also with {' '.join(sorted(PACKED))}; "
        "rename or convert it"
    )


def _shared_folder(paths: Sequence[Path]) -> str:
    """The deepest folder above all sources, so that no two files have the same name below it."""
    folders = [os.path.abspath(p if p.is_dir() else p.parent) for p in paths]  # noqa: PTH100
    return os.path.commonpath(folders) if folders else ""


def _walk(top: Path, problems: Problems) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        message = f"cannot be listed ({error.strerror})"
        problems.fail(Problem(path=str(error.filename), message=message))

    for folder, folders, files in os.walk(top, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = sorted(name for name in files if not name.startswith("."))
        corpus = beir_corpus(Path(folder), files, folders)
        if corpus is not None:
            folders.clear()
            yield corpus
        else:
            yield from (Path(folder) / name for name in files)
