"""Changes of the served index, in a thread of their own. The index is locked only while they are made."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from decoupled.errors import DecoupledError, MissingRecord
from decoupled.index.index import Index
from decoupled.model.tokens import Passage
from decoupled.serve.http.batching import IsCancelled
from decoupled.serve.live import LiveEngine


@dataclass(frozen=True, kw_only=True)
class Change:
    """Passages to store, or an id to delete."""

    add: tuple[Passage, ...] = ()
    delete: str | None = None

    @property
    def weight(self) -> int:
        """About as many tokens as there are to encode."""
        return 1 + sum(len(p.text) for p in self.add) // 4


class Writer:
    """Carries out changes one after the other; each is committed before it counts as done."""

    def __init__(self, live: LiveEngine) -> None:
        self._live = live

    def __call__(
        self, changes: Sequence[Change], cancelled: IsCancelled
    ) -> list[dict[str, Any] | Exception]:
        """What each change did, or why it was not made. One that was begun is made, whoever left."""
        del cancelled
        index = self._live.refresh().index
        assert index is not None
        done: list[dict[str, Any] | Exception] = []
        with index.reopen(write=True) as writer:
            for change in changes:
                try:
                    done.append(_carry_out(writer, change))
                except (DecoupledError, OSError) as error:
                    done.append(error)
        return done


def _carry_out(writer: Index, change: Change) -> dict[str, Any]:
    if change.delete is not None:
        if not writer.delete([change.delete]):
            raise MissingRecord(f"the index has no passage {change.delete!r:.200}")
        return {"deleted": 1, "passages": len(writer)}
    added = writer.add(change.add)
    return {
        "added": added.added,
        "unchanged": added.unchanged,
        "replaced": added.replaced,
        "ids": [p.id for p in change.add],
        "passages": len(writer),
    }


def made_id(text: str, title: str) -> str:
    """An id that depends on title and text, so that the same passage added twice is there once."""
    content = f"{title}\0{text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=8).hexdigest()
