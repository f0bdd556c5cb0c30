"""The transformer in pipelines of the real PyTerrier, which needs no Java for stages of ours."""

from __future__ import annotations

import pytest

import decoupled as dc
from served import tiny_split

pt = pytest.importorskip("pyterrier", reason="pyterrier is not installed")
pd = pytest.importorskip("pandas", reason="pandas is not installed")

from decoupled.integrations.pyterrier import DecoupledTransformer  # noqa: E402

TEXTS = {
    "shelley": "Mary Shelley wrote Frankenstein in 1818.",
    "stoker": "The Gothic novel Dracula was written by the Irish author Bram Stoker in 1897.",
    "paris": "Paris is the capital of France, on the river Seine.",
    "film": "Nosferatu is a silent film of 1922 about a vampire.",
}
QUERIES = pd.DataFrame(
    [["1", "Who wrote Dracula?"], ["2", "capital of France"]], columns=["qid", "query"]
)
QRELS = pd.DataFrame([["1", "stoker", 1], ["2", "paris", 1]], columns=["qid", "docno", "label"])


class Overlap(pt.Transformer):
    """A first stage of its own: every document, by the words that it shares with the query."""

    def __init__(self, texts: bool = True) -> None:
        self.texts = texts

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        rows = [
            {**row, "docno": name, "score": float(len(words(row["query"]) & words(text)))}
            | ({"text": text} if self.texts else {})
            for row in inp.to_dict("records")
            for name, text in TEXTS.items()
        ]
        columns = [*inp.columns, "docno", "score", *["text"] * self.texts]
        return pt.model.add_ranks(pd.DataFrame(rows, columns=columns))


def words(text):
    return set(text.lower().strip("?.").split())


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    path = tmp_path_factory.mktemp("pyterrier") / "books.idx"
    with dc.Index.create(path) as index:
        index.add(dc.Passage(id=name, text=text) for name, text in TEXTS.items())
    return dc.Engine(path)


def ranked(frame, qid="1"):
    rows = frame[frame["qid"] == qid].sort_values("rank")
    return list(zip(rows["docno"], rows["score"], strict=True))


def test_a_pipeline_ranks_as_the_engine_does(engine):
    query = QUERIES["query"][0]
    reads = (Overlap() >> DecoupledTransformer(engine))(QUERIES)
    own = engine.rerank(query, ids=list(TEXTS), raw=True)
    assert ranked(reads) == [(h.id, pytest.approx(h.score, abs=1e-4)) for h in own]
    assert set(reads["rank"]) == {0, 1, 2, 3} and "text" in reads.columns
    stored = (Overlap(texts=False) >> DecoupledTransformer(engine))(QUERIES)
    whole = engine.search(query, 4, first_stage=lambda *_: list(TEXTS), raw=True)
    assert ranked(stored) == [(h.id, pytest.approx(h.score, abs=1e-4)) for h in whole]
    likely = (Overlap() >> DecoupledTransformer(engine, raw=False))(QUERIES)
    shares = engine.rerank(query, ids=list(TEXTS))
    assert ranked(likely) == [(h.id, pytest.approx(h.score, abs=1e-4)) for h in shares]


def test_it_searches_where_queries_come_alone(engine):
    pipeline = DecoupledTransformer(engine, k=3)
    own = engine.search(QUERIES["query"][1], 3, raw=True)
    assert ranked(pipeline(QUERIES), "2") == [(h.id, pytest.approx(h.score)) for h in own]
    assert ranked(pipeline.search(QUERIES["query"][1]))[0][0] == "paris"


def test_an_experiment_measures_it_beside_other_stages(engine):
    ours = Overlap() >> DecoupledTransformer(engine)
    cut = Overlap() % 2 >> DecoupledTransformer(engine)
    table = pt.Experiment(
        [Overlap(), ours, cut, DecoupledTransformer(engine)],
        QUERIES,
        QRELS,
        eval_metrics=["ndcg_cut_10", "recip_rank"],
        names=["words", "words >> ours", "words % 2 >> ours", "ours"],
        validate="error",
    )
    assert list(table["recip_rank"][1:]) == [1.0, 1.0, 1.0]


def test_a_document_counts_with_its_best_passage(model, tmp_path):
    split = tiny_split(model)
    with dc.Index.create(tmp_path / "i", split) as index:
        index.add(
            dc.Passage(id=f"book#{n}", text=text, meta={"document": "book"})
            for n, text in enumerate(TEXTS.values())
        )
    engine = dc.Engine(dc.Index.open(tmp_path / "i", model=split))
    frame, query = QUERIES[:1].assign(docno="book"), QUERIES["query"][0]
    best = engine.rerank(query, ids=[f"book#{n}" for n in range(4)], raw=True)[0].score
    assert ranked(DecoupledTransformer(engine)(frame)) == [("book", pytest.approx(best, abs=1e-5))]
    best = engine.search(query, 4, raw=True)[0].score
    assert ranked(DecoupledTransformer(engine)(QUERIES)) == [("book", pytest.approx(best))]


def test_documents_that_the_index_lacks_are_named_and_left_out(engine):
    frame = pd.concat([QUERIES[:1].assign(docno=name) for name in ("stoker", "gone")])
    with pytest.warns(UserWarning, match="the index lacks gone; index them, or give texts"):
        left = DecoupledTransformer(engine)(frame)
    assert [name for name, _ in ranked(left)] == ["stoker"]
    texts = frame.assign(text=["a text of another day", TEXTS["stoker"]])
    assert [name for name, _ in ranked(DecoupledTransformer(engine)(texts))] == ["gone", "stoker"]


def test_an_empty_frame_and_a_wrong_one(engine):
    ours = DecoupledTransformer(engine)
    for texts in (True, False):
        empty = (Overlap(texts) >> ours)(QUERIES[:0])
        assert len(empty) == 0 and {"qid", "docno", "score", "rank"} <= set(empty.columns)
    assert len(ours(QUERIES[:0])) == 0
    with pytest.raises(KeyError, match="query"):
        ours(pd.DataFrame([["1", "stoker"]], columns=["qid", "docno"]))
