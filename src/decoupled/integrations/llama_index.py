"""LlamaIndex: `DecoupledRetriever` searches an index, `DecoupledRerank` is a node postprocessor."""

from typing import Literal

from decoupled.errors import InputError, MissingDependency
from decoupled.integrations import scoring
from decoupled.search.engine import Engine

try:
    from llama_index.core.bridge.pydantic import Field
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
except ImportError:
    raise MissingDependency("llama-index-core", "llama-index") from None


class DecoupledRerank(BaseNodePostprocessor):
    """Keeps the most relevant nodes, best first, with their new scores.

    A node that the engine's index holds under its node id, word for word, is scored from its stored states;
    any other is encoded now.
    """

    # Left out of serialised pipelines, which cannot hold a loaded model.
    engine: Engine = Field(exclude=True)
    top_n: int | None = Field(default=3, description="Nodes to keep; None keeps all.")

    @classmethod
    def class_name(cls) -> str:
        """The name that LlamaIndex gives this component."""
        return "DecoupledRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise InputError("no query was given; call postprocess_nodes(nodes, query_str=…)")
        texts = [
            scoring.Document(
                # The text without metadata, since only that can equal a stored passage.
                text=scored.node.get_content(metadata_mode=MetadataMode.NONE),
                id=scored.node.node_id,
            )
            for scored in nodes
        ]
        ranked = scoring.rank(self.engine, query_bundle.query_str, texts, self.top_n)
        return [NodeWithScore(node=nodes[place].node, score=score) for place, score in ranked]


class DecoupledRetriever(BaseRetriever):
    """The best passages of the engine's index as nodes; with `prune`, the sentences of them that matter."""

    def __init__(
        self,
        engine: Engine,
        k: int = 5,
        where: dict[str, object] | None = None,
        prune: float | Literal["auto"] | None = None,
    ) -> None:
        super().__init__()
        self._engine, self._k, self._where, self._prune = engine, k, where, prune

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query, how = query_bundle.query_str, (self._k, self._where, self._prune)
        return [
            NodeWithScore(node=TextNode(id_=p.id, text=p.text, metadata=p.meta), score=p.score)
            for p in scoring.retrieve(self._engine, query, *how)
        ]
