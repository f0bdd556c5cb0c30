"""LangChain: `DecoupledRerank` reorders retrieved documents, e.g. in a `ContextualCompressionRetriever`."""

from __future__ import annotations

from collections.abc import Sequence

from decoupled.errors import MissingDependency
from decoupled.integrations import scoring
from decoupled.search.engine import Engine

try:
    from langchain_core.callbacks import Callbacks
    from langchain_core.documents import BaseDocumentCompressor, Document
except ImportError:
    raise MissingDependency("langchain-core", "langchain") from None


class DecoupledRerank(BaseDocumentCompressor, arbitrary_types_allowed=True, extra="forbid"):
    """Keeps the most relevant documents, best first, with `relevance_score` in their metadata.

    A document that the engine's index holds under the same id, word for word, is scored from its stored
    states; any other is encoded now.
    """

    engine: Engine
    top_n: int | None = 3
    """How many documents to keep; None keeps all."""
    id_key: str | None = None
    """The metadata field that holds a passage's id; without it, the document's own id counts."""

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The documents that matter for a query; those given are left as they are."""
        del callbacks  # the engine has no steps to report
        texts = [scoring.Document(text=d.page_content, id=self._id(d)) for d in documents]
        return [
            # A copy: the caller's documents may be shared with other steps of a chain.
            documents[place].model_copy(
                update={"metadata": {**documents[place].metadata, "relevance_score": score}}
            )
            for place, score in scoring.rank(self.engine, query, texts, self.top_n)
        ]

    def _id(self, document: Document) -> str | None:
        if self.id_key is None:
            return document.id
        ident = document.metadata.get(self.id_key)
        return None if ident is None else str(ident)
