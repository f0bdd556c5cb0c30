"""The engine of a path whose index may be replaced while it serves."""

import threading
from contextlib import suppress

from decoupled.errors import DecoupledError
from decoupled.index.manifest import MANIFEST
from decoupled.search.engine import Engine


class LiveEngine:
    """Notices when the index of an engine was deleted, or replaced by another one. Threads may share it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._seen = self._stamp()
        self._lock = threading.Lock()

    def refresh(self) -> Engine:
        """The engine for the index that is at the path now; a new one where the index was replaced."""
        with self._lock:
            if self.engine.index is not None:
                stamp = self._stamp()
                if stamp is None:
                    raise DecoupledError(
                        f"the index {self.engine.index.path.name} is not there any more; restore it, or "
                        "index again: it is used as soon as it is back"
                    )
                if stamp != self._seen:
                    self.engine, self._seen = self.engine.reopened(), stamp
            return self.engine

    def _stamp(self) -> str | None:
        index = self.engine.index  # compared with None: an empty index is false
        return None if index is None else index.location.stamp(MANIFEST)


def ask_once(engine: Engine) -> None:
    """Answer a question before any client does: what a runtime builds at its first use, nobody waits for."""
    if engine.index is None or not len(engine.index):
        return
    with suppress(DecoupledError):  # the client that meets it is told
        kinds = {head.kind for head in engine.spec.heads}
        (engine.ask if "span" in kinds else engine.search)("What is this about?")
