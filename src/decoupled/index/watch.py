"""Keeps an index in step with files: only those that changed are read, only what they changed is encoded."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from decoupled.errors import DecoupledError, InputError, need
from decoupled.index.documents import Chosen, Problem
from decoupled.index.documents.chunks import Chunker, Size
from decoupled.index.documents.databases import scheme_of
from decoupled.index.documents.files import File, Problems
from decoupled.index.documents.passages import read_files
from decoupled.index.documents.sources import check_sources, list_files, total_bytes
from decoupled.index.index import Index
from decoupled.index.ingest import Added, Progress
from decoupled.index.manifest import tokenizer_of
from decoupled.model.tokens import Passage

QUIET_MS, DEBOUNCE_MS = 200, 1000
"""A step waits until files were left alone for so long, but never longer than the second."""
LOOK_SECONDS = 2.0
"""Seconds between two looks at what could not be done before, and at folders that may be gone."""
SETTLED_NS = 50_000_000
"""Age from which a file's time tells its next change: before, two writes may share one tick of the clock."""
COMPACT_STEPS = 64
"""Steps with changes after which the space of replaced passages is freed."""

Stamp = tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one look at the files changed in the index."""

    files: int = 0
    """Files that were new or changed, and were read."""
    added: Added = field(default_factory=Added)
    removed: int = 0
    problems: tuple[Problem, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether the index has a new version."""
        return bool(self.added.added or self.removed)

    def __str__(self) -> str:
        done = f"{self.added.added} added, {self.removed} removed, {self.added.unchanged} unchanged"
        return f"{self.files} files read: {done}"


@dataclass
class _ReadFile:
    """A file as it was last read."""

    stamp: Stamp
    ids: list[str] = field(default_factory=list)


class Watch:
    """Files and folders, and the index that follows them.

    The index is locked only while a step writes, so several processes may follow the same files: whoever
    comes second finds everything stored. A folder that is gone or empty changes nothing until it is back.
    With `sync` the first step removes what no file has. `report` is told of files that cannot be read.
    """

    def __init__(
        self,
        index: Index,
        sources: Sequence[str | Path],
        *,
        chunk: Size = "auto",
        title_path: bool = True,
        chosen: Chosen = Chosen(),
        sync: bool = True,
        report: Callable[[Problem], None] = lambda problem: None,
    ) -> None:
        need(("watchfiles", "watch"))
        if "-" in map(str, sources) or any(map(scheme_of, sources)):
            raise InputError("only files and folders can be watched; name no others")
        self.index, self.sources = index, [str(source) for source in sources]
        if chunk == "auto" and index.spec.memory_windows:
            chunk = None
        self._chunker = Chunker(tokenizer_of(index.source), chunk, title_path=title_path)
        self._chosen, self._sync, self._report = chosen, sync, report
        self._files: dict[str, _ReadFile] | None = None
        self._steps = 0

    @property
    def missing(self) -> str | None:
        """A source that is not there; None where all are."""
        return next((source for source in self.sources if not Path(source).exists()), None)

    def step(
        self,
        *,
        progress: Progress | None = None,
        on_total: Callable[[int | None], None] | None = None,
        on_bytes: Callable[[int], None] | None = None,
    ) -> Step:
        """Read what changed since the last step and store it; raises `IndexBusy` while another one writes."""
        problems: list[Problem] = []
        sink, before = Problems("skip", problems.append), self._files or {}
        listed, fresh, gone = self._look(sink, problems)
        if self._files is not None and not fresh and not gone:
            return Step()
        files = [listed[path] for path in fresh]
        if on_total is not None:
            on_total(total_bytes(files))
        with self.index.reopen(write=True) as writer:
            begun = len(writer)
            stream = read_files(files, sink, on_bytes, self._chunker, self._chosen)
            added = writer.add(_noted(stream, fresh), progress=progress)
            lost = {problem.path for problem in problems if problem.kind == "lost"}
            for path in fresh:  # what cannot be read now keeps what was read before
                if listed[path].shown in lost and path in before:
                    fresh[path].ids += before[path].ids
            after = {p: file for p, file in {**before, **fresh}.items() if p not in gone}
            stale = self._stale(writer, after, begun > 0 and not lost)
            removed = writer.delete(stale) if stale else 0
            self._tidy(writer, bool(added.added or removed))
        self._files = after
        for problem in problems:
            self._report(problem)
        return Step(files=len(files), added=added, removed=removed, problems=tuple(problems))

    def _look(
        self, sink: Problems, problems: Sequence[Problem]
    ) -> tuple[dict[str, File], dict[str, _ReadFile], set[str]]:
        """All files by path, those that are to be read, and the paths of those that are gone."""
        check_sources(self.sources)
        before = self._files or {}
        listed = {str(file.path): file for file in list_files(self.sources, sink, self._chosen)}
        if before and not listed:  # a disk that is not mounted: nobody means to remove everything
            raise InputError(f"{' '.join(self.sources)}: no files are left; put them back")
        stamps = {path: _stamp(path) for path in listed}
        if None in stamps.values():  # a file that is being written is read when that is done
            time.sleep(SETTLED_NS / 1e9)
            stamps |= {path: _stamp(path) for path, stamp in stamps.items() if stamp is None}
        fresh = {
            path: _ReadFile(stamp)
            for path, stamp in stamps.items()
            if stamp is None or path not in before or before[path].stamp != stamp
        }
        listed_all = all(problem.kind != "lost" for problem in problems)
        return listed, fresh, {p for p in before if p not in listed} if listed_all else set()

    def _tidy(self, writer: Index, changed: bool) -> None:
        self._steps += changed
        if self._steps >= COMPACT_STEPS:
            writer.compact()
            self._steps = 0

    def _stale(self, writer: Index, after: dict[str, _ReadFile], whole: bool) -> list[str]:
        """Ids of stored passages that no file has any more."""
        left = {ident for file in after.values() for ident in file.ids}
        if self._files is not None:
            others = (f for path, f in self._files.items() if f is not after.get(path))
            return sorted({ident for file in others for ident in file.ids} - left)
        if not (self._sync and whole):
            return []
        return [e.id for e in writer.store.snapshot.scan() if e.window == 0 and e.id not in left]

    def follow(
        self,
        stop: threading.Event,
        on_step: Callable[[Step], None] = lambda step: None,
        on_error: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """Step after each change until `stop` is set. What fails is reported once and tried again."""
        again, reported = self._files is None, ""
        while not stop.is_set():
            for happened in self._changes(stop):
                if not (happened or again):
                    continue
                try:
                    step = self.step()
                    again, reported = self._unsettled, ""
                    if step.changed:
                        on_step(step)
                except (DecoupledError, OSError) as error:
                    again = True
                    if str(error) != reported:
                        reported = str(error)
                        on_error(error)

    @property
    def _unsettled(self) -> bool:
        return any(file.stamp is None for file in (self._files or {}).values())

    def _changes(self, stop: threading.Event) -> Iterator[bool]:
        """Whether something changed, at least every few seconds; ends when the folders are others."""
        from watchfiles import watch

        places = [Path(source) for source in self.sources]
        if self.missing is not None:
            stop.wait(LOOK_SECONDS)
            yield True
            return
        # A file is watched through its folder: editors put a new file in the place of the old one.
        roots = {str(path if path.is_dir() else path.parent) for path in places}
        before = [path.stat().st_ino for path in places if path.is_dir()]
        yield True  # what changed before the watch was set
        wait = int(LOOK_SECONDS * 1000)
        for changes in watch(
            *sorted(roots),
            debounce=DEBOUNCE_MS,
            step=QUIET_MS,
            stop_event=stop,
            rust_timeout=wait,
            yield_on_timeout=True,
            raise_interrupt=True,
        ):
            yield bool(changes)
            try:
                now = [path.stat().st_ino for path in places if path.is_dir()]
            except OSError:
                now = []
            if now != before:
                return


def _noted(
    stream: Iterable[tuple[File, Passage]], files: dict[str, _ReadFile]
) -> Iterator[Passage]:
    """The passages, each noted with the file that it is from."""
    for file, passage in stream:
        files[str(file.path)].ids.append(passage.id)
        yield passage


def _stamp(path: str) -> Stamp:
    """What changes with the content of a file; None where its time is too fresh to tell, or it is gone."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    if 0 <= time.time_ns() - status.st_mtime_ns < SETTLED_NS:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
