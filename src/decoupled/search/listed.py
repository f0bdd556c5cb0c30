"""Documents that a caller lists as the engine takes them, and its results back as places in that list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoupled.model.tokens import Passage


def as_asked(
    ids: Mapping[int, str], texts: Mapping[int, str]
) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The `ids` and `texts` to ask an engine with, and the places of each id of its results.

    Given are ids of the index, and texts to encode now, by their place in the list. An id that came twice
    has two places; texts get ids that no stored document of the list has.
    """
    # An id begins with at most one of the marks 0#, 1#, …, so one of the first n + 1 is free of n ids.
    taken = {ident.partition("#")[0] for ident in ids.values()}
    mark = next(f"{n}#" for n in range(len(taken) + 1) if str(n) not in taken)
    passages = tuple(Passage(id=f"{mark}{n}", text=text) for n, text in texts.items())
    places = {f"{mark}{n}": [n] for n in texts}
    for place, ident in ids.items():
        places.setdefault(ident, []).append(place)
    return {"ids": tuple(dict.fromkeys(ids.values())), "texts": passages}, places
