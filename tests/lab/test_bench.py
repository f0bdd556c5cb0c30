"""`bench`: the race is fair, goes on where it stopped, and says why someone did not take part."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from commands import Commands
from decoupled.errors import InputError
from decoupled.index.index import Index
from decoupled.lab.bench import contenders, peers, race, report
from decoupled.lab.bench.contenders import CROSS_ENCODER, JOINT
from decoupled.lab.bench.report import Results, compare, joint_flops, key_of, query_flops
from decoupled.lab.bench.shapes import (
    PASSAGE_TOKENS,
    QUERY_TOKENS,
    SHAPES,
    shape_named,
    texts,
    write_checkpoint,
)
from decoupled.lab.bench.worker import State, memory_now, peak_since, reset_peak
from decoupled.model.hf.convert import family_of
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.nn.frame import FIRST, Frame
from decoupled.model.spec import ModelSpec, TextSpec
from decoupled.model.split import with_split
from decoupled.search.engine import Engine

TINY = SHAPES["tiny"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("race")


@pytest.fixture(scope="module")
def checkpoint(work):
    return write_checkpoint(TINY, work / "tiny")


def test_texts_have_exactly_the_tokens_of_the_race(checkpoint):
    model, made = Model.open(checkpoint), texts(40)
    assert {len(model.tokenizer.query(q)) for q in made.queries} == {QUERY_TOKENS}
    windows = model.tokenizer.windows(list(made.passages))
    assert {len(group) for group in windows} == {1}
    assert {len(group[0].ids) for group in windows} == {PASSAGE_TOKENS}
    assert len(set(made.ids)) == 40 and made == texts(40)


@pytest.mark.parametrize("name", ["tiny", "ModernBERT-17M"])
def test_peers_and_we_read_the_same_weights(name, tmp_path):
    """The checkpoint that we write without transformers is the model that transformers reads."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = write_checkpoint(shape_named(name), tmp_path / name)
    made = texts(6)
    peer = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    query = made.queries[0]
    theirs = peer.predict([(query, p) for p in made.passages], activation_fn=torch.nn.Identity())
    ours = Engine(str(folder)).rerank(query, texts=made.passages, raw=True)
    assert [h.score for h in sorted(ours, key=lambda h: int(h.id))] == pytest.approx(
        theirs.tolist(), abs=1e-4
    )


def test_our_ways_rank_the_same_candidates(checkpoint, work):
    made = texts(40)
    opened = {
        name: contenders.open_contender(name, TINY, checkpoint, made, work, "cpu")
        for name in (JOINT, "decoupled torch exact", "decoupled torch one-way")
    }
    exact = opened["decoupled torch exact"]
    best = exact.rank(made.queries[1], 40, 10)
    assert len(best) == 10 and set(best) <= set(made.ids)
    direct = Engine(Model.split(checkpoint, at=TINY.split)).rerank(
        made.queries[1], texts=made.passages, raw=True
    )
    scores = {f"p{h.id}": h.score for h in direct}
    # int8 codes and repeated passages: the scores decide, ties may fall either way.
    worst = sorted(scores.values())[-10]
    assert all(scores[i] >= worst - 0.05 for i in best)
    assert exact.facts["states_in_memory"] > 40 * PASSAGE_TOKENS * TINY.width
    assert opened[JOINT].rank(made.queries[1], 40, 10)[0] in made.ids


def test_an_index_that_was_begun_and_left_empty_is_filled(checkpoint, tmp_path):
    folder, made = tmp_path / "m", texts(3)
    Model.split(checkpoint, at=TINY.split).save(folder)
    Index.create(tmp_path / "m.idx", folder, codec=contenders.CODEC).close()
    with contenders._index(folder, made, "torch") as index:
        assert len(index) == 3


def test_the_openvino_peer_keeps_to_the_threads_of_the_race(monkeypatch):
    openvino = pytest.importorskip("openvino")
    from openvino import opset13 as op

    monkeypatch.setattr(peers.os, "cpu_count", lambda: 4)
    given = op.parameter([2, 2], np.float32)
    model = openvino.Model([op.relu(given)], [given])
    compiled = openvino.Core().compile_model(model, "CPU", peers.openvino_config(1))
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1
    assert "INFERENCE_NUM_THREADS" not in peers.openvino_config(4)


@pytest.mark.slow
def test_openvino_int8_inside_the_cross_encoder_keeps_its_scores(checkpoint, work):
    for package in ("sentence_transformers", "openvino", "nncf"):
        pytest.importorskip(package)
    made = texts(12)
    plain = peers.cross_encoder_model(checkpoint, "cpu", compiled=False)
    quantised = peers.openvino_model(checkpoint, made, work, threads=1)
    pairs = [(made.queries[0], p) for p in made.passages]
    a, b = (m.predict(pairs, activation_fn=torch.nn.Identity()) for m in (plain, quantised))
    assert np.abs(a - b).max() < 0.05 and np.abs(a - b).max() > 0
    assert np.corrcoef(a, b)[0, 1] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", [contenders.ONNX, contenders.ONNX_INT8])
def test_onnx_has_the_scores_of_the_same_weights(name, checkpoint, work):
    for package in contenders.NEEDS[name]:
        pytest.importorskip(package)
    made = texts(12)
    peer = contenders.open_contender(name, TINY, checkpoint, made, work, "cpu")
    best = peer.rank(made.queries[0], 12, 12)
    direct = Engine(str(checkpoint)).rerank(made.queries[0], texts=made.passages, raw=True)
    expected = [f"p{h.id}" for h in direct]
    if name == contenders.ONNX:
        assert best == expected
    else:
        assert len(set(best[:6]) & set(expected[:6])) >= 4


def test_flops_are_those_of_the_layers():
    """Counted by torch on the modules themselves."""
    shape = replace(TINY, name="counted", layers=4, split=2)
    for one_way in (False, True):
        spec = with_split(counted_spec(shape), shape.split, one_way="auto" if one_way else ())
        net = PairEncoder(spec).eval()
        tokens = QUERY_TOKENS + PASSAGE_TOKENS
        place = torch.arange(tokens)[None]
        frame = Frame(place, torch.ones(1, tokens, dtype=torch.bool))
        x = torch.randn(1, tokens, shape.width)
        with (
            torch.no_grad(),
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
            FlopCounterMode(display=False) as counter,
        ):
            net.stack(x, frame, rows=FIRST, first=shape.split, query=QUERY_TOKENS)
        expected = query_flops(shape, QUERY_TOKENS, PASSAGE_TOKENS, one_way=one_way)
        assert counter.get_total_flops() == pytest.approx(expected, rel=1e-6)
    assert joint_flops(shape, 170) > 2 * query_flops(shape, 20, 150, one_way=False)


def counted_spec(shape):
    family = family_of("bert")
    config = shape.config()
    encoder = family.encoder(config)
    heads = family.head(config, "BertForSequenceClassification")
    text = TextSpec(query_prefix=(2,), query_suffix=(3,), passage_prefix=(), passage_suffix=(3,))
    return ModelSpec(family="bert", encoder=encoder, heads=heads, text=text)


def test_the_peak_of_a_query_is_seen():
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("only Linux tells")
    reset_peak("cpu")
    before = memory_now()
    block = np.ones(8_000_000)
    del block
    peak = peak_since("cpu") - before
    assert 50e6 < peak < 200e6
    reset_peak("cpu")
    assert peak_since("cpu") - memory_now() < 30e6


# The command --------------------------------------------------------------------------------------


@pytest.fixture
def cli(monkeypatch, capsys):
    return Commands(monkeypatch, capsys)


class Here:
    """A contender without a process of its own, which a test of the race does not need."""

    def __init__(self, environment) -> None:
        self.state = State()

    def ask(self, do, **order):
        return getattr(self.state, do)(**order)

    def close(self) -> None:
        """Nothing is left behind."""


def test_a_race_is_written_as_it_goes_and_goes_on(cli, work, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which a contender sets
    monkeypatch.setattr(race, "Worker", Here)
    out = tmp_path / "r.json"
    base = ("bench", "--shape", "tiny", "--turns", 2, "--threads", 1, "--work", work, "-o", out)
    words = (
        *base,
        "--only",
        "torch joint",
        "--only",
        "torch exact",
        "--only",
        "CrossEncoder torch",
    )
    monkeypatch.setattr(contenders, "find_spec", lambda package: None)
    done = cli(*words, "--top", 12, "--json")
    cells = done.json["cells"]
    skipped = cells[key_of("tiny", 12, CROSS_ENCODER)]
    assert skipped == {"skipped": "sentence_transformers is not installed (extra `bench`)"}
    raced = cells[key_of("tiny", 12, "decoupled torch exact")]
    assert raced["turns"] == 2 and raced["p50_ms"] <= raced["p95_ms"]
    assert raced["bytes_read"] == 12 * PASSAGE_TOKENS * (TINY.width + 2)
    assert raced["pairs_per_s"] == pytest.approx(12e3 / raced["p50_ms"], rel=0.01)
    rows = {row["contender"]: row for row in done.json["rows"]}
    assert rows["decoupled torch exact"]["baseline"] == JOINT
    assert rows[JOINT]["speedup"] == 1.0
    assert rows["decoupled torch exact"]["gflops"] > 0
    # Again with one more number of passages: what is there is not raced again.
    again = cli(*words, "--top", 12, "--top", 14)
    kept = json.loads(out.read_text())["cells"]
    assert kept[key_of("tiny", 12, "decoupled torch exact")] == raced
    assert "p50_ms" in kept[key_of("tiny", 14, "decoupled torch exact")]
    assert f"skipped {CROSS_ENCODER} (tiny 12, tiny 14): sentence_transformers" in again.err
    assert "tiny, 12 passages" not in again.err


def test_a_race_that_is_stopped_says_how_to_go_on(cli, tmp_path, monkeypatch):
    def stop(*given) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(race, "run", stop)
    words = ("bench", "--shape", "tiny", "--top", 5)
    assert "with -o FILE a race can go on" in cli(*words).failure
    assert (
        "r.json has what was raced, and the same" in cli(*words, "-o", tmp_path / "r.json").failure
    )


def test_what_cannot_be_raced_is_said(cli, tmp_path):
    assert "preset 'fast' is unknown; choose one of quick, cpu, gpu" in (
        cli("bench", "--preset", "fast").failure
    )
    assert "shape 'GPT' is unknown" in cli("bench", "--shape", "GPT").failure
    assert "no contender has nobody in its name; there are" in (
        cli("bench", "--only", "nobody").failure
    )
    (tmp_path / "x.json").write_text("[]")
    assert "holds no results of `bench`" in cli("bench", "-o", tmp_path / "x.json").failure
    if not torch.cuda.is_available():
        assert "torch sees no GPU here" in cli("bench", "--preset", "gpu").failure


def test_a_query_that_would_take_too_long_is_left_out():
    plan = race.race_of("quick", shapes=("tiny",), tops=(20, 100), patience=0.001)
    results = Results(None, {"cells": {}})

    class Slow:
        def ask(self, do, **told):
            return {"first_ms": 50.0, "ms": 50.0, "query_bytes": 1}

    workers = {"decoupled torch exact": (Slow(), {})}
    for top in plan.tops:
        race._turns("tiny", top, workers, plan, results, lambda text: None)
    first, second = results.data["cells"].values()
    assert [results.has(key) for key in results.data["cells"]] == [True, False]
    assert first["p50_ms"] == 50.0 and first["turns"] == 5
    assert second == {"skipped": "one query would take about 0 s; raise --patience"}


def test_a_race_that_is_cut_off_keeps_its_turns_and_is_raced_again():
    plan = race.race_of("quick", shapes=("tiny",), tops=(20,), turns=3)
    results = Results(None, {"cells": {}})

    class Cut:
        asked = 0

        def ask(self, do, **told):
            self.asked += do == "once"
            if self.asked == 3:
                raise KeyboardInterrupt
            return {"first_ms": 5.0, "ms": 5.0, "query_bytes": 1}

    with pytest.raises(KeyboardInterrupt):
        race._turns("tiny", 20, {JOINT: (Cut(), {})}, plan, results, lambda text: None)
    (cell,) = results.data["cells"].values()
    assert cell["turns"] == 2 and cell["p50_ms"] == 5.0
    assert not results.has(key_of("tiny", 20, JOINT))


@pytest.mark.parametrize("place", ["ceiling", None])
def test_times_of_another_setting_are_not_gone_on_with(place):
    """Files of before say device and threads beside the ceiling alone."""
    cpu, here = {"device": "cpu", "threads": 2}, {"processor": "x"}
    results = Results(Path("r.json"), {"cells": {}, **({place: cpu} if place else cpu)})
    results.describe("cpu", here, **cpu)
    assert (results.data["device"], results.data["threads"]) == ("cpu", 2)
    for machine, other, told in (
        (here, {"device": "cuda"}, "r.json holds times of device='cpu', and this race has device="),
        (here, {"threads": 8}, "threads=2, and this race has threads=8; name another file"),
        ({"processor": "y"}, {}, "processor='x', and this race has processor='y'"),
    ):
        with pytest.raises(InputError, match=re.escape(told)):
            results.describe("cpu", machine, **{**cpu, **other})


@pytest.mark.parametrize("was", [{"commit": "aaa"}, {}])
def test_times_of_two_commits_are_not_mixed(was, monkeypatch):
    monkeypatch.setenv("COMMIT", "bbb")
    now = {"device": "cpu", "threads": 2, "commit": report.commit()}
    results = Results(Path("r.json"), {"cells": {"a | 20 | b": {}}, **was})
    with pytest.raises(InputError, match="this race has commit='bbb'; name another file"):
        results.describe("cpu", {}, **now)
    fresh = Results(Path("r.json"), {"cells": {}})
    fresh.describe("cpu", {}, **now)
    assert fresh.data["commit"] == "bbb"


def test_the_commit_of_a_checkout_is_known_and_that_of_a_copy_is_not(monkeypatch, tmp_path):
    monkeypatch.delenv("COMMIT", raising=False)
    assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?", report.commit() or "0" * 12)
    installed = tmp_path / "site-packages/decoupled/lab/bench/report.py"
    monkeypatch.setattr(report, "__file__", str(installed))
    assert report.commit() is None


def test_a_race_refuses_the_file_of_another_one(cli, tmp_path):
    out = tmp_path / "r.json"
    out.write_text(json.dumps({"cells": {}, "ceiling": {"device": "cuda", "threads": 1}}))
    assert "holds times of device='cuda'" in cli("bench", "--threads", 1, "-o", out).failure


def test_ratios_are_medians_over_turns():
    cell = {"turns": 3, "pairs_per_s": 1.0, "p95_ms": 1.0}
    fast = {**cell, "p50_ms": 2.0, "times_ms": [2.0, 2.0, 20.0], "peak_bytes": 30}
    base = {**cell, "p50_ms": 10.0, "times_ms": [10.0, 12.0, 100.0], "peak_bytes": 100}
    cells = {key_of("tiny", 20, JOINT): base, key_of("tiny", 20, "decoupled x"): fast}
    rows = compare(Results(None, {"cells": cells}))
    assert [row["speedup"] for row in rows] == [1.0, 5.0]
    assert rows[1]["memory_saved"] == 0.7
    times, rates = report.tables(rows)
    assert [row[0] for row in times.rows] == [JOINT, "decoupled x"] and "5.0x" in times.rows[1]
    assert rates.rows[0][0] == JOINT


def test_a_worker_survives_what_a_peer_throws_and_its_end_is_told(tmp_path):
    worker = race.Worker({**os.environ})
    order = {"contender": "nobody", "shape": "tiny", "count": 4, "work": str(tmp_path)}
    opened = worker.ask("open", **order, threads=1, device="cpu")
    assert "contender 'nobody' is unknown" in opened["failed"]
    assert "AttributeError" in worker.ask("once", number=0, count=4)["failed"]
    worker._process.kill()
    assert worker.ask("once", number=0, count=4) == {"failed": "its process ended with status -9"}
    worker.close()
