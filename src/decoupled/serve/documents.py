"""Documents that a caller lists as the engine takes them, and its results back as places in that list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from decoupled.model.tokens import Passage


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Documents by their place in the list: ids of the index, and texts to encode now."""

    ids: Mapping[int, str]
    texts: Mapping[int, str]

    @property
    def stored(self) -> tuple[str, ...]:
        """The ids, each once."""
        return tuple(dict.fromkeys(self.ids.values()))

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The texts, under names of their own."""
        return tuple(Passage(id=f"{self._mark}{n}", text=text) for n, text in self.texts.items())

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """The places that an id, or the name of a text, stands for: an id that came twice has two."""
        places = {f"{self._mark}{n}": [n] for n in self.texts}
        for place, ident in self.ids.items():
            places.setdefault(ident, []).append(place)
        return places

    @cached_property
    def _mark(self) -> str:
        """How names of texts begin, so that none is the id of a stored document."""
        mark = "#"
        while any(ident.startswith(mark) for ident in self.ids.values()):
            mark += "#"
        return mark
