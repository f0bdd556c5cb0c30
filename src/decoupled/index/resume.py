"""Where an interrupted first build goes on: at a place of its corpus before which everything is stored.

A build that adds to an index reads its corpus from the beginning: passages that are there already are
passed over by their content, and those that their documents no longer have are found.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from decoupled.index.documents.chunks import Mark
from decoupled.index.documents.files import Problems
from decoupled.index.documents.passages import Place
from decoupled.index.documents.sources import Source, list_files
from decoupled.index.documents.walk import Chosen
from decoupled.index.ingest import Added, Progress
from decoupled.index.store.location import RESUME, Location
from decoupled.model.tokens import Passage


class Resume:
    """Keeps the place in the index after each commit, and gives it back where the corpus is the same."""

    def __init__(
        self, location: Location, sources: Sequence[Source], chosen: Chosen, options: Sequence[Any]
    ) -> None:
        """`options` is whatever else decides what is read, and how it is cut."""
        self._location = location
        self._files = list_files(sources, Problems("skip"), chosen)
        self._listed, self._stamp = 0, hashlib.blake2b(digest_size=16)
        self._key = [*map(str, sources), chosen.include, chosen.exclude, chosen.format, *options]
        self._read = 0
        self._behind: deque[tuple[int, Place]] = deque()
        self._begin = self._load()

    @property
    def begin(self) -> Place:
        """Where reading begins."""
        return self._begin or Place()

    @property
    def going_on(self) -> bool:
        """Is there a build to go on with?"""
        return self._begin is not None

    def watch(self, stream: Iterable[tuple[Passage, Place | None]]) -> Iterator[Passage]:
        """The passages of a stream; the places behind them are kept until they are stored."""
        if self._begin is not None:
            self._behind.append((0, self._begin))
        for passage, behind in stream:
            self._read += 1
            if behind is not None:
                self._behind.append((self._read, behind))
            yield passage

    def noting(self, progress: Progress | None) -> Progress:
        """What `add` tells goes here too, and the place is kept in the index."""

        def told(done: Added) -> None:
            self._reached(done)
            if progress is not None:
                progress(done)

        return told

    def forget(self) -> None:
        """The build is done."""
        self._location.drop(RESUME)

    def _reached(self, done: Added) -> None:
        """Keep the last place before which all passages are stored."""
        place = None
        while self._behind and self._behind[0][0] <= done.handled:
            place = self._behind.popleft()[1]
        if place is not None and (stamp := self._stamp_of(place.file)) is not None:
            content = {"key": self._digest(), "stamp": stamp, "place": place}
            self._location.save(RESUME, json.dumps(content).encode())

    def _load(self) -> Place | None:
        try:
            said = json.loads(self._location.load(RESUME) or b"{}")
            file, member, rows, (at, passages), document = said["place"]
            mark = Mark(int(at), int(passages))
            place = Place(int(file), int(member), int(rows), mark, str(document))
        except (ValueError, KeyError, TypeError):
            return None  # there is none, or it is damaged: the corpus is read from its beginning
        same = said.get("key") == self._digest() and said.get("stamp") == self._stamp_of(place.file)
        return place if same else None

    def _digest(self) -> str:
        key = json.dumps(self._key, default=str)
        return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def _stamp_of(self, number: int) -> str | None:
        """Names, sizes and times of the files up to this one; None where one is gone, or a stream."""
        while self._listed <= number and (file := next(self._files, None)) is not None:
            if file.path is None or not file.path.is_file():
                self._files = iter(())
                return None
            found = file.path.stat()
            said = f"{file.name}\0{found.st_size}\0{found.st_mtime_ns}\0"
            self._stamp.update(said.encode())
            self._listed += 1
        return self._stamp.hexdigest() if self._listed == number + 1 else None
