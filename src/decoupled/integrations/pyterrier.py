"""PyTerrier: an engine as a stage of pipelines.

from decoupled.integrations.pyterrier import DecoupledTransformer
pipeline = bm25 >> DecoupledTransformer("docs.idx")
"""

from __future__ import annotations

import warnings
from pathlib import Path

from decoupled.errors import MissingDependency
from decoupled.integrations import scoring
from decoupled.measure.runs import document_scores, rerank_run
from decoupled.search.engine import Engine

try:
    import pandas as pd
    import pyterrier as pt
except ImportError:
    raise MissingDependency("pyterrier", "pyterrier") from None


class DecoupledTransformer(pt.Transformer):
    """Ranks the documents of a frame again, or searches the index where the frame has queries alone.

    `source` is an index, a model folder, a checkpoint, or an engine. A `docno` names a passage, or a document
    that counts with its best passage. With a column `text`, a document that the index holds word for word is
    scored from its stored states, any other encoded now. Without it all come from the index, and a warning
    names those that it lacks, which are left out. A search gives the documents of `k` passages.
    """

    def __init__(self, source: str | Path | Engine, *, k: int = 100, raw: bool = True) -> None:
        self.engine = source if isinstance(source, Engine) else Engine(source)
        self.k, self.raw = k, raw

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """The frame with new scores and ranks."""
        pt.validate.columns(inp, includes=["qid", "query"], context=self)
        groups = inp.groupby("query", sort=False)
        rows = [(q, *one) for q, group in groups for one in self._scores(q, group).items()]
        scores = pd.DataFrame(rows, columns=["query", "docno", "score"])
        old = inp.drop(columns=["score", "rank"], errors="ignore")
        frame = old.merge(scores, on=[name for name in ("query", "docno") if name in old])
        if "docno" in old and len(frame) < len(old):
            lost = ", ".join(dict.fromkeys(old["docno"][~old["docno"].isin(frame["docno"])]))
            warnings.warn(f"the index lacks {lost:.200}; index them, or give texts", stacklevel=2)
        return pt.model.add_ranks(frame)

    def _scores(self, query: str, rows: pd.DataFrame) -> dict[str, float]:
        """The score of each document for a query."""
        if "docno" not in rows:
            return document_scores(self.engine.search(query, self.k, raw=self.raw))
        names = list(rows["docno"])
        if "text" not in rows:
            ((_, hits),) = rerank_run(self.engine, {query: names}, {query: query}, raw=self.raw)
            return document_scores(hits) | {hit.id: hit.score for hit in hits}
        documents = [scoring.Document(*one) for one in zip(rows["text"], names, strict=True)]
        listing = scoring.recognise(self.engine, documents)
        hits = self.engine.rerank(query, ids=listing.ids, texts=listing.texts, raw=self.raw)
        hits.check_whole()
        return {names[n]: hit.score for hit in hits for n in listing.positions[hit.id]}
