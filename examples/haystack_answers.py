"""A Haystack pipeline that ranks documents and reads answers out of them: `pip install haystack-ai`.

The same adapters exist for LangChain and LlamaIndex; see `decoupled.integrations`.
"""

from haystack import Document, Pipeline
from haystack.dataclasses import ExtractedAnswer

from decoupled.integrations.haystack import DecoupledRanker, DecoupledReader
from decoupled.model.folder import starter_model

DOCUMENTS = [
    Document(content="Paris is the capital of France."),
    Document(content="The novel Dracula was written by Bram Stoker and appeared in 1897."),
    Document(content="Mary Shelley wrote Frankenstein."),
]


def main(source: str | None = None) -> list[ExtractedAnswer]:
    """The best answer; `source` is an index or a model folder, by default the starter model."""
    folder = source or str(starter_model())
    pipeline = Pipeline()
    pipeline.add_component("ranker", DecoupledRanker(folder, top_k=2))
    pipeline.add_component("reader", DecoupledReader(folder, top_k=1))
    pipeline.connect("ranker.documents", "reader.documents")
    question = "Who wrote Dracula?"
    asked = {"ranker": {"query": question, "documents": DOCUMENTS}, "reader": {"query": question}}
    return pipeline.run(asked)["reader"]["answers"]


if __name__ == "__main__":
    for answer in main():
        print(f"{answer.score:.3f}  {answer.data}")
