"""Rows of a passage beside those of its tokens: nodes of a tree, and whatever else a kind puts among them.

A structure is a frozen dataclass with a field `kind`, as a part is, and is known as soon as it is defined.
The tokenizer asks it for the rows of a text, the embedding for their vectors; layers find it in their frame.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int32]
Ids = TypeVar("Ids")
"""An array or a tensor of ids."""


class Structure(ABC):
    """The ids of a text say all that there is: those from `first` on are no tokens."""

    unsaid: ClassVar[str] = "tree"
    """The kind that is meant by files that name none, written when there was only one."""
    first: int

    @property
    @abstractmethod
    def kind(self) -> str:
        """The tag of this structure in JSON."""

    @abstractmethod
    def read(self, text: str, parse: str) -> Any:
        """What `add` needs of a text, whose record may have a `structure`; raises where they do not fit."""

    @abstractmethod
    def add(
        self, read: Any, ids: Rows, offsets: Rows, *, start: int, title: slice
    ) -> tuple[Rows, Rows]:
        """Ids and offsets of a window with these rows among them.

        The window begins at the character `start` of its text; `title` says which rows are of a title.
        """

    @abstractmethod
    def in_table(self, ids: Ids) -> Ids:
        """The row of the token table for each id."""
