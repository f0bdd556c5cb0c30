"""LlamaIndex's Cohere reranker against this server: `pip install llama-index-postprocessor-cohere-rerank`.

In one process, without a server: `decoupled.integrations.llama_index.DecoupledRerank`.
"""

import sys

from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank

TEXTS = [
    "Paris is the capital of France.",
    "The novel Dracula was written by Bram Stoker and appeared in 1897.",
    "Mary Shelley wrote Frankenstein.",
]


def main(url: str = "http://127.0.0.1:8000", key: str = "unused") -> list[NodeWithScore]:
    """The best two nodes with their scores."""
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
    rerank = CohereRerank(base_url=url, api_key=key, model="decoupled", top_n=2)
    return rerank.postprocess_nodes(nodes, query_str="Who wrote Dracula?")


if __name__ == "__main__":
    for found in main(*sys.argv[1:]):
        print(f"{found.score:.3f}  {found.node.get_content()}")
