"""Many clients at once: each gets its own answer, the rest are told to come back, nothing breaks."""

from __future__ import annotations

import json
import random
import threading
import urllib.error
import urllib.request

import pytest

from decoupled.serve.http.app import create_app
from decoupled.serve.http.limits import Limits
from served import listening, tiny_engine, tiny_index, tiny_split

WORDS = ("river", "town", "moon", "sea", "novel", "count", "castle", "house", "old", "star", "ship")
CLIENTS, EACH = 12, 8


@pytest.fixture(scope="module")
def place(model, tmp_path_factory):
    split = tiny_split(model)
    return tiny_index(tmp_path_factory.mktemp("load") / "i", split), split


def workload(engine, seed):
    """Requests of mixed kinds and sizes, with the scores that the engine gives to each alone."""
    draw, made = random.Random(seed), []
    for number in range(EACH):
        query = " ".join(draw.sample(WORDS, 3))
        texts = [
            " ".join(draw.choices(WORDS, k=draw.randint(1, 60))) for _ in range(draw.randint(1, 9))
        ]
        kind = number % 4
        if kind == 0:
            scores = {h.id: h.score for h in engine.rerank(query, texts=texts)}
            made.append(("/rerank", {"query": query, "texts": texts}, scores))
        elif kind == 1:
            scores = {h.id: h.score for h in engine.rerank(query, texts=texts, raw=True)}
            made.append(
                ("/score", {"text_1": query, "text_2": texts, "use_activation": False}, scores)
            )
        elif kind == 2:
            scores = {h.id: h.score for h in engine.search(query, 3)}
            made.append(("/v1/search", {"query": query, "k": 3}, scores))
        else:
            scores = {a.passage_id: a.score for a in engine.ask(query, 1, texts=texts)}
            made.append(("/v1/ask", {"question": query, "k": 1, "texts": texts}, scores))
    return made


def scores_of(found):
    if isinstance(found, list):
        return {str(r["index"]): r["score"] for r in found}
    if "data" in found:
        return {str(r["index"]): r["score"] for r in found["data"]}
    if "hits" in found:
        return {h["id"]: h["score"] for h in found["hits"]}
    return {a["passage_id"]: a["score"] for a in found["answers"]}


def storm(url, workloads):
    """Every workload by a client of its own, all at once: statuses, and what was wrong."""
    statuses, wrong, guard = [], [], threading.Lock()

    def client(calls):
        for route, body, expected in calls:
            request = urllib.request.Request(
                url + route, json.dumps(body).encode(), {"content-type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as reply:
                    status, found = reply.status, scores_of(json.load(reply))
            except urllib.error.HTTPError as error:
                assert error.headers["retry-after"] or error.code < 500
                status, found = error.code, expected
            with guard:
                statuses.append(status)
                if found != pytest.approx(expected, abs=1e-4):
                    wrong.append((route, found, expected))

    threads = [threading.Thread(target=client, args=(calls,)) for calls in workloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses, wrong


def test_every_client_gets_its_own_answer(place):
    workloads = [workload(tiny_engine(*place), seed) for seed in range(CLIENTS)]
    limits = Limits(queue_seconds=60)  # however slow the machine is, all are let in
    app = create_app(tiny_engine(*place, remember=1 << 20), limits=limits)
    with listening(app) as url:
        statuses, wrong = storm(url, workloads)
    assert statuses == [200] * CLIENTS * EACH and not wrong
    registry = app.state.service.metrics.registry
    batches = registry.get_sample_value("decoupled_batch_size_count", {"queue": "read"})
    assert batches < CLIENTS * EACH / 2, "requests were not computed together"


@pytest.mark.slow
def test_beyond_the_queue_clients_are_refused_and_the_others_served(place):
    workloads = [workload(tiny_engine(*place), seed) for seed in range(CLIENTS)]
    limits = Limits(queue=2)
    with listening(create_app(tiny_engine(*place), limits=limits)) as url:
        statuses, wrong = storm(url, workloads)
    assert not wrong and set(statuses) <= {200, 429, 503}
    assert statuses.count(200) > limits.queue and len(set(statuses)) > 1
