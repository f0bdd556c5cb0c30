"""MTEB: an engine as a reranker of tasks that come with candidates, or an index that whole tasks search.

import mteb
from decoupled.integrations.mteb import DecoupledReranker, DecoupledSearch
mteb.evaluate(DecoupledReranker("model"), mteb.get_tasks(["AskUbuntuDupQuestions"]))
mteb.evaluate(DecoupledSearch("indexes", "model"), mteb.get_tasks(["SciFact"]))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.errors import MissingDependency
from decoupled.index.index import Index
from decoupled.integrations.cross_encoder import CrossEncoder
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine
from decoupled.search.request import CANDIDATES

try:
    from mteb.models import ModelMeta
except ImportError:
    raise MissingDependency("mteb", "mteb") from None


def _described(source: object, revision: str | None = None) -> ModelMeta:
    """What MTEB writes of a model beside its scores."""
    spec = source.spec if isinstance(source, Engine) else None
    name = Path(str(source or "starter")).name if spec is None else spec.family
    how = {"name": f"decoupled/{name}", "revision": revision or "local"}
    return ModelMeta.create_empty(overwrites={**how, "model_type": ["cross-encoder"]})


class DecoupledReranker:
    """A cross-encoder as MTEB calls one. `source` is an index, a model folder, a checkpoint, or an engine."""

    def __init__(
        self, source: str | Path | Engine, revision: str | None = None, device: str | None = None
    ) -> None:
        del device  # the engine chooses
        self.model = CrossEncoder(source)
        self.mteb_model_meta = _described(source, revision)

    def predict(self, inputs1: Any, inputs2: Any, **_: Any) -> npt.NDArray[np.float32]:
        """The score of each query of `inputs1` with the document beside it in `inputs2`."""
        queries, documents = (
            # MTEB gives data loaders, whose items are batches.
            [t for batch in one for t in batch["text"]]
            for one in (inputs1, inputs2)
        )
        return np.asarray(self.model.predict(list(zip(queries, documents, strict=True))))


class DecoupledSearch:
    """Whole retrieval tasks: each corpus becomes an index in `folder`, and queries run through an engine.

    An index that is there already goes on where it stopped. The cross component reads `candidates` of a
    query, so that recall beyond those is not measured.
    """

    def __init__(
        self, folder: str | Path, model: str | Path | None = None, candidates: int = CANDIDATES
    ) -> None:
        self.folder, self.model, self.candidates = Path(folder), model, candidates
        self.mteb_model_meta = _described(model)

    def index(
        self, corpus: Any, *, task_metadata: Any, hf_split: str, hf_subset: str, **_: Any
    ) -> None:
        """Store the corpus of a task."""
        path = self.folder / task_metadata.name / hf_subset / hf_split
        with Index.open_or_create(path, self.model) as index:
            rows = ((row["id"], row["text"], row.get("title") or "") for row in corpus)
            index.add(Passage(id=ident, text=text, title=title) for ident, text, title in rows)
        self.engine = Engine(path)

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Any = None, **_: Any
    ) -> dict[str, dict[str, float]]:
        """The best documents of each query, or its candidates where the task has some, with their scores."""
        results, k = {}, min(top_k, self.candidates)
        for row in queries:
            text, ids = row["text"], top_ranked and top_ranked.get(row["id"], [])
            hits = self.engine.search(text, k) if ids is None else self.engine.rerank(text, ids=ids)
            results[row["id"]] = {hit.id: hit.score for hit in hits}
        return results
