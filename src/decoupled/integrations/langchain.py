"""LangChain: `DecoupledRetriever` searches an index; `DecoupledRerank` reorders what others retrieved."""

from collections.abc import Sequence
from typing import Literal

from decoupled.errors import MissingDependency
from decoupled.integrations import scoring
from decoupled.search.engine import Engine

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun, Callbacks
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.retrievers import BaseRetriever
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


class DecoupledRetriever(BaseRetriever, arbitrary_types_allowed=True):
    """The best passages of the engine's index, with title, score and place in their metadata.

    With `prune` a document holds the sentences that matter to the query, and none that are left empty.
    """

    engine: Engine
    k: int = 5
    where: dict[str, object] | None = None
    prune: float | Literal["auto"] | None = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        del run_manager  # the engine has no steps to report
        passages = scoring.retrieve(self.engine, query, self.k, self.where, self.prune)
        return [Document(id=p.id, page_content=p.text, metadata=p.meta) for p in passages]
