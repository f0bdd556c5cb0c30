"""The data that the starter model is judged on, from a folder of public sets, compressed or not."""

import json
import lzma
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decoupled import Passage, read_pairs
from decoupled.measure.pairs import Pair, Query, read_qrels, read_queries
from decoupled.methods.scores.fields import Field

FIELDS = ("cranfield", "cisi", "med", "npl", "lisa", "time", "nfcorpus")
"""Collections whose test queries are judged, and of which no text was trained on."""
RANKED = ("pubmedqa", "nq", "tldr", "conditionalqa", "acl", "medquad")
HELD_OUT = 0.03
"""Share of the queries of a training file that were never trained on; all of `pubmedqa`."""


def found(data: Path, name: str) -> Path:
    """A file, plain or compressed."""
    for path in (data / name, data / f"{name}.xz"):
        if path.exists():
            return path
    raise SystemExit(f"{data / name} is missing")


def lines(path: Path) -> Iterator[str]:
    """Of a file of text, plain or compressed."""
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as file:
        yield from file


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """JSON lines."""
    return map(json.loads, lines(path))


def field(data: Path, name: str) -> Field:
    """A collection with its judged queries; `nfdev` and `nftrain` have other queries of NFCorpus."""
    folder, part = data / "ir_classic" / name, ""
    if name in (parts := {"nfcorpus": "_test", "nfdev": "_dev", "nftrain": "_train"}):
        folder, part = data / "nfcorpus", parts[name]
    texts = {str(row["_id"]): whole(row) for row in rows(found(folder, "corpus.jsonl"))}
    judged = read_qrels(found(folder, f"qrels{part}.tsv"))
    right = {q: {p: g for p, g in of.items() if g > 0 and p in texts} for q, of in judged.items()}
    queries = read_queries(found(folder, f"queries{part}.jsonl"))
    return Field(
        name=name,
        passages=[Passage(id=ident, text=text) for ident, text in texts.items() if text],
        queries=[query for query in queries if right.get(query.id)],
        qrels={query: grades for query, grades in right.items() if grades},
    )


def whole(row: dict[str, Any]) -> str:
    """A document as it is read: its title first, unless the text begins with it."""
    title, text = row.get("title", "").strip(), row["text"].strip()
    starts = not title or text.lower().startswith(title.lower()[:40])
    return text if starts else f"{title}\n{text}"


def ranked(data: Path, name: str, most: int = 1200) -> Field:
    """Queries of a file that were held out of training, over their passages and others of the file."""
    texts: dict[str, int] = {}
    asked: dict[str, set[int]] = {}
    for row in rows(found(data, f"rank/{name}.jsonl")):
        text = " ".join(re.sub(r"\s+", " ", row["passage"]).split()[:200])
        asked.setdefault(row["query"], set()).add(texts.setdefault(text, len(texts)))
    share = 1.0 if name == "pubmedqa" else HELD_OUT
    held = [q for q in asked if zlib.crc32((name + q).encode()) % 10_000 < share * 10_000][:100]
    gold = {number for query in held for number in asked[query]}
    others = np.random.default_rng(0).permutation(len(texts)).tolist()
    kept = gold | set([n for n in others if n not in gold][: max(0, most - len(gold))])
    return Field(
        name=name,
        passages=[Passage(id=str(n), text=text) for text, n in texts.items() if n in kept],
        queries=[Query(id=str(number), text=query) for number, query in enumerate(held)],
        qrels={str(i): {str(n): 1 for n in asked[query]} for i, query in enumerate(held)},
        seen=name != "pubmedqa",
    )


def squad_development(data: Path) -> Field:
    """Questions of every fiftieth training paragraph, which was held out, some of them without an answer."""
    known = list(read_pairs(found(data, "squad1/train-v1.1.json")))
    number = {text: n for n, text in enumerate(dict.fromkeys(pair.passage for pair in known))}
    silent = read_pairs(found(data, "squad2/train-v2.0-partial.json"))
    every = [*known, *(pair for pair in silent if not pair.answers and pair.passage in number)]
    held = [pair for pair in every if number[pair.passage] % 50 == 7]
    answered = [pair for pair in held if pair.answers]
    near = {text for text, n in number.items() if n % 50 == 7 or n % 12 == 0}
    order = np.random.default_rng(0).permutation(len(answered)).tolist()
    return Field(
        name="squad",
        passages=[Passage(id=str(n), text=text) for text, n in number.items() if text in near],
        queries=[Query(id=str(n), text=answered[n].query) for n in order],
        qrels={str(n): {str(number[answered[n].passage]): 1} for n in order},
        pairs=held,
        seen=True,
    )


def squad_corpus(data: Path) -> list[Passage]:
    """Every paragraph of SQuAD 1.1, once."""
    files = (found(data, f"squad1/{name}-v1.1.json") for name in ("train", "dev"))
    texts = dict.fromkeys(pair.passage for file in files for pair in read_pairs(file))
    return [Passage(id=str(number), text=text) for number, text in enumerate(texts)]


def squad_field(data: Path) -> Field:
    """Every paragraph of SQuAD 1.1, and every twentieth question of its development set."""
    passages = squad_corpus(data)
    by_text = {passage.text: passage.id for passage in passages}
    asked = squad(data, "squad1")[::20]
    return Field(
        name="squad",
        passages=passages,
        queries=[Query(id=pair.id, text=pair.query) for pair in asked],
        qrels={pair.id: {by_text[pair.passage]: 1} for pair in asked},
        seen=True,
    )


def squad_questions(data: Path, count: int) -> list[tuple[str, int]]:
    """So many questions of the training set of SQuAD 1.1, each with the number of its paragraph."""
    number = {passage.text: n for n, passage in enumerate(squad_corpus(data))}
    known = list(read_pairs(found(data, "squad1/train-v1.1.json")))
    order = np.random.default_rng(0).permutation(len(known))[:count].tolist()
    return [(known[n].query, number[known[n].passage]) for n in order]


def squad(data: Path, name: str) -> list[Pair]:
    """The development questions of `squad1` or `squad2`."""
    version = {"squad1": "1.1", "squad2": "2.0"}[name]
    return list(read_pairs(found(data, f"{name}/dev-v{version}.json")))


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A query with texts in the order of a first stage, their grades, and the best ten grades there are."""

    query: str
    texts: list[str]
    grades: list[int]
    ideal: list[int]


def dl21(data: Path) -> list[Listed]:
    """TREC Deep Learning 2021: BM25's hundred passages of each judged query."""
    listed = []
    for row in rows(found(data, "rank/trec_dl21.jsonl")):
        docs = [doc for doc in row["docs"] if "BM25" in doc["ranks"]]
        docs.sort(key=lambda doc: doc["ranks"]["BM25"])
        grades = [doc["rel"] or 0 for doc in docs]
        texts = [doc["text"] for doc in docs]
        listed.append(Listed(query=row["query"], texts=texts, grades=grades, ideal=row["ideal"]))
    return listed


def wikiqa(data: Path, part: str = "test") -> list[Listed]:
    """Questions with the sentences of a page, some of which answer them."""
    groups: dict[str, tuple[str, list[str], list[int]]] = {}
    for line in list(lines(found(data, f"wikiqa/{part}.tsv")))[1:]:
        number, _, query, text, label = line.rstrip("\n").split("\t")
        _, texts, grades = groups.setdefault(number, (query, [], []))
        texts.append(text)
        grades.append(int(label))
    return [
        Listed(query=query, texts=texts, grades=grades, ideal=sorted(grades, reverse=True))
        for query, texts, grades in groups.values()
    ]
