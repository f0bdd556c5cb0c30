"""The read path is the line that ARCHITECTURE.md draws: each stage is entered after the one before it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import decoupled
from decoupled.index.index import Index
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine
from toy import PLACES

ROOM = Path(decoupled.__file__).parent / "search"
STAGES = ["first_stage", "fetch", "blend", "late_interaction", "cross", "answers", "results"]


def entered(work) -> list[str]:
    """The modules of the room whose functions `work` calls, in the order of their first call."""
    order: list[str] = []

    def profile(frame, event, _) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.parent == ROOM and path.stem not in order:
            order.append(path.stem)

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return order


def test_a_query_passes_the_stages_in_their_order(model, tmp_path):
    split = Model.split(model("bert", "rank"), at=2)
    with Index.create(tmp_path / "i", split, codec="fp32") as index:
        index.add(Passage(id=f"p{n}", text=f"{place} castle {n}") for n, place in enumerate(PLACES))
    engine = Engine(tmp_path / "i", cascade=0.5)
    engine.search("castle", k=2)
    path = entered(lambda: engine.search("river castle", k=2))
    assert [name for name in path if name in STAGES] == [name for name in STAGES if name in path]
    assert set(STAGES) - {"blend"} <= set(path) <= {"engine", "request", "tracing", *STAGES}
    drawn = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^a query +(.*?)  ", drawn, re.MULTILINE)
    named = [stage.strip().replace(" ", "_") for stage in line.split("→")]
    assert [name for name in named if name in STAGES] == [s for s in STAGES if s in named]
