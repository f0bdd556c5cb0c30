"""What agents search: an index, or files with an index of their own, opened and followed in a thread."""

import asyncio
import logging
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from decoupled.errors import DecoupledError, InputError
from decoupled.index.index import Index
from decoupled.index.ingest import Added
from decoupled.index.manifest import is_index
from decoupled.index.watch import Step, Watch
from decoupled.model.folder import starter_model
from decoupled.model.sums import SUMS
from decoupled.runtime.cpu import cache_folder
from decoupled.search.engine import Engine
from decoupled.serve.http.limits import Limits
from decoupled.serve.http.service import Service
from decoupled.serve.live import ask_once

_log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds that a call waits for a first indexing; then it is answered from what is stored so far."""
TELL = 0.5
"""Seconds between two notifications of progress."""
_POLL = 0.02

Tell = Callable[[float, float | None, str], Awaitable[None]]
"""Is notified how far the indexing is: done, of how much, and in words."""


class Stopped(Exception):
    """Ends an indexing whose server stops; never leaves this module."""


class McpSource:
    """An index, or files whose index lies in the cache folder; a thread loads the model and follows them."""

    def __init__(self, sources: Sequence[str | Path], *, runtime: str = "auto") -> None:
        self._runtime = runtime
        indexes = [source for source in sources if is_index(source)]
        if indexes and len(sources) > 1:
            raise InputError(f"{indexes[0]} is an index; name one index, or files and folders only")
        self.files = (
            [] if indexes else [str(Path(source).expanduser().resolve()) for source in sources]
        )
        for file in self.files:
            if not Path(file).exists():
                raise InputError(f"{file} does not exist; check the path")
        self.path = Path(indexes[0]) if indexes else folder_index(self.files)
        self._service: Service | None = None
        self._watch: Watch | None = None
        self._error: Exception | None = None
        self._indexed = not self.files
        self._bytes, self._passages = 0, 0
        self._total: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mcp-source", daemon=True)

    def start(self) -> None:
        """Load the model and begin to follow the files, in a thread."""
        self._thread.start()

    async def service(self, tell: Tell) -> tuple[Service, list[str]]:
        """What answers, and notes for the reader; waits for the model, and a while for a first indexing."""
        began = notified = time.monotonic()
        while not self._usable(time.monotonic() - began):
            if time.monotonic() - notified >= TELL:
                notified = time.monotonic()
                await tell(self._bytes, self._total, self._words())
            await asyncio.sleep(_POLL)
        if self._watch is not None and (gone := self._watch.missing) is not None:
            raise InputError(f"{gone} is not there any more; it is searched again once it is back")
        assert self._service is not None
        return self._service, [] if self._indexed else [self._words()]

    def _usable(self, waited: float) -> bool:
        if self._service is None:
            if self._error is not None:
                raise self._error
            return False
        # An index of an earlier start answers while the files are compared with it.
        if self._indexed or self._passages:
            return True
        if waited < PATIENCE:
            return False
        if not self._service.newest().passages:
            raise InputError(
                f"{self._words()}; nothing can be searched yet: call again in a moment"
            )
        return True

    def _words(self) -> str:
        if self._error is not None:
            return f"the files cannot be followed now: {self._error}"
        share = f" {100 * self._bytes / self._total:.0f} % read," if self._total else ""
        return f"still loading and indexing:{share} answers may be incomplete"

    async def close(self) -> None:
        """Stop following; what was committed stays."""
        self._stop.set()
        if self._service is not None:
            await self._service.close()
        await asyncio.to_thread(self._thread.join, 10)

    # In the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            index = self._open()
            if self._stop.is_set():
                return
            engine = Engine(index)
            assert engine.runtime is not None  # loaded here, so that the writer takes it over
            self._passages = len(index)
            if self._passages:
                ask_once(engine)
            if self.files:
                self._watch = Watch(index, self.files, report=lambda p: _log.warning("%s", p))
            self._service = Service(engine, Limits())
        except (DecoupledError, OSError) as error:
            self._error = error
            return
        if self._watch is not None:
            with suppress(Stopped):
                self._first(self._watch)
                self._watch.follow(self._stop, self._followed, self._failed)

    def _open(self) -> Index:
        if self.files and not is_index(self.path):
            try:
                Index.create(self.path, runtime=self._runtime, sources=self.files).close()
            except DecoupledError:
                if not is_index(self.path):  # another server of these files was first
                    raise
        return Index.open(self.path, runtime=self._runtime)

    def _first(self, watch: Watch) -> None:
        """Bring the index in step for the first time, as soon as no other process is doing that."""
        while not self._stop.is_set():
            try:
                self._bytes = 0
                expect = partial(setattr, self, "_total")
                self._followed(
                    watch.step(progress=self._progress, on_total=expect, on_bytes=self._read)
                )
                self._indexed, self._error = True, None
                return
            except (DecoupledError, OSError) as error:
                self._failed(error)
                self._stop.wait(1.0)

    def _followed(self, step: Step) -> None:
        self._error = None
        if step.changed:
            _log.info("%s", step)

    def _failed(self, error: Exception) -> None:
        self._error = error
        _log.warning("%s", error)

    def _progress(self, _: Added) -> None:
        if self._stop.is_set():
            raise Stopped

    def _read(self, count: int) -> None:
        self._bytes += count


def folder_index(files: Sequence[str]) -> Path:
    """Where the index of files lies: in the cache folder, by their paths and the bundled model."""
    model = (starter_model() / SUMS).read_bytes()
    key = zlib.crc32(model, zlib.crc32("\0".join(files).encode("utf-8", "surrogateescape")))
    return cache_folder() / "folders" / f"{Path(files[0]).name or 'root'}-{key:08x}.idx"
