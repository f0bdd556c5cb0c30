"""What stands around a passage: those of its document that are near, whole and in order."""

from __future__ import annotations

from decoupled.index.index import Index
from decoupled.index.stored import AROUND, passage_and_around
from decoupled.model.model import Model
from decoupled.model.tokens import Passage


def test_neighbours_are_those_within_reach_in_the_order_of_the_document(model, tmp_path):
    """One character more, and a passage is too far."""
    middle, text = 5_000, "the river of the town"
    last = middle + len(text) + AROUND
    starts = (middle - AROUND - 1, middle - AROUND, last, last + 1)
    with Index.create(
        tmp_path / "i", Model.split(model("bert", "rank"), at=1), codec="fp16"
    ) as index:
        index.add(
            Passage(id=f"a{start}", text=text, meta={"document": "a", "start": start})
            for start in (middle, *starts)
        )
        index.add([Passage(id="b", text=text, meta={"document": "b", "start": middle})])
        index.add([Passage(id="alone", text=text)])
        found, around = passage_and_around(index.refresh(), f"a{middle}")
        assert AROUND == 1500 and found.text == text
        assert [p.meta["start"] for p in around] == [middle - AROUND, middle, last]
        assert {p.meta["document"] for p in around} == {"a"}
        assert [p.id for p in passage_and_around(index.refresh(), "alone")[1]] == ["alone"]
