"""An index on a damaged disk: what is missing or changed is said, and never answered from."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decoupled.errors import DecoupledError
from decoupled.index.index import Index
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.search.late_interaction import LateInteraction

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


@pytest.mark.parametrize("name", ["codec", "fingerprint", "sources"])
def test_a_changed_manifest_is_refused(path, name):
    manifest = json.loads((path / "manifest.json").read_text())
    manifest[name] = "int4"
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DecoupledError, match=r"manifest\.json of .* is damaged; restore it"):
        Index.open(path)


@pytest.mark.parametrize(
    "content", ["{}", "[" * 100_000, '{"format": 1}', '{"format": 1, "codec": 3}']
)
def test_a_crafted_manifest_is_one_error(path, content):
    (path / "manifest.json").write_text(content)
    with pytest.raises(DecoupledError, match=r"manifest\.json of .* is damaged"):
        Index.open(path)


def test_a_changed_cascade_is_refused(path):
    location = Index.open(path).location
    LateInteraction(keep=0.25, metric=np.eye(8, dtype=np.float32)).save(location)
    assert LateInteraction.load(location).keep == 0.25
    file = path / "cascade.safetensors"
    for place in (-1, -9 * 4, -8 * 8 * 4 - 8):
        content = bytearray(file.read_bytes())
        content[place] ^= 1
        file.write_bytes(content)
        with pytest.raises(DecoupledError, match=r"cascade\.safetensors of .* is damaged"):
            LateInteraction.load(location)
        content[place] ^= 1
        file.write_bytes(content)
