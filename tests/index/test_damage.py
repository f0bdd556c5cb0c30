"""An index on a damaged disk: what is missing or changed is said, and never answered from."""

from __future__ import annotations

import pytest

from decoupled.errors import DecoupledError
from decoupled.index.index import Index
from decoupled.model.model import Model
from decoupled.model.tokens import Passage

QUERY = "which river runs past the town"


def passages(count: int = 30) -> list[Passage]:
    places = ("river", "town", "castle", "spring", "house")
    return [
        Passage(id=f"p{n}", text=f"the {places[n % 5]} of number {n}", meta={"n": n})
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def split(model) -> Model:
    return Model.split(model("bert", "rank"), at=2)


@pytest.fixture
def path(split, tmp_path):
    """An index of three versions: added, one deleted."""
    path = tmp_path / "i"
    with Index.create(path, split, codec="project:8+int8") as index:
        index.add(passages())
        index.delete(["p7"])
    return path


@pytest.mark.parametrize("write", [False, True])
def test_passages_without_their_codec_are_no_empty_index(path, write):
    (path / "codec.safetensors").unlink()
    with pytest.raises(DecoupledError, match=r"codec\.safetensors of .* is gone, and its passages"):
        Index.open(path, write=write)
