"""The drop-in for `CrossEncoder`: what sentence-transformers returns, and what MTEB calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import decoupled as dc
from decoupled.integrations.cross_encoder import CrossEncoder
from served import TEXTS, tiny_index, tiny_split

QUERY = "who wrote the novel"
DOCUMENTS = list(TEXTS.values())[:3]


@pytest.fixture(scope="module")
def theirs(checkpoint):
    return pytest.importorskip("sentence_transformers").CrossEncoder(
        str(checkpoint("bert", "rank"))
    )


def test_the_calls_and_shapes_of_sentence_transformers(checkpoint, theirs):
    ours = CrossEncoder(dc.Engine(dc.Model.open(checkpoint("bert", "rank"))))
    pairs = [(QUERY, text) for text in DOCUMENTS] + [["the moon", DOCUMENTS[2]]]
    expected = theirs.predict(pairs, batch_size=2, show_progress_bar=False)
    got = ours.predict(pairs, batch_size=2, show_progress_bar=False)
    assert (
        type(got) is type(expected) and got.dtype == expected.dtype and got.shape == expected.shape
    )
    np.testing.assert_allclose(got, expected, atol=1e-4)
    raw = ours.predict(pairs, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(
        raw, theirs.predict(pairs, activation_fn=torch.nn.Identity()), atol=1e-3
    )
    assert isinstance(ours.predict(pairs, convert_to_tensor=True), torch.Tensor)
    assert isinstance(ours.predict(pairs, convert_to_numpy=False)[0], torch.Tensor)
    assert (
        ours.predict(pairs[0]) == pytest.approx(float(got[0]))
        and np.ndim(ours.predict(pairs[0])) == 0
    )
    assert ours.predict([]).shape == theirs.predict([]).shape
    for options in ({}, {"top_k": 2}, {"return_documents": True}):
        mine, other = (one.rank(QUERY, DOCUMENTS, **options) for one in (ours, theirs))
        assert [r.keys() for r in mine] == [r.keys() for r in other]
        assert [r["corpus_id"] for r in mine] == [r["corpus_id"] for r in other]
        assert [r["score"] for r in mine] == pytest.approx([r["score"] for r in other], abs=1e-4)


def test_a_classifier_gives_a_row_of_logits(checkpoint):
    folder = checkpoint("bert", "classes")
    theirs = pytest.importorskip("sentence_transformers").CrossEncoder(str(folder))
    ours = CrossEncoder(dc.Engine(dc.Model.open(folder)))
    pairs = [(QUERY, text) for text in DOCUMENTS]
    assert ours.num_labels == theirs.num_labels == 3
    np.testing.assert_allclose(ours.predict(pairs), theirs.predict(pairs), atol=1e-3)
    shares = ours.predict(pairs, apply_softmax=True)
    np.testing.assert_allclose(shares, theirs.predict(pairs, apply_softmax=True), atol=1e-4)
    with pytest.raises(dc.SpecError, match="does not rank"):
        ours.rank(QUERY, DOCUMENTS)


def test_what_the_index_holds_is_not_encoded_again(model, tmp_path, monkeypatch):
    split = tiny_split(model)
    engine = dc.Engine(dc.Index.open(tiny_index(tmp_path / "i", split), model=split))
    encoded = []
    whole = engine.runtime.tokenizer.windows
    monkeypatch.setattr(
        engine.runtime.tokenizer, "windows", lambda t, *rest: encoded.extend(t) or whole(t, *rest)
    )
    ours = CrossEncoder(engine)
    ranked = ours.rank(QUERY, [*TEXTS.values(), "a new text", DOCUMENTS[0]])
    assert encoded == ["a new text"] and len(ranked) == len(TEXTS) + 2
    scores = {r["corpus_id"]: r["score"] for r in ranked}
    assert scores[0] == scores[len(TEXTS) + 1]
    stored = engine.rerank(QUERY, ids=["paris"])[0].score
    assert scores[[*TEXTS].index("paris")] == pytest.approx(stored, abs=1e-6)
    with dc.Index.open(tmp_path / "i", model=split, write=True) as index:
        index.add([dc.Passage(id="new", text="a new text")])
    encoded.clear()
    ours.rank(QUERY, ["a new text"])
    assert encoded == []  # it is stored now


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([("a", "b", "c")], "input 0 is"),
        (["ab"], "input 0 is 'ab'"),
        ([("a", 1)], "give pairs of two strings"),
    ],
)
def test_what_is_no_pair_is_named(model, inputs, message):
    with pytest.raises(dc.InputError, match=message):
        CrossEncoder(dc.Engine(tiny_split(model))).predict(inputs)


def test_mteb_reranks_with_it(model):
    pytest.importorskip("mteb", reason="mteb is not installed")
    from datasets import Dataset
    from mteb.models.search_wrappers import SearchCrossEncoderWrapper
    from mteb.tasks import AskUbuntuDupQuestions

    from decoupled.integrations.mteb import DecoupledReranker

    engine = dc.Engine(tiny_split(model))
    corpus = Dataset.from_list(
        [{"id": name, "text": text, "title": ""} for name, text in TEXTS.items()]
    )
    queries = Dataset.from_list([{"id": "q1", "text": QUERY}, {"id": "q2", "text": "the moon"}])
    searcher = SearchCrossEncoderWrapper(DecoupledReranker(engine))
    options = {
        "task_metadata": AskUbuntuDupQuestions.metadata,
        "hf_split": "test",
        "hf_subset": "default",
    }
    kwargs = {"encode_kwargs": {"batch_size": 8}, "num_proc": None}
    searcher.index(corpus, **options, **kwargs)
    found = searcher.search(
        queries,
        **options,
        **kwargs,
        top_ranked={"q1": ["dracula", "moon"], "q2": ["paris"]},
        top_k=10,
    )
    assert set(found["q1"]) == {"dracula", "moon"} and set(found["q2"]) == {"paris"}
    alone = {
        h.id: h.score
        for h in engine.rerank(QUERY, texts=[dc.Passage(id=n, text=TEXTS[n]) for n in found["q1"]])
    }
    assert found["q1"] == pytest.approx(alone, abs=1e-5)


def local_task(corpus, queries, relevant, top_ranked=None):
    """A retrieval task of the real package whose data are here."""
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.tasks import SciFact

    class Local(AbsTaskRetrieval):
        metadata = SciFact.metadata.model_copy(
            update={"name": "Local", "eval_splits": ["test"], "descriptive_stats": None}
        )

        def load_data(self, **_: object) -> None:
            self.corpus, self.queries = {"test": corpus}, {"test": queries}
            self.relevant_docs = {"test": relevant}
            if top_ranked:
                self.top_ranked = {"test": top_ranked}
            self.data_loaded = True

    return Local()


def test_mteb_runs_a_whole_task_through_an_index(model, tmp_path):
    mteb = pytest.importorskip("mteb", reason="mteb is not installed")
    from mteb.models import SearchProtocol

    from decoupled.integrations.mteb import DecoupledSearch

    tiny_split(model).save(tmp_path / "tiny")
    corpus = {name: {"title": name, "text": text} for name, text in TEXTS.items()}
    corpus["empty"] = {"title": "", "text": ""}
    queries = {"q1": QUERY, "q2": "the moon"}
    relevant = {"q1": {"dracula": 1}, "q2": {"moon": 1}}
    ours = DecoupledSearch(tmp_path / "indexes", tmp_path / "tiny", candidates=3)
    assert isinstance(ours, SearchProtocol)
    run = {"cache": None, "show_progress_bar": False}
    (result,) = mteb.evaluate(ours, local_task(corpus, queries, relevant), **run).task_results
    (scores,) = result.scores["test"]
    engine = dc.Engine(tmp_path / "indexes/Local/default/test")
    ranks = [[h.id for h in engine.search(q, 3)].index(*relevant[n]) for n, q in queries.items()]
    assert scores["mrr_at_10"] == pytest.approx(np.mean([1 / (1 + rank) for rank in ranks]))
    assert len(engine.index) == 5
    ranked = {"q1": ["moon", "dracula"], "q2": ["moon"]}
    task = local_task(corpus, queries, relevant, ranked)
    (scores,) = mteb.evaluate(ours, task, **run).task_results[0].scores["test"]
    first = engine.rerank(QUERY, ids=ranked["q1"])[0].id == "dracula"
    assert scores["mrr_at_10"] == pytest.approx((1 if first else 0.5) / 2 + 0.5)
