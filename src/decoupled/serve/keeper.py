"""The engine of a path whose index may be replaced while it serves."""

from __future__ import annotations

import threading

from decoupled.errors import DecoupledError
from decoupled.index.manifest import MANIFEST
from decoupled.search.engine import Engine


class Keeper:
    """Notices when the index of an engine was deleted, or replaced by another one. Threads may share it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._seen = self._mark()
        self._guard = threading.Lock()

    def __call__(self) -> Engine:
        """The engine of the index that is at the path now: another one when the index is another one."""
        with self._guard:
            if self.engine.index is not None:
                mark = self._mark()
                if mark is None:
                    raise DecoupledError(
                        f"the index {self.engine.index.path.name} is not there any more; restore it, or "
                        "index again: it is used as soon as it is back"
                    )
                if mark != self._seen:
                    self.engine, self._seen = self.engine.reopened(), mark
            return self.engine

    def _mark(self) -> str | None:
        index = self.engine.index
        return (
            None if index is None else index.location.stamp(MANIFEST)
        )  # an empty index is one too
