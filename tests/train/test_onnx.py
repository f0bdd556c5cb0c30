"""Exported graphs rank in onnxruntime as the engine does, without this package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import decoupled as dc
from decoupled.errors import InputError
from decoupled.measure.metrics import kendall
from decoupled.model.model import Model
from decoupled.train.export import export
from decoupled.train.reshape import with_projection

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
QUERY = "the river by the castle"
TEXTS = [
    "a castle", "the moon and the star over the old stone bridge", "the river by the town", "ships",
    "a long wall of stone around the castle on the island, and the forest north of the lake",
]  # fmt: skip


def ranker(folder: Path, **how):
    """The program of the examples, over an exported folder."""
    path = Path(__file__).parents[2] / "examples" / "onnx_rank.py"
    spec = importlib.util.spec_from_file_location("onnx_rank", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Ranker(folder, **how)


def by_engine(folder: Path, index: Path) -> np.ndarray:
    """The logits of an engine over an index in int8, in the order of the texts."""
    with dc.Index.create(index, folder, codec="int8", runtime="openvino-fp32") as opened:
        opened.add(dc.Passage(id=str(n), text=text) for n, text in enumerate(TEXTS))
        hits = dc.Engine(opened).rerank(QUERY, ids=[str(n) for n in range(len(TEXTS))], raw=True)
    scores = {int(hit.id): hit.score for hit in hits}
    return np.asarray([scores[n] for n in range(len(TEXTS))])


def exported(model: Model, folder: Path, **how) -> Path:
    model.save(folder)
    export(folder, runtime="onnx", **how)
    return folder


@pytest.mark.parametrize(
    "family",
    ["bert", *(pytest.param(f, marks=pytest.mark.slow) for f in ("modernbert", "electra"))],
)
def test_graphs_rank_as_an_index_in_int8_does(family, model, tmp_path):
    split = Model.split(model(family, "rank"), at=1)
    folder = exported(with_projection(split, 12), tmp_path / "model")
    program = ranker(folder)
    ours = by_engine(folder, tmp_path / "i.idx")
    theirs = program.rank(QUERY, program.store(TEXTS))
    assert np.ptp(ours) > 1e-2, "scores must differ, or anything is right"
    assert np.abs(ours - theirs).max() < 1e-4
    readme = (folder / "onnx" / "README.md").read_text()
    assert "`passages` | float32 | texts, tokens, 12 |" in readme and "`rank`" in readme


@pytest.mark.slow
def test_graphs_in_bytes_rank_alike(model, tmp_path):
    folder = exported(Model.split(model("bert", "rank"), at=1), tmp_path / "model", int8=True)
    assert {file.suffix for file in (folder / "onnx").iterdir()} == {".onnx", ".md"}
    program = ranker(folder, int8=True)
    theirs = program.rank(QUERY, program.store(TEXTS))
    assert kendall(theirs.tolist(), by_engine(folder, tmp_path / "i.idx").tolist()) >= 0.8


def test_a_joint_model_has_nothing_to_store(model, tmp_path):
    model("bert", "rank").save(tmp_path / "joint")
    with pytest.raises(InputError, match="stores no states; split it at 1 or above"):
        export(tmp_path / "joint", runtime="onnx")
