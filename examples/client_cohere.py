"""Cohere's own SDK against this server: `pip install cohere`, then `decoupled serve` in another terminal."""

import sys

import cohere

QUERY = "Who wrote Dracula?"
DOCUMENTS = [
    "Paris is the capital of France.",
    "The novel Dracula was written by Bram Stoker and appeared in 1897.",
    "Mary Shelley wrote Frankenstein.",
]


def main(url: str = "http://127.0.0.1:8000", key: str = "unused") -> list[str]:
    """The best document by the v2 and by the v1 client."""
    new = cohere.ClientV2(key, base_url=url)
    best = new.rerank(model="decoupled", query=QUERY, documents=DOCUMENTS, top_n=1).results[0]
    old = cohere.Client(key, base_url=url)
    same = old.rerank(query=QUERY, documents=DOCUMENTS, top_n=1, return_documents=True).results[0]
    return [DOCUMENTS[best.index], same.document.text]


if __name__ == "__main__":
    print("\n".join(main(*sys.argv[1:])))
