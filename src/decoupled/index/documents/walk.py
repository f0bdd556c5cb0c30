"""Folders: which of their files are read, and what those are called."""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePath

from decoupled.index.documents.files import File, Format, Problem, Problems
from decoupled.index.documents.ignore import GITIGNORE, Ignored
from decoupled.index.formats.streams import unpacked

_IGNORED = frozenset(("node_modules", "__pycache__", "site-packages", "venv"))
# What programs made of something that is read already, known by what lies beside it.
_OUTPUTS = {
    "_sources": ("_static", "searchindex.js"),  # Sphinx: the text of each page once more
    "_static": ("_sources", "searchindex.js", "index.html"),
    "build": ("setup.py", "pyproject.toml", "build.gradle", "CMakeLists.txt"),
    "dist": ("setup.py", "pyproject.toml", "package.json"),
    "target": ("Cargo.toml", "pom.xml"),
}
_DATASET = frozenset(("dataset_info.json", "state.json", "dataset_dict.json"))
_INDEX = ("manifest.json", "passages.lance")


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Which files of a folder are wanted, by patterns such as `*.html` or `drafts/*`."""

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    format: str | None = None
    """How standard input, pipes and named files of unknown endings are read, by a format's name."""
    as_text: Sequence[str] = ()
    """Files that are read as plain text, whatever their ending."""
    text_field: str | None = None
    """The field of a row that is its text; None looks for `text`, `contents`…"""
    code: bool = False
    """Whether all of a program is read, and not only its comments."""
    query: str | None = None
    """What is selected from databases."""

    def __call__(self, path: str) -> bool:
        """Whether a file with this path below its folder is wanted."""
        return (not self.include or _matches(path, self.include)) and not self.without(path)

    def reads_as_text(self, path: PurePath) -> bool:
        """Whether a file is to be read as plain text."""
        return _matches(path.as_posix(), self.as_text)

    def without(self, path: str) -> bool:
        """Whether a file or folder with this path is excluded."""
        return _matches(path, self.exclude)


class Walk:
    """Goes through folders, none twice; links within them are not followed.

    What a link points at is read at its own place where that is in one of the folders, and else not at all.
    """

    def __init__(self, sources: Sequence[Path], problems: Problems, chosen: Chosen) -> None:
        self._problems, self._chosen = problems, chosen
        self._roots = [os.path.realpath(path) for path in sources if path.is_dir()]
        self._shared = _shared_folder(sources)
        self._seen: set[str] = set()

    def file(self, path: Path, format: Format, *, named: bool) -> File:
        """A file as it is read and called; `named` if the user did so."""
        name = unpacked(Path(os.path.relpath(path, self._shared))).as_posix()
        return File(path=path, shown=shown(path), name=shown(name), format=format, named=named)

    def files(self, top: Path) -> Iterator[Path]:
        """The regular files of a folder that are wanted, in a fixed order."""
        waiting = [(top, Ignored())]
        while waiting:
            folder, ignored = waiting.pop()
            real = os.path.realpath(folder)
            if real in self._seen:
                continue
            self._seen.add(real)
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError as error:
                why = f"cannot be listed ({error.strerror})"
                self._problems.fail(Problem(path=shown(folder), message=why))
                continue
            names = {entry.name for entry in entries}
            if all(name in names for name in _INDEX):
                self._note(folder, "is an index")
                continue
            below = Path(os.path.relpath(folder, top)).as_posix()
            kept = [e for e in entries if not self._ignored(e, names, below)]
            ignored = ignored.within(folder) if GITIGNORE in names else ignored
            kept = self._not_ignored(folder, kept, ignored)
            folders = [e.name for e in kept if e.is_dir(follow_symlinks=False)]
            files = [Path(e.path) for e in kept if self._is_file(e)]
            corpus = beir_corpus(folder, [path.name for path in files], folders)
            if corpus is not None:
                yield corpus
                continue
            yield from files
            # The list is a stack, so reversed they come out in the order of their names.
            waiting += [(folder / name, ignored) for name in reversed(folders)]

    def _not_ignored(
        self, folder: Path, entries: list[os.DirEntry[str]], ignored: Ignored
    ) -> list[os.DirEntry[str]]:
        """The entries that git does not ignore; how many it does is reported."""
        left = {e.path for e in entries if ignored(e.path, folder=e.is_dir(follow_symlinks=False))}
        if left:
            shown_names = ", ".join(sorted(shown(Path(path).name) for path in left)[:3])
            more = ", …" if len(left) > 3 else ""
            self._note(folder, f"{GITIGNORE} leaves out {len(left)} here: {shown_names}{more}")
        return [entry for entry in entries if entry.path not in left]

    def _ignored(self, entry: os.DirEntry[str], beside: set[str], below: str) -> bool:
        path = entry.name if below == "." else f"{below}/{entry.name}"
        if entry.name.startswith(".") or self._chosen.without(path):
            return True
        if entry.is_dir(follow_symlinks=False):
            output = any(name in beside for name in _OUTPUTS.get(entry.name, ()))
            return entry.name in _IGNORED or output
        return (entry.name in _DATASET and "state.json" in beside) or not self._chosen(path)

    def _is_file(self, entry: os.DirEntry[str]) -> bool:
        """Whether an entry is a regular file. Reports pipes, devices, and links that are dead or lead out."""
        if entry.is_symlink():
            self._link(entry)
        elif entry.is_file(follow_symlinks=False):
            return True
        elif not entry.is_dir(follow_symlinks=False):
            piped = stat.S_ISFIFO(entry.stat(follow_symlinks=False).st_mode)
            self._note(entry.path, f"is a {'pipe' if piped else 'device or socket'}, not a file")
        return False

    def _link(self, entry: os.DirEntry[str]) -> None:
        real = os.path.realpath(entry.path)
        if not os.path.exists(real):  # noqa: PTH110
            self._note(entry.path, "is a link to nothing, or to itself")
        elif not any(real == root or real.startswith(root + os.sep) for root in self._roots):
            self._note(entry.path, "is a link out of the folder; name what it points at to read it")

    def _note(self, path: str | Path, message: str) -> None:
        self._problems.note(Problem(path=shown(path), message=message))


def beir_corpus(folder: Path, files: Sequence[str], folders: Sequence[str]) -> Path | None:
    """The corpus file of a folder in BEIR's layout: corpus.jsonl beside queries or judgments."""
    corpus = [n for n in sorted(files) if unpacked(Path(n)).name.lower() == "corpus.jsonl"]
    beside = any(n.startswith(("queries", "qrels")) for n in (*files, *folders))
    return folder / corpus[0] if corpus and beside else None


def shown(path: str | Path) -> str:
    """A path as it is named: bytes that are not UTF-8 are written out, so that it can be stored."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(path, p) or fnmatch(path, f"*/{p}") for p in patterns)


def _shared_folder(paths: Sequence[Path]) -> str:
    """The deepest folder above all sources, so that no two files have the same name below it."""
    folders = [os.path.abspath(p if p.is_dir() else p.parent) for p in paths]  # noqa: PTH100
    return os.path.commonpath(folders) if folders else ""
