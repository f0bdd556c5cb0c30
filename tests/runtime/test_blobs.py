"""Compiled components that are kept in the cache folder."""

import numpy as np
import pytest

from decoupled import Engine
from decoupled.model.folder import starter_model
from decoupled.runtime.openvino import blobs, runtime

TEXTS = ["Bram Stoker wrote Dracula in 1897.", "Lyon is a city in France."]


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "decoupled" / "compiled"


def scores() -> list[float]:
    hits = Engine(starter_model()).rerank("who wrote Dracula?", texts=TEXTS, raw=True)
    return [hit.score for hit in hits]


def test_a_second_process_compiles_nothing_and_scores_the_same(folder, monkeypatch):
    first = scores()
    kept = sorted(folder.glob("*.blob"))
    assert len(kept) == 2 and not list(folder.glob("*.tmp"))
    with monkeypatch.context() as patch:
        for name in ("input_model", "cross_model"):
            patch.setattr(runtime, name, lambda *_, **__: pytest.fail("it was compiled again"))
        assert scores() == first
    whole = bytearray(kept[0].read_bytes())
    whole[len(whole) // 2] ^= 1
    for damage in (b"", b"no blob", whole[: 1 << 12], whole):
        for blob in folder.glob("*.blob"):
            blob.write_bytes(damage)
        assert scores() == pytest.approx(first), "what is damaged is compiled again"


def test_small_models_and_folders_that_cannot_be_written_keep_nothing(folder, model, tmp_path):
    small = tmp_path / "small"
    model("bert", "rank").save(small)
    assert blobs.identity_of(small) is None
    (tmp_path / "decoupled").write_text("a file where the folder should be")
    assert np.isfinite(scores()).all()


def test_only_the_newest_stay(folder, monkeypatch):
    monkeypatch.setattr(blobs, "KEPT", 1)
    scores()
    assert len(list(folder.glob("*.blob"))) == 1
