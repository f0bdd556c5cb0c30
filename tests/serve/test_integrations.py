"""The adapters inside the real frameworks: the same order and scores as the engine's own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import decoupled as dc
from decoupled.integrations import scoring
from decoupled.model.tokens import Tokenizer

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read when haystack is imported

QUESTION = "Who wrote Dracula?"
TEXTS = {
    "shelley": "Mary Shelley wrote Frankenstein in 1818.",
    "stoker": "The Gothic novel Dracula was written by the Irish author Bram Stoker in 1897.",
    "paris": "Paris is the capital of France, on the river Seine.",
    "film": "Nosferatu is a silent film of 1922 about a vampire.",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    path = tmp_path_factory.mktemp("integrations") / "books.idx"
    with dc.Index.create(path) as index:
        index.add(dc.Passage(id=name, text=text) for name, text in TEXTS.items())
    return dc.Engine(path)


@pytest.fixture
def encoded(monkeypatch):
    """The texts that are encoded while a test runs."""
    seen, original = [], Tokenizer.windows

    def watched(tokenizer, texts, *titles):
        seen.extend(texts)
        return original(tokenizer, texts, *titles)

    monkeypatch.setattr(Tokenizer, "windows", watched)
    return seen


def expected(engine, k=None):
    return [(hit.id, hit.score) for hit in engine.rerank(QUESTION, ids=list(TEXTS), k=k)]


def test_documents_that_the_index_holds_are_not_encoded_again(engine, encoded):
    documents = [scoring.Document(text=text, id=name) for name, text in TEXTS.items()]
    ranked = scoring.rank(engine, QUESTION, documents, None)
    assert encoded == []
    assert [(list(TEXTS)[place], score) for place, score in ranked] == expected(engine)


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_that_would_drop_documents_unnoticed_is_refused(engine, count):
    with pytest.raises(dc.InputError, match=f"{count} documents are to be kept; keep at least"):
        scoring.rank(engine, QUESTION, [scoring.Document(text="a")], count)


def test_an_id_with_other_words_is_encoded_anew(engine, encoded):
    changed = "Dracula was written by someone else."
    documents = [
        scoring.Document(text=TEXTS["paris"], id="paris"),
        scoring.Document(text=changed, id="stoker"),
        scoring.Document(text=TEXTS["stoker"], id="unknown"),
    ]
    ranked = dict(scoring.rank(engine, QUESTION, documents, None))
    assert encoded == [changed, TEXTS["stoker"]]
    fresh = engine.rerank(QUESTION, texts=[changed, TEXTS["stoker"]])
    by_place = {int(hit.id) + 1: hit.score for hit in fresh}
    assert {place: ranked[place] for place in (1, 2)} == pytest.approx(by_place, abs=1e-5)


def test_names_that_look_like_places_and_repeated_documents_are_kept_apart(tmp_path):
    path = tmp_path / "numbers.idx"
    with dc.Index.create(path) as index:
        index.add([dc.Passage(id="1", text=TEXTS["paris"])])
    stored = scoring.Document(text=TEXTS["paris"], id="1")
    fresh = scoring.Document(text=TEXTS["stoker"])
    ranked = scoring.rank(dc.Engine(path), QUESTION, [stored, fresh, stored], None)
    assert [place for place, _ in ranked] == [1, 0, 2]
    assert ranked[1][1] == ranked[2][1] < ranked[0][1]


def test_a_long_document_is_recognised_from_its_windows(engine, encoded, tmp_path):
    text = " ".join(f"{TEXTS['film']} {TEXTS['paris']} Part {n}." for n in range(40))
    path = tmp_path / "long.idx"
    with dc.Index.create(path) as index:
        index.add([dc.Passage(id="long", text=text)])
    long = dc.Engine(path)
    assert long.index.info()["records"] > 1 and set(encoded) == {text}
    encoded.clear()
    scoring.rank(long, QUESTION, [scoring.Document(text=text, id="long")], None)
    assert encoded == []


def test_langchain(engine, encoded):
    documents = pytest.importorskip("langchain_core.documents")
    from decoupled.integrations.langchain import DecoupledRerank

    found = [
        documents.Document(page_content=text, metadata={"key": name, "page": 7})
        for name, text in TEXTS.items()
    ]
    rerank = DecoupledRerank(engine=engine, top_n=2, id_key="key")
    best = rerank.compress_documents(found, QUESTION)
    assert [(d.metadata["key"], d.metadata["relevance_score"]) for d in best] == expected(engine, 2)
    assert best[0].metadata["page"] == 7 and "relevance_score" not in found[1].metadata
    assert encoded == []
    by_id = DecoupledRerank(engine=engine, top_n=None)
    own = [documents.Document(page_content=text, id=name) for name, text in TEXTS.items()]
    assert [d.id for d in by_id.compress_documents(own, QUESTION)] == [
        name for name, _ in expected(engine)
    ]
    assert encoded == [] and by_id.compress_documents([], QUESTION) == []


def test_langchain_in_an_async_chain(engine):
    import asyncio

    documents = pytest.importorskip("langchain_core.documents")
    from decoupled.integrations.langchain import DecoupledRerank

    found = [documents.Document(page_content=text) for text in TEXTS.values()]
    rerank = DecoupledRerank(engine=engine, top_n=1)
    [best] = asyncio.run(rerank.acompress_documents(found, QUESTION))
    assert "Bram Stoker" in best.page_content


def test_llama_index(engine, encoded):
    schema = pytest.importorskip("llama_index.core.schema")
    from decoupled.integrations.llama_index import DecoupledRerank

    nodes = [
        schema.NodeWithScore(node=schema.TextNode(text=text, id_=name), score=0.5)
        for name, text in TEXTS.items()
    ]
    rerank = DecoupledRerank(engine=engine, top_n=2)
    best = rerank.postprocess_nodes(nodes, query_str=QUESTION)
    assert [(n.node.node_id, n.score) for n in best] == expected(engine, 2)
    assert encoded == [] and nodes[0].score == 0.5
    assert rerank.postprocess_nodes([], query_str=QUESTION) == []
    assert "engine" not in rerank.to_dict()
    with pytest.raises(dc.InputError, match="no query was given"):
        rerank.postprocess_nodes(nodes)


def test_haystack_ranks_and_reads_in_a_pipeline(engine, encoded):
    haystack = pytest.importorskip("haystack")
    from decoupled.integrations.haystack import DecoupledRanker, DecoupledReader

    pipeline = haystack.Pipeline()
    pipeline.add_component("ranker", DecoupledRanker(engine.index.path, top_k=2))
    pipeline.add_component("reader", DecoupledReader(engine.index.path, top_k=1))
    pipeline.connect("ranker.documents", "reader.documents")
    written = pipeline.dumps()
    assert "type: decoupled.integrations.haystack.DecoupledRanker" in written
    again = haystack.Pipeline.loads(written, allowed_modules=["decoupled.integrations.haystack"])
    again.warm_up()
    documents = [haystack.Document(id=name, content=text) for name, text in TEXTS.items()]
    ran = again.run(
        {"ranker": {"query": QUESTION, "documents": documents}, "reader": {"query": QUESTION}},
        include_outputs_from={"ranker"},
    )
    assert [(d.id, d.score) for d in ran["ranker"]["documents"]] == expected(engine, 2)
    [answer] = ran["reader"]["answers"]
    at = answer.document_offset
    assert answer.data == "Bram Stoker" and answer.document.id == "stoker" and answer.score > 0.5
    assert answer.document.content[at.start : at.end] == answer.data
    assert answer.context[answer.context_offset.start : answer.context_offset.end] == answer.data
    assert encoded == [] and documents[0].score is None


def test_a_haystack_reader_finds_answers_in_late_windows_and_says_nothing_when_there_are_none(
    engine,
):
    haystack = pytest.importorskip("haystack")
    from decoupled.integrations.haystack import DecoupledReader

    reader = DecoupledReader(engine, top_k=1, score_threshold=0.1)
    text = f"{TEXTS['paris']} " * 60 + TEXTS["stoker"]
    [answer] = reader.run(QUESTION, [haystack.Document(content=text)])["answers"]
    at = answer.document_offset
    assert text[at.start : at.end] == answer.data == "Bram Stoker" and at.start > len(text) // 2
    assert reader.run(QUESTION, [haystack.Document(content=TEXTS["film"])])["answers"] == []
    assert reader.run(QUESTION, [])["answers"] == []


def test_a_model_in_memory_cannot_be_written_into_a_pipeline_file(model):
    pytest.importorskip("haystack")
    from decoupled.integrations.haystack import DecoupledRanker

    ranker = DecoupledRanker(dc.Engine(model("bert", "rank")))
    with pytest.raises(dc.InputError, match="give the component the folder"):
        ranker.to_dict()


@pytest.mark.parametrize(
    ("module", "package", "line"),
    [
        ("langchain", "langchain_core", "decoupled-transformer[langchain]"),
        ("llama_index", "llama_index.core.bridge.pydantic", "decoupled-transformer[llama-index]"),
        ("haystack", "haystack", "decoupled-transformer[haystack]"),
    ],
)
def test_a_missing_framework_is_named_with_the_line_that_installs_it(module, package, line):
    script = f"import sys; sys.modules[{package!r}] = None; import decoupled.integrations.{module}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1 and f'pip install "{line}"' in done.stderr.splitlines()[-1]


def test_retrievers_search_the_index_and_prune(engine, tmp_path):
    from langchain_core.documents import Document as LangChainDocument

    from decoupled.integrations import haystack, langchain, llama_index

    hits = engine.search(QUESTION, 4)
    for prune in (None, "auto"):
        chain = langchain.DecoupledRetriever(engine=engine, k=4, prune=prune).invoke(QUESTION)
        nodes = llama_index.DecoupledRetriever(engine, 4, prune=prune).retrieve(QUESTION)
        component = haystack.DecoupledRetriever(engine, top_k=4, prune=prune)
        documents = component.run(QUESTION)["documents"]
        assert all(isinstance(document, LangChainDocument) for document in chain)
        ids = [document.id for document in chain]
        assert ids == [node.node_id for node in nodes] == [document.id for document in documents]
        assert ids == [hit.id for hit in hits][: len(ids)] and ids[0] == "stoker"
        assert [d.page_content for d in chain] == [d.content for d in documents]
        assert documents[0].score == nodes[0].score == hits[0].score
        assert len(ids) == 4 if prune is None else len(ids) < 4
    again = haystack.DecoupledRetriever(**component.to_dict()["init_parameters"])
    assert again.run(QUESTION)["documents"][0].id == "stoker"
