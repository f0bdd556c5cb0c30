"""The Python of the README: run it from an empty folder after `make setup`."""

import tempfile
from pathlib import Path

import decoupled as dc

path = Path(tempfile.mkdtemp()) / "docs.idx"
passages = [
    dc.Passage(id="p1", text="Bram Stoker wrote Dracula in 1897.", meta={"lang": "en"}),
    dc.Passage(id="p2", text="Paris is the capital of France.", meta={"lang": "en"}),
]

with dc.Index.create(path) as index:
    index.add(passages)

engine = dc.Engine(path)
answers = engine.ask("Who wrote Dracula?", k=1)
hits = engine.search("capital of France", k=2, where={"lang": "en"})
again = engine.rerank("capital of France", ids=["p1"], texts=["Lyon is a city in France."])

if __name__ == "__main__":
    import sys

    for result in (answers, hits, again):
        sys.stdout.write(f"{result[0]}\n")
