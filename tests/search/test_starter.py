"""The sample passages with the starter model, as it is installed."""

from __future__ import annotations

import shutil
from dataclasses import replace

from decoupled.model import folder
from decoupled.search.starter import sample_index


def test_what_was_learnt_about_the_starter_makes_another_sample_index(tmp_path, monkeypatch):
    """An index keeps a copy of its model: an older one would go on being served."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    starter = shutil.copytree(folder.starter_model(), tmp_path / "starter")
    monkeypatch.setattr(folder, "starter_model", lambda: starter)
    with sample_index() as index:
        before = index.path
    with sample_index() as index:
        assert index.path == before
    late = folder.read_spec(starter).late
    folder.write_scoring(starter, None, late=replace(late, keep=0.5))
    with sample_index() as index:
        assert index.path != before and folder.read_spec(index.path / "model").late.keep == 0.5
