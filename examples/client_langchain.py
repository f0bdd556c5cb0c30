"""LangChain's Cohere reranker against this server: `pip install langchain-cohere`.

In one process, without a server: `decoupled.integrations.langchain.DecoupledRerank`.
"""

import sys

from langchain_cohere import CohereRerank
from langchain_core.documents import Document

DOCUMENTS = [
    Document(page_content="Paris is the capital of France."),
    Document(page_content="The novel Dracula was written by Bram Stoker and appeared in 1897."),
    Document(page_content="Mary Shelley wrote Frankenstein."),
]


def main(url: str = "http://127.0.0.1:8000", key: str = "unused") -> list[Document]:
    """The best two documents, with their scores in their metadata."""
    rerank = CohereRerank(base_url=url, cohere_api_key=key, model="decoupled", top_n=2)
    return list(rerank.compress_documents(DOCUMENTS, "Who wrote Dracula?"))


if __name__ == "__main__":
    for document in main(*sys.argv[1:]):
        print(f"{document.metadata['relevance_score']:.3f}  {document.page_content}")
