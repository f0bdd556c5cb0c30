"""Serving from shards: the ranking of one engine, and partial results where a shard is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from decoupled.errors import DecoupledError, InputError, MissingRecord
from decoupled.index.index import Index
from decoupled.index.store.base import Share
from decoupled.integrations import scoring
from decoupled.model.model import Model
from decoupled.model.scoring import AnswerPlatt, Platt, Scoring
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine
from decoupled.serve.cluster import shards
from decoupled.serve.cluster.engine import ShardedEngine, ShardLost
from decoupled.serve.cluster.shards import Layout, ShardServer, deployed

WORDS = ("river", "town", "castle", "wrote", "novel", "spring", "king", "house", "sea", "moon")
SHARDS = 4


def passages(count: int) -> list[Passage]:
    draw = np.random.default_rng(5)
    return [
        Passage(
            id=f"p{n}",
            text=" ".join(
                draw.choice(WORDS, size=int(draw.integers(4, 120 if n % 7 == 0 else 20)))
            ),
            meta={"n": n},
        )
        for n in range(count)
    ]


def queries(count: int) -> list[str]:
    draw = np.random.default_rng(6)
    return [" ".join(draw.choice(WORDS, size=int(draw.integers(1, 5)))) for _ in range(count)]


@dataclass
class Here:
    """A shard of this process, which can be lost."""

    engine: Engine
    lost: bool = False

    def send(self, method, *args, **options):
        def wait(seconds):
            if self.lost:
                raise ShardLost
            return getattr(self.engine, method)(*args, **options)

        return wait


@pytest.fixture(scope="module")
def path(model, tmp_path_factory) -> Path:
    """An index with windows, deletions and several fragments, by a model that ranks and reads."""
    rank = model("bert", "rank").spec.head("rank")
    both = Model.split(model("bert", "span").with_heads(rank, seed=1), at=2)
    learnt = Scoring(
        cosine=0.5,
        bm25=0.7,
        fusion=0.6,
        search=Platt(slope=0.9, offset=-1.0),
        answer=AnswerPlatt(share=0.8, weight=0.3, offset=0.1),
    )
    both.net.spec = replace(both.spec, scoring=learnt)
    folder = tmp_path_factory.mktemp("sharded") / "i"
    with Index.create(folder, both, codec="int8") as index:
        index.add(passages(150))
        index.add(passages(300)[150:])
        index.delete([f"p{n}" for n in range(0, 300, 17)])
    return folder


@pytest.fixture
def engine(path) -> ShardedEngine:
    shards = [
        Here(Engine(Index.open(path, share=Share(number=n, count=SHARDS)))) for n in range(SHARDS)
    ]
    return ShardedEngine(shards, Index.open(path))


def same(found, expected) -> None:
    """Equal but for rounding, and for the order of passages that differ by no more than that."""
    assert [x.score for x in found] == pytest.approx([x.score for x in expected], abs=1e-5)
    last = expected[-1].score if len(expected) else 0.0

    def sure(results):
        return {x.to_json()["text"] for x in results if x.score > last + 1e-5}

    assert sure(found) == sure(expected)


@pytest.mark.parametrize("stage", ["lexical", "dense", "hybrid"])
def test_shards_rank_as_one_engine_does(path, engine, stage):
    alone = Engine(path)
    for query in queries(12):
        expected = alone.search(query, k=10, first_stage=stage, candidates=40)
        found = engine.search(query, k=10, first_stage=stage, candidates=40)
        same(found, expected)
        assert not found.partial and "partial" not in found.to_json()
    where = {"n": {"gte": 200}}
    same(
        engine.search("river sea", raw=True, where=where),
        alone.search("river sea", raw=True, where=where),
    )


def test_shards_answer_as_one_engine_does(path, engine):
    alone = Engine(path)
    for query in queries(8):
        same(engine.ask(query, k=5, candidates=30), alone.ask(query, k=5, candidates=30))
    texts = [p.text for p in passages(5)]
    same(engine.ask("river", texts=texts), alone.ask("river", texts=texts))
    assert len(engine.ask("river", threshold=1.0)) == 0


def test_shards_cannot_read_together(engine):
    with pytest.raises(InputError, match=r"hops=2 .*shards divide them; ask one process"):
        engine.ask("which novel", hops=2)


def test_shards_rerank_what_they_are_given(path, engine):
    alone = Engine(path)
    ids, texts = [f"p{n}" for n in range(1, 15)], ["a castle by the sea", "moon", "king"]
    same(engine.rerank("river", ids=ids, texts=texts), alone.rerank("river", ids=ids, texts=texts))
    assert {h.id for h in engine.rerank("river", texts=texts)} == {"0", "1", "2"}
    with pytest.raises(MissingRecord, match="'p17'"):
        engine.rerank("river", ids=["p1", "p17"])
    assert len(engine.rerank("river")) == 0


def test_a_passage_belongs_to_one_shard(path):
    seen: list[str] = []
    everything = 0
    for number in range(SHARDS):
        view = Index.open(path, share=Share(number=number, count=SHARDS)).store.snapshot
        rows = view.mine(view.lexical(" ".join(WORDS), 10_000).rows)
        everything = len(view.lexical(" ".join(WORDS), 10_000))
        seen += {e.id for e in view.texts(rows)}
        assert 0 < len(rows) < everything / 2
    assert len(seen) == len(set(seen)) == 300 - 18
    with pytest.raises(InputError, match=r"share 4 of 4; choose 0\.\.3"):
        Share(number=4, count=4)


def test_a_lost_shard_leaves_a_partial_result_that_says_so(path, engine):
    alone, lost = Engine(path), 2
    engine.shards[lost].lost = True
    hits = engine.search("river castle", k=20)
    assert hits.missing == (lost,) and hits.partial
    assert hits.to_json()["partial"] is True and hits.to_json()["missing_shards"] == [lost]
    everything = {h.id: h.score for h in alone.search("river castle", k=100)}
    assert hits[0].score == pytest.approx(everything[hits[0].id], abs=1e-5)
    assert engine.ask("river castle").missing == (lost,)
    engine.shards[lost].lost = False
    assert not engine.search("river castle").partial
    for shard in engine.shards:
        shard.lost = True
    with pytest.raises(DecoupledError, match="none of 4 shards answered within 10 s"):
        engine.search("river")


def test_the_server_takes_shards(path, engine):
    """The same routes, and a partial answer that says so."""
    pytest.importorskip("fastapi", reason="needs the extra `serve`")
    from starlette.testclient import TestClient

    from decoupled.serve.http.app import create_app

    alone = Engine(path)
    with TestClient(create_app(engine), base_url="http://localhost") as client:
        body = {"query": "river castle", "k": 5}
        found = client.post("/v1/search", json=body).json()
        expected = alone.search("river castle", k=5)
        assert [h["id"] for h in found["hits"]] == [h.id for h in expected]
        assert "partial" not in found
        engine.shards[1].lost = True
        found = client.post("/v1/search", json=body).json()
        assert found["partial"] is True and found["missing_shards"] == [1]
        assert client.get("/v1/info").json()["passages"] == 282
        assert client.get("/ready").status_code == 200


def test_documents_that_a_lost_shard_had_to_score_are_not_dropped_silently(engine):
    pytest.importorskip("fastapi", reason="needs the extra `serve`")
    from starlette.testclient import TestClient

    from decoupled.serve.http.app import create_app

    texts = ["a castle by the sea", "moon", "king", "river", "town"]
    bodies = {
        "/v2/rerank": {"query": "river", "documents": texts},
        "/v1/rerank": {"query": "river", "documents": [{"id": "p1"}, {"id": "p2"}]},
        "/rerank": {"query": "river", "texts": texts},
        "/score": {"text_1": "river", "text_2": texts},
        "/v1/ask": {"question": "river", "texts": texts},
    }
    documents = [scoring.Document(text=text) for text in texts]
    with TestClient(create_app(engine), base_url="http://localhost") as client:
        for route, body in bodies.items():
            assert client.post(route, json=body).status_code == 200
        engine.shards[1].lost = True
        for route, body in bodies.items():
            reply = client.post(route, json=body)
            assert reply.status_code == 503 and int(reply.headers["retry-after"]) >= 1
            assert "shards 1 did not answer" in reply.text
    with pytest.raises(DecoupledError, match="shards 1 did not answer in time"):
        scoring.rank(engine, "river", documents, 2)
    with pytest.raises(DecoupledError, match="shards 1 did not answer in time"):
        scoring.ask(engine, "river", documents, 2, 0.0)


def test_any_shard_classifies(model, tmp_path):
    labels = Model.split(model("bert", "classes"), at=2)
    shards = [Here(Engine(labels), lost=number == 1) for number in range(3)]
    ranker = Model.split(model("bert", "rank"), at=2)
    engine = ShardedEngine(shards, Index.create(tmp_path / "i", ranker))
    pairs = [("river", "a town"), ("moon", "the sea")]
    for _ in range(4):
        assert engine.classify(pairs) == Engine(labels).classify(pairs)


def test_the_process_in_front_computes_as_its_shards_do(path, monkeypatch):
    """It encodes what is added over HTTP."""
    serve = SimpleNamespace(
        start=lambda **_: None,
        run=lambda bound, **_: None,
        shutdown=lambda: None,
        deployment=lambda **_: lambda server: SimpleNamespace(bind=lambda *_: None),
    )
    ray = SimpleNamespace(exceptions=SimpleNamespace(RayError=RuntimeError))
    monkeypatch.setattr(shards, "connected", lambda *_, **__: nullcontext(ray))
    monkeypatch.setattr(shards, "import_module", lambda _: serve)
    with deployed(path, Layout(runtime="torch")) as engine:
        assert engine.runtime.name == "torch"


def test_a_shard_notices_another_index(model, tmp_path):
    path, split = tmp_path / "i", Model.split(model("bert", "rank"), at=2)
    names = [f"p{n}" for n in range(6)]

    def fill(word):
        with Index.create(path, split, codec="fp32") as index:
            index.add(Passage(id=name, text=word) for name in names)

    def scores():
        found = [server.call("rerank", ("the moon",), {"ids": names}) for server in servers]
        return sorted((hit.id, hit.score) for hits in found for hit in hits)

    fill("river")
    layout = Layout(shards=2, memory="1MB", runtime="torch")
    servers = [ShardServer(str(path), number, layout) for number in range(2)]
    before = scores()
    path.rename(tmp_path / "old")
    assert "not there any more" in str(servers[0].call("rerank", ("moon",), {"ids": names}))
    fill("castle")
    alone = Engine(path, runtime="torch").rerank("the moon", ids=names)
    expected = sorted((hit.id, pytest.approx(hit.score, abs=1e-6)) for hit in alone)
    assert scores() == expected != before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_killed_shard_of_ray_serve_comes_back(path):
    pytest.importorskip("ray", reason="needs the extra `cluster`")
    alone = Engine(path)
    with deployed(path, Layout(shards=2)) as engine:
        for query in queries(5):
            same(engine.search(query), alone.search(query))
        with pytest.raises(MissingRecord):
            engine.rerank("river", ids=["absent"])
        ours = psutil.Process().children(recursive=True)
        victims = [p for p in ours if any("Server" in w and "ray::" in w for w in p.cmdline())]
        assert len(victims) == 2
        os.kill(victims[0].pid, signal.SIGKILL)
        engine.seconds = 0.8  # no process loads a model in that time, so the shard cannot be back
        started = time.monotonic()
        hits = engine.search("river castle")
        assert time.monotonic() - started < 2.0
        assert hits.partial and len(hits.missing) == 1
        while engine.search("river castle").partial:
            assert time.monotonic() - started < 60
        engine.seconds = 10.0
        same(engine.search("river castle"), alone.search("river castle"))


def test_a_cluster_of_this_machine_keeps_to_itself(monkeypatch):
    """Whoever reaches a port of Ray can run code, so its settings must be there before it is imported."""
    from decoupled.serve.cluster import ray as cluster

    seen = []

    class Ray:
        is_initialized = staticmethod(lambda: False)
        shutdown = staticmethod(lambda: None)
        init = staticmethod(lambda **_: seen.append(dict(os.environ)))

    def imported(name):
        seen.append(dict(os.environ))
        return Ray

    monkeypatch.setattr(cluster, "import_module", imported)
    for name in cluster.private():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with cluster.connected("local"):
        pass
    assert not set(cluster.private()) & set(os.environ)
    for environment in seen:
        assert environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
        assert environment["RAY_AUTH_MODE"] == "token" and len(environment["RAY_AUTH_TOKEN"]) == 64
    assert len(seen) == 2
    seen.clear()
    with cluster.connected("auto"):
        assert len(seen) == 2 and not any("RAY_AUTH_TOKEN" in e for e in seen)


@pytest.mark.slow
def test_the_ports_of_ray_are_on_loopback_or_ask_for_the_token(path):
    pytest.importorskip("ray", reason="needs the extra `cluster`")
    code = f"""
import grpc, psutil
from decoupled.serve.cluster.shards import Layout, deployed
with deployed({str(path)!r}, Layout(shards=1)) as engine:
    assert engine.search("the river", 1)
    ours = [psutil.Process(), *psutil.Process().children(recursive=True)]
    ports = [c.laddr for p in ours for c in p.net_connections("inet") if c.status == "LISTEN"]
    wide = [a for a in ports if a.ip.removeprefix("::ffff:") not in ("127.0.0.1", "::1")]
    said = []
    for address in wide:
        channel = grpc.insecure_channel(f"127.0.0.1:{{address.port}}")
        try:
            channel.unary_unary("/ray.serve.ASGIService/HandleRequest")(b"", timeout=10)
        except grpc.RpcError as error:
            said.append(error.code().name)
    print("ports", len(ports), "wide", said)
    assert len(ports) > 5 and len(wide) <= 1 and set(said) <= {{"UNAUTHENTICATED"}} and len(said) == len(wide)
    print("fine")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "fine" in run.stdout, run.stdout + run.stderr
