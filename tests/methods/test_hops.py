"""Candidates that are followed along their links, and read together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from added_parts import with_vector

from decoupled.errors import InputError
from decoupled.index.index import Index
from decoupled.index.record import Excerpt
from decoupled.methods.hop.links import linked
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine

GIVEN = [
    Passage(id="bridge", text="the old castle was built by the count", title="castle"),
    Passage(id="count", text="he was born in the north town", title="count"),
    Passage(id="river", text="floods in spring", title="river", meta={"links": ["moon"]}),
    Passage(id="moon", text="a star over the wall", title=""),
]
QUESTION = "who built the castle"


@pytest.fixture(scope="module")
def plain(model) -> Model:
    return Model.split(model("bert", "span", num_hidden_layers=4), at=2)


@pytest.fixture(scope="module")
def hopping(plain) -> Model:
    """With hops that take from what they hear."""
    made = apply(plain, parse("hop:heads=4"))
    torch.manual_seed(0)
    for block in made.net.stack.hop.values():
        torch.nn.init.normal_(block.mix.weight, std=0.3)
    return made


def excerpts(passages: list[Passage]) -> list[Excerpt]:
    none = np.zeros((0, 2), np.int32)
    return [
        Excerpt(id=p.id, text=p.text, title=p.title, meta=p.meta, offsets=none) for p in passages
    ]


def test_links_are_titles_that_are_shared_or_mentioned_and_ids_that_are_given():
    found = linked(excerpts(GIVEN))
    assert found.tolist() == [
        [False, True, False, False],  # the castle mentions the count
        [True, False, False, False],
        [False, False, False, True],  # given
        [False, False, True, False],
    ]
    assert linked(excerpts([GIVEN[1], GIVEN[1]])).tolist() == [[False, True], [True, False]]
    bare = [Passage(id=name, text=name) for name in "abc"]
    assert (linked(excerpts(bare)) == ~np.eye(3, dtype=bool)).all(), "nothing says which, so all"
    for odd in ("moon", 5, {"moon": 1}, [1, "moon"], [["moon"]]):
        wrong = Passage(id="x", text="y", title="x", meta={"links": odd})
        assert not linked(excerpts([wrong, *GIVEN[2:]]))[0].any(), "that passage has no links"


def test_one_hop_reads_each_alone_and_two_read_together(plain, hopping):
    linked_texts, alone = GIVEN[:2], [GIVEN[0], GIVEN[3]]
    for made, moves in ((plain, False), (hopping, True)):
        engine = Engine(made)
        for texts, joined in ((linked_texts, True), (alone, False)):
            one, two = (engine.ask(QUESTION, texts=texts, hops=hops).weight for hops in (1, 2))
            assert (abs(one - two) > 1e-5) == (moves and joined)


def test_a_candidate_that_only_a_link_leads_to_is_read(hopping, tmp_path):
    with Index.create(tmp_path / "i", hopping, codec="fp32") as index:
        index.add(GIVEN)
        engine = Engine(index)
        options = {"k": 20, "first_stage": "lexical"}
        near = {a.passage_id for a in engine.ask("floods in spring", **options)}
        far = {a.passage_id for a in engine.ask("floods in spring", hops=2, **options)}
        assert near == {"river"} and far == {"river", "moon"}
        by_title = {a.passage_id for a in engine.ask("born north", hops=2, **options)}
        assert by_title == {"bridge", "count"}
        assert not engine.ask("xylophone", hops=2, **options)
        beyond = {a.passage_id for a in engine.ask("floods in spring", hops=4, **options)}
        assert beyond == far, "no link leads further"
        direct = Engine(hopping).ask("born north", k=20, texts=[GIVEN[1], GIVEN[0]], hops=2)
        stored = engine.ask("born north", k=20, ids=["count", "bridge"], hops=2)
        assert [a.text for a in direct] == [a.text for a in stored]
        assert direct.weight == pytest.approx(stored.weight, abs=1e-5)
        index.add([Passage(id="lost", text="the lake", meta={"links": ["nowhere", "moon"]})])
        index.add([Passage(id="odd", text="the sea", meta={"links": "moon"})])
        ids = {a.passage_id for a in Engine(index).ask("lake", hops=2, **options)}
        assert ids == {"lost", "moon"}, "a link to nothing is passed over"
        assert {a.passage_id for a in Engine(index).ask("sea", hops=2, **options)} >= {"odd"}
    with pytest.raises(InputError, match="hops=0; choose 1 or more"):
        Engine(hopping).ask(QUESTION, texts=["a"], hops=0)


def test_what_has_no_title_and_no_links_is_followed_by_its_vector(hopping, tmp_path):
    words = ("river", "castle", "king", "bridge", "moon", "star", "ship", "tower", "wall", "lake")
    given = [Passage(id=word, text=f"the old {word}") for word in words]
    with Index.create(tmp_path / "i", with_vector(hopping, 8), codec="fp32") as index:
        index.add([*given, Passage(id="titled", text="a hill", title="hill")])
        engine = Engine(index)
        options = {"k": 20, "first_stage": "lexical", "hops": 2}
        (row,) = index.store.snapshot.locate(["moon"])
        near = index.store.snapshot.dense(index.store.snapshot.vectors(np.array([row]))[0], 5).rows
        expected = {text.id for text in index.store.snapshot.texts(near)} | {"moon"}
        assert {a.passage_id for a in engine.ask("moon", **options)} == expected
        assert {a.passage_id for a in engine.ask("hill", **options)} == {"titled"}, "by its title"
