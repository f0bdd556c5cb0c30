"""Bytes, money and clocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decoupled.errors import InputError
from decoupled.lab.cost import (
    Demand,
    Prices,
    Storage,
    break_even,
    cost,
    encode_once,
    joint_bill,
    split_bill,
)
from decoupled.lab.study.timing import interleaved
from decoupled.measure.latency import summarise
from decoupled.model.codec import bytes_per_token, fit_codec
from decoupled.model.states import States

SEED = Demand(queries_per_day=1e6, joint_ms=4600 / 640, split_ms=1400 / 640, stored_gb=226)
"""DeFormer: batches of 640 take 4.6 s and 1.4 s, 226 GB are kept."""

NAMES = ["fp32", "fp16", "int8", "int8:64", "int4", "project:5+int8", "project:6+int4"]


@pytest.mark.parametrize("name", NAMES)
def test_bytes_per_token_are_those_of_the_codec(name):
    values = np.random.default_rng(0).standard_normal((600, 9)).astype(np.float32)
    made = fit_codec(name, States(values, np.asarray([600])))
    assert bytes_per_token(name, 9) == made.bytes_per_token


def test_published_bytes_of_a_passage_and_of_wikipedia():
    one = Storage(passages=1, tokens=150, width=768, codec="fp16")
    assert one.passage_bytes == 230_400 == 225 * 1024
    wikipedia = replace(one, passages=32_000_000)
    assert wikipedia.total_bytes == 7_372_800_000_000
    narrow = replace(wikipedia, codec="project:192+fp16")
    assert narrow.total_bytes == wikipedia.total_bytes / 4 == 1_843_200_000_000
    small = replace(wikipedia, codec="project:192+int8")
    scales = 32_000_000 * 150 * 2
    assert scales == 9_600_000_000
    assert small.total_bytes - scales == narrow.total_bytes / 2 == 921_600_000_000


def test_storage_refuses_what_cannot_be_stored():
    with pytest.raises(InputError, match="projects to 192, but the states are 96 wide"):
        Storage(passages=1, tokens=1, width=96, codec="project:192+int8")
    with pytest.raises(InputError, match="passages=0"):
        Storage(passages=0, tokens=1, width=96)
    with pytest.raises(InputError, match="there is no 'int9'"):
        Storage(passages=1, tokens=1, width=96, codec="int9")


def test_published_money():
    joint, split = joint_bill(SEED), split_bill(SEED)
    assert joint.total == pytest.approx(148.5, abs=0.05)
    assert split.compute == pytest.approx(45.2, abs=0.05)
    assert split.reads == pytest.approx(12.0, abs=0.005)
    assert split.storage == pytest.approx(4.5, abs=0.05)
    assert split.total == pytest.approx(61.7, abs=0.05)
    assert split.to_json()["total"] == round(split.total, 2)


def test_the_defaults_store_what_the_passages_take_and_not_the_printed_226_gb():
    found = cost()
    assert found["total_bytes"] == 230_400_000_000
    assert (found["joint"]["total"], found["split"]["total"]) == (148.54, 61.82)


def test_at_the_break_even_both_cost_the_same():
    found = break_even(SEED)
    assert found is not None
    at = replace(SEED, queries_per_day=found)
    assert joint_bill(at).total == pytest.approx(split_bill(at).total)
    more = replace(SEED, candidates=100)
    assert break_even(more) == pytest.approx(found / 100)
    assert break_even(replace(SEED, stored_gb=0)) == 0


def test_a_split_that_is_no_faster_never_pays():
    assert break_even(replace(SEED, split_ms=SEED.joint_ms)) is None
    assert break_even(SEED, Prices(reads_10k=1000)) is None


def test_encoding_is_paid_once():
    demand = replace(SEED, passages=1_000_000, index_ms=3.6)
    assert encode_once(demand) == pytest.approx(2.48)
    with pytest.raises(InputError, match="joint_ms=-1"):
        replace(SEED, joint_ms=-1)
    with pytest.raises(InputError, match="gb_month=nan"):
        Prices(gb_month=float("nan"))


def test_alternatives_take_turns_and_warm_up():
    calls: list[str] = []
    waits: list[int] = []
    found = interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")},
        rounds=3,
        warmup=1,
        wait=lambda: waits.append(1),
    )
    assert "".join(calls) == "abbaabba" and len(waits) == 8
    assert found["a"].rounds == found["b"].rounds == 3


def test_the_summary_of_times():
    found = summarise([1.0, 2.0, 9.0])
    assert (found.median, found.least, found.rounds) == (2.0, 1.0, 3)
    assert found.to_json()["p95"] == pytest.approx(8.3)
