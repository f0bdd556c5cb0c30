"""From what the user names to the files that are read: folders, standard input, extensions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from decoupled.errors import InputError
from decoupled.index.documents.problems import Problem, Problems

Form = Literal["jsonl", "json", "csv", "tsv", "document", "lines", "stream"]
Source = str | Path

_FORMS: dict[str, Form] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "document",
    ".md": "document",
    ".markdown": "document",
}
_PACKED = frozenset({".gz", ".xz", ".bz2", ".zst"})
_STDIN = "-"


@dataclass(frozen=True, kw_only=True)
class File:
    """One file to read."""

    path: Path | None
    """None is standard input."""
    shown: str
    """As errors name it: the path as the user wrote it."""
    name: str
    """As ids name it: the path below what all sources share, the same compressed or not."""
    form: Form

    @property
    def table(self) -> bool:
        """Do all rows have the same columns?"""
        return self.form in ("csv", "tsv")

    def problem(self, number: int | None, message: str) -> Problem:
        """A problem at a line, or at an item of a JSON list."""
        if self.form == "json" and number is not None:
            return Problem(path=self.shown, line=None, message=f"item {number}: {message}")
        return Problem(path=self.shown, line=number, message=message)


def unpacked_name(path: Path) -> str:
    """The lower-cased file name without the extension of a compression."""
    return _unpacked(path).name.lower()


def _unpacked(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() in _PACKED else path


def single_file(source: Source) -> File:
    """The one file that a source names; a folder, no file or an unknown extension is an error."""
    if str(source) == _STDIN:
        return File(path=None, shown="stdin", name="stdin", form="stream")
    path = Path(source)
    if path.is_dir():
        raise InputError(f"{source} is a folder; name a file in it")
    form = _form(path)
    if form is None:
        raise InputError(f"{source}: {_unknown(path)}")
    return File(path=path, shown=str(source), name=_unpacked(path).name, form=form)


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
                tell(Problem(path=str(found), line=None, message="is gone, or a link to nothing"))
                continue
            form = _form(found)
            if form is None:
                problems.note(Problem(path=str(found), line=None, message=_unknown(found)))
                continue
            name = _unpacked(Path(os.path.relpath(found, shared))).as_posix()
            yield File(path=found, shown=str(found), name=name, form=form)


def total_bytes(sources: Sequence[Source]) -> int | None:
    """Bytes on disk of all that would be read; None when a source is a stream without a size."""
    check_sources(sources)
    total = 0
    for file in list_files(sources, Problems("skip")):
        if file.path is None or file.form == "stream":
            return None
        total += file.path.stat().st_size
    return total


def beir_corpus(folder: Path, files: Sequence[str], folders: Sequence[str]) -> Path | None:
    """The corpus file of a folder in BEIR's layout: corpus.jsonl beside queries or judgments."""
    corpus = [n for n in sorted(files) if unpacked_name(Path(n)) == "corpus.jsonl"]
    beside = any(n.startswith(("queries", "qrels")) for n in (*files, *folders))
    return folder / corpus[0] if corpus and beside else None


def _form(path: Path) -> Form | None:
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path")
    if not path.is_file():
        return "stream"  # a pipe, such as a shell's <(…), has no extension
    return _FORMS.get(Path(unpacked_name(path)).suffix)


def _unknown(path: Path) -> str:
    suffix = Path(unpacked_name(path)).suffix
    found = f"the extension {suffix!r} is not known" if suffix else "it has no extension"
    return (
        f"{found}; expected {' '.join(_FORMS)}, also with {' '.join(sorted(_PACKED))}; "
        "rename or convert it"
    )


def _shared_folder(paths: Sequence[Path]) -> str:
    """The deepest folder above all sources, so that no two files have the same name below it."""
    folders = [os.path.abspath(p if p.is_dir() else p.parent) for p in paths]  # noqa: PTH100
    return os.path.commonpath(folders) if folders else ""


def _walk(top: Path, problems: Problems) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        problems.fail(
            Problem(
                path=str(error.filename), line=None, message=f"cannot be listed ({error.strerror})"
            )
        )

    for folder, folders, files in os.walk(top, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = sorted(name for name in files if not name.startswith("."))
        corpus = beir_corpus(Path(folder), files, folders)
        if corpus is not None:
            folders.clear()
            yield corpus
        else:
            yield from (Path(folder) / name for name in files)
