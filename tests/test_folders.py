"""Folders of an earlier version open and give the scores that it gave."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import decoupled as dc

FOLDERS = sorted((Path(__file__).parent / "folders").glob("*.zip"), key=lambda p: p.stem)
PASSAGES = (
    "Bram Stoker wrote the novel Dracula, a story of a vampire count, in 1897.",
    "Paris is the capital of France and lies on a river.",
    "The king built a castle near the lake. Its wall and tower were made of stone in the first century.",
    "A steam train opened the station in the north of England.",
    "The moon is small and the sun is a star.",
)


@pytest.fixture(params=FOLDERS, ids=lambda path: path.stem)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A folder with a model, or with an index that holds its model, and what came out of it."""
    with zipfile.ZipFile(request.param) as packed:
        packed.extractall(tmp_path)
    return tmp_path, json.loads((tmp_path / "expected.json").read_text(encoding="utf-8"))


def outputs(engine: dc.Engine, query: str, **passages: Any) -> Any:
    heads = {head.kind for head in engine.spec.heads}
    if "rank" in heads:
        return {hit.id: hit.score for hit in engine.rerank(query, raw=True, **passages)}
    if "span" in heads:
        answers = engine.ask(query, k=5, **passages)
        return [[a.text, a.start, a.end, a.passage_id, a.score] for a in answers]
    return [label.scores for label in engine.classify([(query, p) for p in PASSAGES], raw=True)]


def same(left: Any, right: Any, tolerance: float) -> None:
    if isinstance(right, float):
        assert left == pytest.approx(right, abs=tolerance)
    elif isinstance(right, list | dict):
        assert len(left) == len(right)
        for key in right if isinstance(right, dict) else range(len(right)):
            same(left[key], right[key], tolerance)
    else:
        assert left == right


@pytest.mark.parametrize(("runtime", "tolerance"), [("torch", 1e-6), ("openvino-fp32", 1e-3)])
def test_scores_are_those_that_were_given(old, runtime, tolerance):
    folder, expected = old
    stored = (folder / "index").is_dir()
    model = folder / "index" / "model" if stored else folder / "model"
    given = next(expected[name] for name in ("rerank", "ask", "classify") if name in expected)
    engine = dc.Engine(model, runtime=runtime)
    same(outputs(engine, expected["query"], texts=PASSAGES), given, tolerance)
    if stored:
        engine = dc.Engine(folder / "index", runtime=runtime)
        ids = ["p1", "p2", "p3", "p4"]
        same(outputs(engine, expected["query"], ids=ids), expected["stored"], tolerance)
        found = [p.id for p in engine.candidates("river capital", first_stage="lexical")]
        assert found == expected["lexical"], "p5 was deleted"


def test_the_fingerprint_of_a_model_is_the_one_in_its_index(old):
    folder, expected = old
    if "fingerprint" not in expected:
        pytest.skip("a model without an index")
    model = dc.Model.load(folder / "index" / "model")
    assert model.fingerprint == expected["fingerprint"]
    with dc.Index.open(folder / "index", model=model, write=True) as index:
        added = index.add([dc.Passage(id="p6", text="Rain and wind came from the sea.")])
    assert added.added == 1


def test_a_model_is_written_as_it_was(old, tmp_path):
    folder, _ = old
    source = next(folder.glob("**/spec.json")).parent
    dc.Model.load(source).save(tmp_path / "again")
    for name in ("spec.json", "weights.safetensors", "tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (source / name).read_bytes(), name
