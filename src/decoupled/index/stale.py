"""What an index holds and its corpus no longer has: passages of documents that changed or left."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.index.record import Excerpt, keys_of
from decoupled.index.store.base import Snapshot
from decoupled.model.tokens import Passage

_BATCH = 4096


def document_of(ident: str, meta: Mapping[str, Any]) -> str:
    """The id of the document that a passage was cut from; its own where it was not."""
    document = meta.get("document")
    if isinstance(document, str) and (ident == document or ident.startswith(f"{document}#")):
        return document
    return ident


class Seen:
    """Which passages a build has read, and of which documents: 16 bytes for each."""

    def __init__(self) -> None:
        self._passages, self._documents = array("Q"), array("Q")

    def watch(self, stream: Iterable[Passage]) -> Iterator[Passage]:
        """The passages of a stream, noted as they pass."""
        for passage in stream:
            ident, document = keys_of((passage.id, document_of(passage.id, passage.meta)))
            self._passages.append(int(ident))
            self._documents.append(int(document))
            yield passage

    def stale(self, snapshot: Snapshot, *, everything: bool) -> list[str]:
        """Ids of what was not read, of documents that were; with `everything`, of all documents."""
        passages, read = _unique(self._passages), _unique(self._documents)
        rows = (excerpt for excerpt in snapshot.scan() if excerpt.window == 0)
        stale: list[str] = []
        while batch := list(islice(rows, _BATCH)):
            gone = ~np.isin(keys_of(e.id for e in batch), passages)
            if not everything:
                gone &= np.isin(keys_of(_documents(batch)), read)
            stale += [batch[n].id for n in np.flatnonzero(gone).tolist()]
        return stale


def _documents(batch: Iterable[Excerpt]) -> Iterator[str]:
    return (document_of(excerpt.id, excerpt.meta) for excerpt in batch)


def _unique(keys: array[int]) -> npt.NDArray[np.uint64]:
    return np.unique(np.frombuffer(keys, np.uint64)) if keys else np.zeros(0, np.uint64)
