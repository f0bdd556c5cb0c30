"""An index on a damaged disk: what is missing or changed is said, and never answered from."""

from __future__ import annotations

import json

import numpy as np
import pytest

import decoupled as dc
from commands import Commands
from decoupled.errors import DecoupledError, IndexBusy, InputError
from decoupled.index.index import Index
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine

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


# Check and repair ---------------------------------------------------------------------------------


def flip(file, place=0.5):
    content = bytearray(file.read_bytes())
    content[int(len(content) * place)] ^= 1
    file.write_bytes(content)


def results(path):
    """What searches say, in both first stages."""
    engine = Engine(path)
    return [
        [
            (hit.id, round(hit.score, 4), hit.text)
            for hit in engine.search(QUERY, k=30, first_stage=stage)
        ]
        for stage in ("lexical", "dense")
    ]


@pytest.fixture
def built(split, tmp_path):
    """An index with a search index, deletions and two segments of states."""
    path = tmp_path / "built"
    with Index.create(path, split) as index:
        index.add(passages())
        index.delete(["p7"])
    with Index.open(path, write=True) as index:
        index.add([Passage(id="long", text="the river and the town " * 60)])
    return path


def newest(path, pattern):
    return max(path.glob(pattern), key=lambda file: file.stat().st_mtime_ns)


def test_an_index_that_another_writes_is_not_mended_meanwhile(built):
    with Index.open(built, write=True):
        assert dc.check(built).sound
        with pytest.raises(IndexBusy, match="is being written by process"):
            dc.check(built, repair=True)


def test_an_index_behind_links(built):
    path = built.with_name("link.idx")
    path.symlink_to(built)
    (built / "states").rename(built.with_name("elsewhere"))
    (built / "states").symlink_to(built.with_name("elsewhere"))
    with Index.open(path, write=True) as index:
        index.add([Passage(id="new", text="the bridge of the town")])
        index.compact()
    assert dc.check(path).sound and Engine(path).search("bridge", k=1)[0].id == "new"
    loop = built.with_name("loop.idx")
    loop.symlink_to(loop)
    with pytest.raises(InputError, match=r"loop\.idx does not exist, so it is not an index"):
        Index.open(loop)


def test_a_sound_index_is_sound(built):
    before = results(built)
    for repair in (False, True):
        found = dc.check(built, repair=repair)
        assert found.sound and found.covered and found.damage == () and found.passages == 30
        assert found.bytes > sum(f.stat().st_size for f in (built / "states").glob("*.bin"))
    assert results(built) == before
    assert Index.open(built).check().sound


@pytest.mark.parametrize(
    "pattern",
    [
        "passages.lance/_versions/*.manifest",
        "passages.lance/_indices/*/*",
        "passages.lance/data/*",
        "states/*.bin",
        "head.json",
    ],
)
def test_what_can_be_made_again_is(built, pattern):
    before = results(built)
    flip(newest(built, pattern))
    found = dc.check(built)
    assert not found.sound and found.damage and not any(d.repaired for d in found.damage)
    mended = dc.check(built, repair=True)
    assert mended.sound and mended.damage and mended.lost == () and mended.passages == 30
    assert dc.check(built).damage == ()
    assert results(built) == before


def test_a_manifest_that_is_gone_comes_back(built):
    before = results(built)
    min(built.glob("passages.lance/_versions/*.manifest")).unlink()
    with pytest.raises(
        DecoupledError, match=r"version .* is damaged or gone; run `decoupled check"
    ):
        Index.open(built)
    assert dc.check(built, repair=True).lost == ()
    assert results(built) == before


def test_a_text_that_is_gone_is_named(built):
    file = newest(built, "passages.lance/data/*")
    content = file.read_bytes()
    place = content.index(b"the river and the town")
    file.write_bytes(content[:place] + b"THE" + content[place + 3 :])
    found = dc.check(built, repair=True)
    assert found.lost == ("long",) and not found.sound and found.passages == 29
    assert dc.check(built).sound and results(built)
    with Index.open(built, write=True) as index:
        index.add([Passage(id="long", text="the river and the town " * 60)])
    assert dc.check(built).sound and len(Index.open(built)) == 30


def test_a_codec_without_numbers_is_made_again(built):
    before = results(built)
    (built / "codec.safetensors").unlink()
    assert not dc.check(built).sound
    assert dc.check(built, repair=True).sound
    assert results(built) == before


def test_a_codec_that_was_fitted_cannot_be_made_again(path):
    (path / "codec.safetensors").unlink()
    assert not dc.check(path, repair=True).sound


def test_states_that_are_gone_are_made_again(built):
    before = results(built)
    for segment in (built / "states").glob("*.bin"):
        segment.unlink()
    assert dc.check(built, repair=True).sound
    assert results(built) == before


def test_an_older_index_gets_its_checksums(built):
    before = results(built)
    (built / "head.json").unlink()
    found = dc.check(built)
    assert found.sound and not found.covered
    assert dc.check(built, repair=True).covered and dc.check(built).covered
    assert results(built) == before


def test_deletions_that_are_gone_cannot_be_made_again(built):
    file = newest(built, "passages.lance/_deletions/*")
    for place in np.linspace(
        0, 1, 40, endpoint=False
    ):  # at some of them Lance fails, at others not
        flip(file, place)
        (found,) = dc.check(built, repair=True).damage
        assert not found.repaired and "restore the index from a copy" in found.what
        flip(file, place)
    assert dc.check(built).sound
    flip(file)
    with pytest.raises(DecoupledError, match=r"_deletions/.* of its table is damaged or gone"):
        Index.open(built)


def test_the_command_says_what_it_found(built, monkeypatch, capsys):
    run = Commands(monkeypatch, capsys)
    assert run("check", built, "--json").json["sound"]
    flip(newest(built, "states/*.bin"))
    told = run("check", built)
    assert told.code == 1 and "is damaged" in told.err and "run it again with --repair" in told.err
    assert [d["repaired"] for d in run("check", built, "--repair", "--json").json["damage"]] == [
        True
    ]
    assert run("check", built, "--json").json["damage"] == []
