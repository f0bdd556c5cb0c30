"""Plans: arithmetic that can be checked by hand, from rates that were measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from commands import Commands
from decoders import save_decoder
from decoupled import Index, Passage
from decoupled.errors import InputError
from decoupled.lab.capacity import (
    OVERHEAD_MS,
    RETRIEVE_MS,
    Planned,
    Rates,
    Workload,
    count_of,
    estimate,
    measure,
    plan,
    retrieve_ms,
)
from decoupled.measure.counts import work
from decoupled.model.model import Model
from decoupled.runtime.open import open_runtime

KV = {"store": "kv"}
RATES = Rates(
    runtime="torch",
    encode_per_s=100.0,
    query_ms=10.0,
    pair_ms=8.0,
    bytes_per_token=98,
    vector_width=128,
    model_bytes=90_000_000,
)
WORKLOAD = Workload(passages=1_000_000, tokens=150, codec="int8", candidates=100, workers=4)


def test_a_plan_is_arithmetic():
    found = estimate(WORKLOAD, RATES)
    assert found.state_bytes == 1_000_000 * 150 * 98
    assert found.build_worker_hours == pytest.approx(1_000_000 / 100 / 3600)
    assert found.build_hours == pytest.approx(found.build_worker_hours / 4)
    assert (found.shards, found.replicas, found.processes) == (1, 2, 2)
    assert found.one_process_ms == pytest.approx(10 + 13.7 + 2 + 800)
    assert found.query_ms == found.one_process_ms
    assert found.memory_bytes_per_process == 90_000_000 + 44_000_000


def test_less_time_takes_more_shards_and_more_queries_more_replicas():
    quick = estimate(replace(WORKLOAD, latency_ms=200.0), RATES)
    assert quick.shards == 5 and quick.query_ms <= 200.0
    assert quick.query_ms == pytest.approx(10 + 13.7 + 2 + 800 / 5 + OVERHEAD_MS)
    busy = estimate(replace(WORKLOAD, latency_ms=200.0, queries_per_second=50.0), RATES)
    assert busy.shards == quick.shards
    assert busy.replicas == 14  # 50 queries of 0.1857 s, 70% busy


def test_what_cannot_be_reached_is_said():
    def warnings(latency_ms: float) -> list[str]:
        need = replace(WORKLOAD, latency_ms=latency_ms)
        return Planned(workload=need, rates=RATES, capacity=estimate(need, RATES)).warnings()

    assert estimate(replace(WORKLOAD, latency_ms=30.0), RATES).shards <= WORKLOAD.candidates
    assert "30 ms cannot be reached: 48 ms is the least" in warnings(30.0)[0]
    assert "45 ms cannot be reached" in warnings(45.0)[0] and not warnings(50.0)


def test_retrieval_follows_the_measurements():
    file = Path(__file__).parents[2] / "benchmarks" / "results" / "query_latency.json"
    sizes = json.loads(file.read_text(encoding="utf-8"))["sizes"]
    measured = {int(size): round(row["hybrid"]["p50_ms"], 1) for size, row in sizes.items()}
    assert measured == RETRIEVE_MS
    assert [retrieve_ms(size) for size in RETRIEVE_MS] == pytest.approx(list(RETRIEVE_MS.values()))
    assert retrieve_ms(1000) == pytest.approx(1.5)
    assert retrieve_ms(10_000_000) == pytest.approx(13.7 * 13.7 / 7.8)


def test_rates_are_measured(model):
    runtime = open_runtime(Model.split(model("bert", "rank"), at=2))
    found = measure(runtime, "project:8+int8", tokens=20, model_bytes=1)
    assert found.bytes_per_token == 10 and found.runtime == "torch"
    assert found.encode_per_s > 10 and 0 < found.pair_ms < 1000 and found.query_ms > 0
    with pytest.raises(InputError, match="200 tokens a passage; the model reads"):
        measure(runtime, "int8", tokens=200, model_bytes=1)


@pytest.mark.parametrize(
    ("text", "count"), [("250000", 250_000), ("32M", 32_000_000), ("1.5B", 1_500_000_000)]
)
def test_counts_are_read(text, count):
    assert count_of(text) == count


def test_the_command_prints_a_plan_with_its_assumptions(model, tmp_path, monkeypatch, capsys):
    run = Commands(monkeypatch, capsys)
    Model.split(model("bert", "rank"), at=2).save(tmp_path / "m")
    words = ("plan", "--passages", "32M", "--tokens", 40, "--model", tmp_path / "m")
    document = run(*words, "--latency", 500, "--rate", 20, "--json").json
    assert document["need"]["passages"] == 32_000_000
    assert document["plan"]["state_bytes"] == 32_000_000 * 40 * document["rates"]["bytes_per_token"]
    assert any("nobody measured" in line for line in document["assumptions"])
    shown = run(*words)
    assert shown.code == 0 and "32,000,000 of 40 tokens" in shown.out and "assumed:" in shown.err
    assert "write a number such as" in run("plan", "--passages", "many").failure
    assert "latency_ms is 0.0; expected more than 0" in run(*words, "--latency", 0).failure


def test_a_plan_stores_states_as_an_index_of_the_model_does(tmp_path):
    with Index.create(tmp_path / "i") as index:
        index.add([Passage(id="a", text="The river floods the town.")])
        stored = index.info()["state_bytes_per_token"]
    planned = plan("1M")
    assert planned.rates.bytes_per_token == stored
    assert planned.capacity.state_bytes == 1_000_000 * 150 * stored
    assert plan("1M", codec="int8").rates.bytes_per_token > stored


def test_a_plan_knows_keys_and_values(tmp_path):
    save_decoder(tmp_path, "qwen3")
    joint = Model.open(tmp_path)
    stored, cached = (
        plan(10, tokens=60, model=Model.split(joint, at=4, **how)) for how in ({}, KV)
    )
    # Keys and values of two heads of 8 beside a state of 32, in each of 4 layers, as fp16.
    assert (
        cached.rates.bytes_per_token == 2 * (32 + 4 * 2 * 2 * 8) and cached.workload.codec == "fp16"
    )
    assert stored.rates.bytes_per_token == 32 + 2
    assert cached.capacity.state_bytes == 10 * 60 * cached.rates.bytes_per_token
    # Without layers above it a split reads states for nothing; with keys and values the query reads them.
    assert 0 < stored.rates.pair_macs < cached.rates.pair_macs
    assert (
        cached.rates.pair_macs
        == work(Model.split(joint, at=4, **KV).spec, query=12, passage=60).cross
    )
    assert f"{60 * 320:,} bytes" in cached.described()["a candidate"]
