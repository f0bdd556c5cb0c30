"""A query that waits: it is read together with its passages, or alone once somebody wants its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from decoupled.model.states import States
from decoupled.model.tokens import Ids


class Unread(States):
    """The states of one text. Until they are asked for, a cross component may read the text itself."""

    ids: Ids
    reader: object
    _read: Callable[[], States]

    def __init__(self, ids: Ids, reader: object, read: Callable[[], States]) -> None:
        own = {"ids": ids, "lengths": np.array([len(ids)]), "reader": reader, "_read": read}
        self.__dict__.update(own)

    @cached_property
    def values(self) -> npt.NDArray[np.generic]:
        """They are read now, by themselves."""
        return self._read().values

    def waits_for(self, reader: object) -> bool:
        """Has nobody read it yet, and is it for this one to read?"""
        return "values" not in self.__dict__ and reader is self.reader

    def select(self, which: npt.NDArray[np.int64] | Sequence[int]) -> States:  # type: ignore[override]
        """The text itself, if that is all that is wanted."""
        only = len(which) == 1 and which[0] == 0
        return self if only else States(self.values, self.lengths).select(which)
