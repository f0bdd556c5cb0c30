"""Development data of one field: its corpus, its queries, and questions that the corpus does not answer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from decoupled.index.documents import read_passages
from decoupled.measure.pairs import Pair, Query, read_pairs
from decoupled.measure.retrieval import judged_queries
from decoupled.model.tokens import Passage


@dataclass(frozen=True, kw_only=True)
class Field:
    """Development data of one field: passages, queries with the relevant ones, and answers where known."""

    name: str
    passages: Sequence[Passage]
    queries: Sequence[Query]
    qrels: dict[str, dict[str, int]]
    pairs: Sequence[Pair] = ()
    """Questions with their passage; a question without an answer has none in it."""
    absent: Sequence[Pair] = ()
    """Questions whose passages are not in the corpus, which therefore does not answer them."""
    seen: bool = False
    """Whether other queries of this field were trained on; then it says little about other fields."""


def read_field(source: str | Path) -> Field:
    """A BEIR folder; or a file of pairs, each of whose queries is about its own passages."""
    path = Path(source)
    if path.is_dir():
        queries, qrels = judged_queries(path, None)
        grades = {q: dict(grades_of) for q, grades_of in (qrels or {}).items()}
        return Field(
            name=path.name, passages=list(read_passages(path)), queries=queries, qrels=grades
        )
    return field_of(path.name.split(".")[0], read_pairs(path))


def field_of(name: str, pairs: Iterable[Pair]) -> Field:
    """A field whose corpus are the passages of the pairs."""
    ids: dict[str, str] = {}
    queries: dict[str, Query] = {}
    qrels: dict[str, dict[str, int]] = {}
    every = list(pairs)
    reading = any(pair.answers for pair in every)
    for pair in every:
        passage = ids.setdefault(pair.passage, str(len(ids)))
        if pair.answers or (not reading and pair.label not in (0, 0.0, "0")):
            query = queries.setdefault(pair.query, Query(id=str(len(queries)), text=pair.query))
            qrels.setdefault(query.id, {})[passage] = 1
    return Field(
        name=name,
        passages=[Passage(id=i, text=text) for text, i in ids.items()],
        queries=list(queries.values()),
        qrels=qrels,
        pairs=every if reading else (),
    )


def with_absent(field: Field) -> Field:
    """The field without every second passage that answers: half of its questions have no answer then."""
    answering = dict.fromkeys(pair.passage for pair in field.pairs if pair.answers)
    gone = set(list(answering)[1::2])
    ids = {passage.id for passage in field.passages if passage.text in gone}
    left = {q: {p: g for p, g in of.items() if p not in ids} for q, of in field.qrels.items()}
    kept = [pair for pair in field.pairs if pair.passage not in gone]
    answered = {pair.query for pair in kept}
    return replace(
        field,
        passages=[passage for passage in field.passages if passage.id not in ids],
        queries=[query for query in field.queries if left.get(query.id)],
        qrels={query: grades for query, grades in left.items() if grades},
        pairs=kept,
        # A question that another passage answers too is not one without an answer.
        absent=[
            p for p in field.pairs if p.passage in gone and p.answers and p.query not in answered
        ],
    )
