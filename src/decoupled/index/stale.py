"""Finds stale passages: an index holds them, but their document changed or left the corpus."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.index.record import Excerpt, keys_of
from decoupled.index.store.base import Snapshot
from decoupled.model.tokens import Passage

_BATCH = 4096


def document_of(ident: str, meta: Mapping[str, Any]) -> str:
    """The id of the document that a passage was cut from, or its own id if it was not cut."""
    document = meta.get("document")
    # Users' own metadata may be called `document` too: only ids `document#…` were cut from it.
    if isinstance(document, str) and (ident == document or ident.startswith(f"{document}#")):
        return document
    return ident


class Seen:
    """Remembers which passages and documents a build has read, in 16 bytes for each passage."""

    def __init__(self) -> None:
        self._passages, self._documents = array("Q"), array("Q")

    def watch(self, stream: Iterable[Passage]) -> Iterator[Passage]:
        """Yield the passages of a stream unchanged, and remember their ids and documents."""
        for passage in stream:
            ident, document = keys_of((passage.id, document_of(passage.id, passage.meta)))
            self._passages.append(int(ident))
            self._documents.append(int(document))
            yield passage

    def stale(
        self, snapshot: Snapshot, *, everything: bool, kept: Collection[str] = ()
    ) -> list[str]:
        """Ids of stored passages that were not read although their document was.

        With `everything`, also those of documents that were not read at all, but for those that are `kept`.
        """
        if not (everything or self._documents):
            return []
        # Keys are sorted once, so that each batch of the index is looked up in them quickly.
        passages, read = _unique(self._passages), _unique(self._documents)
        # Further windows of a passage have the same id: one record for each passage is enough.
        rows = (excerpt for excerpt in snapshot.scan() if excerpt.window == 0)
        stale: list[str] = []
        while batch := list(islice(rows, _BATCH)):
            gone = ~np.isin(keys_of(e.id for e in batch), passages)
            if not everything:
                gone &= np.isin(keys_of(_documents(batch)), read)
            left = (batch[n] for n in np.flatnonzero(gone).tolist())
            stale += [e.id for e in left if document_of(e.id, e.meta) not in kept]
        return stale


def _documents(batch: Iterable[Excerpt]) -> Iterator[str]:
    return (document_of(excerpt.id, excerpt.meta) for excerpt in batch)


def _unique(keys: array[int]) -> npt.NDArray[np.uint64]:
    return np.unique(np.frombuffer(keys, np.uint64)) if keys else np.zeros(0, np.uint64)
