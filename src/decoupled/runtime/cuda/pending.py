"""A query whose states are not computed yet: the first launch of its passages may read it."""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from decoupled.model.states import States
from decoupled.model.tokens import Ids


class PendingQuery(States):
    """The states of one text, encoded when `values` is first read.

    Until then the cross component of the same runtime may read the token ids itself, within the launches of
    the passages, which saves the wait for a batch of one.
    """

    def __init__(self, ids: Ids, reader: object, encode: Callable[[], States]) -> None:
        # `States` is frozen, and its own constructor would need the values.
        object.__setattr__(self, "lengths", np.array([len(ids)]))
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "_reader", reader)
        object.__setattr__(self, "_encode", encode)
        object.__setattr__(self, "_encoded", False)

    ids: Ids
    _reader: object
    _encode: Callable[[], States]
    _encoded: bool

    @cached_property
    def values(self) -> npt.NDArray[np.generic]:
        """The states, which are computed now."""
        object.__setattr__(self, "_encoded", True)
        return self._encode().values

    def waits_for(self, reader: object) -> bool:
        """Whether it has no states yet and was made by this runtime, which may then read its ids."""
        return not self._encoded and reader is self._reader

    def select(self, which: npt.NDArray[np.int64] | Sequence[int]) -> States:  # type: ignore[override]
        """The query itself where nothing else is selected, so that it stays pending."""
        only = len(which) == 1 and which[0] == 0
        return self if only else States(self.values, self.lengths).select(which)
