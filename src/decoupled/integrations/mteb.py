"""MTEB: an engine as a reranker of retrieval tasks that come with candidates.

import mteb
from decoupled.integrations.mteb import DecoupledReranker
mteb.evaluate(DecoupledReranker("model"), mteb.get_tasks(["AskUbuntuDupQuestions"]))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.errors import MissingDependency
from decoupled.integrations.cross_encoder import CrossEncoder
from decoupled.search.engine import Engine

try:
    from mteb.models import ModelMeta
except ImportError:
    raise MissingDependency("mteb", "mteb") from None


class DecoupledReranker:
    """A cross-encoder as MTEB calls one. `source` is an index, a model folder, a checkpoint, or an engine."""

    def __init__(
        self, source: str | Path | Engine, revision: str | None = None, device: str | None = None
    ) -> None:
        del device  # the engine chooses
        self.model = CrossEncoder(source)
        name = (
            Path(source).name if isinstance(source, str | Path) else self.model.engine.spec.family
        )
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={
                "name": f"decoupled/{name}",
                "revision": revision or "local",
                "is_cross_encoder": True,
            }
        )

    def predict(self, inputs1: Any, inputs2: Any, **_: Any) -> npt.NDArray[np.float32]:
        """The score of each query of `inputs1` with the document beside it in `inputs2`."""
        queries, documents = (
            # MTEB gives data loaders, whose items are batches.
            [t for batch in one for t in batch["text"]]
            for one in (inputs1, inputs2)
        )
        return np.asarray(self.model.predict(list(zip(queries, documents, strict=True))))
