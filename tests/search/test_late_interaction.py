"""The cascade: the look by its definition, a cut that keeps its promises, and an engine that uses both."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from added_parts import with_late

from commands import Commands
from decoupled.errors import InputError, SpecError
from decoupled.index.check import check
from decoupled.index.index import Index
from decoupled.model.codec import fit_codec
from decoupled.model.jsonable import to_json
from decoupled.model.model import Model
from decoupled.model.spec import ProjectionSpec
from decoupled.model.states import Ragged, States
from decoupled.model.tokens import Passage
from decoupled.runtime.torch import TorchRuntime
from decoupled.search.engine import Engine
from decoupled.search.late_interaction import (
    LateInteraction,
    LateProjection,
    codes_of,
    max_sim,
    per_result,
    product,
)
from decoupled.search.request import Request
from decoupled.train.reshape import with_projection

WORDS = ("river", "town", "castle", "king", "bridge", "moon", "star", "ship", "tower", "wall")


def states(draw, *lengths: int, width: int = 16) -> States:
    count = sum(lengths)
    return States(draw.standard_normal((count, width)).astype(np.float32), np.array(lengths))


def by_hand(query: np.ndarray, passages: list[np.ndarray]) -> list[float]:
    def unit(x):
        return x / np.linalg.norm(x)

    return [sum(max(float(unit(q) @ unit(t)) for t in p) for q in query) for p in passages]


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8", "int4", "project:12+int8"])
def test_the_look_is_the_sum_of_best_cosines(name):
    draw = np.random.default_rng(0)
    query, passages = states(draw, 5), states(draw, 7, 1, 30, 4)
    fitted = fit_codec(name, states(draw, 600))
    scores = LateInteraction(keep=0.5).scores(query, fitted.encode(passages), fitted)
    codes = Ragged(codes_of(fitted.encode(passages), fitted), passages.lengths)
    expected = by_hand(codes_of(query, fitted), list(codes))
    assert scores == pytest.approx(expected, abs=1e-4)
    if "project" not in name:
        # The codes' own space is the states' but for what quantising loses.
        gap = np.abs(scores - by_hand(query.values, list(passages))).max()
        assert gap < {"fp32": 1e-4, "fp16": 1e-2, "int8": 0.1}.get(name, 1.5)


@pytest.mark.parametrize("shape", [(0, 5, 3), (7, 1, 1), (1000, 96, 48), (301, 384, 900)])
def test_a_product_in_pieces_is_the_product(shape):
    draw, (rows, inputs, outputs) = np.random.default_rng(0), shape
    x = draw.standard_normal((rows, inputs)).astype(np.float32)
    y = draw.standard_normal((outputs, inputs)).astype(np.float32).T
    assert product(x, y).shape == (rows, outputs) and np.allclose(product(x, y), x @ y, atol=1e-3)


def test_passages_without_tokens_come_last():
    query, codes = np.eye(2, dtype=np.float32), np.ones((3, 2), np.float32)
    scores = max_sim(query, codes, np.array([0, 2, 0, 1]))
    assert scores.tolist() == pytest.approx([-np.inf, 2**0.5, -np.inf, 2**0.5])
    assert len(max_sim(query, codes[:0], np.zeros(0, np.int64))) == 0


def test_the_cut_keeps_the_share_the_least_and_what_is_close():
    scores = np.arange(100, dtype=np.float32)[::-1].copy()
    tight = LateInteraction(keep=0.2, margin=0.0)
    assert tight.choose(scores, 5).tolist() == list(range(20))
    assert len(tight.choose(scores, 30)) == 60 and len(tight.choose(scores, 200)) == 100
    scores[20:23] = scores[19] - 1e-3
    widened = LateInteraction(keep=0.2, margin=0.1).choose(scores, 5)
    assert widened.tolist() == list(range(23)), "the guard lets close ones through"
    assert len(LateInteraction(keep=1.0).choose(scores, 1)) == 100
    keys = ["one"] * 40 + [str(n) for n in range(60)]
    assert tight.choose(scores, 5, keys=keys).tolist() == list(range(44)), "five are there"
    assert len(tight.choose(scores, 5, keys=["a", *"bcde" * 25][:100])) == 100, "no more are there"
    scores[50:] = -np.inf
    assert len(tight.choose(scores, 5)) == 20, "passages without tokens do not blur the cut"


@pytest.mark.parametrize("keep", [0, -0.1, 1.01, float("nan")])
def test_shares_that_are_none(keep):
    with pytest.raises(InputError, match="choose a share of the candidates"):
        LateInteraction(keep=keep)


# With an engine -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def index(model, tmp_path_factory):
    rank = model("bert", "rank").spec.head("rank")
    both = Model.split(model("bert", "span").with_heads(rank, seed=1), at=2)
    draw = np.random.default_rng(0)
    made = Index.create(tmp_path_factory.mktemp("cascade") / "i", both, codec="int8")
    with made:
        made.add(
            Passage(id=f"p{n}", text=" ".join(draw.choice(WORDS, 6)) + " river") for n in range(60)
        )
    return made.path


def test_hits_of_a_cascade_are_the_full_ranking_of_what_it_kept(index):
    plain, cut = Engine(index), Engine(index, cascade=0.3)
    full = plain.search("river castle", 60, candidates=60, raw=True)
    hits = cut.search("river castle", 5, candidates=60, raw=True)
    assert len(full) == 60 and len(hits) == 5
    scores = {h.id: h.score for h in full}
    assert all(h.score == pytest.approx(scores[h.id], abs=1e-5) for h in hits)
    assert [h.id for h in hits] == sorted((h.id for h in hits), key=lambda i: -scores[i])


def test_a_share_that_is_no_number_is_an_error_that_names_it(index):
    with pytest.raises(InputError, match="give a share such as"):
        Engine(index, cascade="auto")


def test_a_cascade_that_keeps_everything_changes_nothing(index):
    plain, whole = Engine(index), Engine(index, cascade=1.0)
    for ask in ("search", "ask"):
        ours = getattr(whole, ask)("river castle", 4, candidates=60)
        theirs = getattr(plain, ask)("river castle", 4, candidates=60)
        assert [x.to_json() for x in ours] == [x.to_json() for x in theirs]


def test_a_request_is_weighed_by_what_will_be_read_of_it(index):
    search = Request(query="river", head="rank", k=3, retrieve=True, candidates=60)
    assert Engine(index).reads(search) == 60
    cut = Engine(index, cascade=0.3)
    assert cut.reads(search) == 18
    assert cut.reads(replace(search, k=None)) == cut.reads(replace(search, read="all")) == 60


def test_rerank_without_k_scores_everything_and_answers_come_from_what_is_kept(index):
    cut = Engine(index, cascade=0.1)
    ids = [f"p{n}" for n in range(40)]
    assert len(cut.rerank("river", ids=ids)) == 40
    assert len(cut.rerank("river", ids=ids, texts=["a king", "a moon"], k=3)) == 3
    for answer in cut.ask("which river", 3):
        assert answer.passage[answer.start : answer.end] == answer.text


@pytest.fixture(scope="module")
def learned(model) -> Model:
    rank = model("bert", "rank").spec.head("rank")
    both = Model.split(model("bert", "span").with_heads(rank, seed=1), at=2)
    made = with_late(with_projection(both, 12), 6)
    with torch.no_grad():
        made.net.late.scale.fill_(1.3)
    return made


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8", "int8:64", "int4", "project:9+int8"])
def test_a_learned_projection_scores_stored_codes_as_the_model_does(learned, name):
    runtime = TorchRuntime(learned)
    query = runtime.encode("query", runtime.tokenizer.queries(["the river by the castle"])).states
    windows = runtime.tokenizer.windows([" ".join(WORDS[: n + 1]) for n in range(9)] * 8)
    passages = runtime.encode("passage", [w[0].ids for w in windows]).states
    codec = fit_codec(name, passages)
    stored = codec.encode(passages)
    own = LateInteraction(keep=0.5, projection=LateProjection.of(runtime))
    found = own.scores(query, stored, codec)
    # Invariant to scales: what is stored counts, not what it came from.
    values, real = map(torch.from_numpy, codec.decode(stored).pad())
    asked = torch.from_numpy(query.values)[None].expand(len(real), -1, -1)
    with torch.inference_mode():
        all_real = torch.ones(asked.shape[:2], dtype=torch.bool)
        expected = learned.net.late.score(asked, all_real, values, real).numpy()
    assert found == pytest.approx(expected, abs=1e-4)
    assert own.scores(query, passages, None) == pytest.approx(found, abs=0.3)


def test_special_tokens_match_nothing_and_padding_neither(learned):
    late, draw = learned.net.late, torch.Generator().manual_seed(0)
    query, passage = (torch.randn(2, n, 12, generator=draw) for n in (6, 5))
    real_q = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]]).bool()
    real_p = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    assert late.words(real_q).int().tolist() == [[0, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0]]
    scores = late.score(query, real_q, passage, real_p)
    alone = late.score(query[1:, :2], real_q[1:, :2], passage[1:, :3], real_p[1:, :3])
    assert scores[1].item() == pytest.approx(alone.item(), abs=1e-6)
    unit = [
        torch.nn.functional.normalize(x @ late.weight.T, dim=-1) for x in (query[0], passage[0])
    ]
    by_hand = (unit[0][1:5] @ unit[1].T).amax(1).mean() * 2.718281828**1.3
    assert scores[0].item() == pytest.approx(by_hand.item(), abs=1e-5)


@pytest.mark.parametrize("runtime", ["torch", "openvino-fp32"])
def test_an_engine_takes_the_projection_of_its_model(learned, tmp_path, runtime):
    learned.save(tmp_path / "m")
    with Index.create(tmp_path / "i", tmp_path / "m", codec="int8") as made:
        made.add(Passage(id=f"p{n}", text=f"{a} {b}") for n, (a, b) in enumerate(pairwise(WORDS)))
    cut = Engine(made.path, cascade=0.3, runtime=runtime)
    assert np.array_equal(cut.cascade.projection.weight, learned.net.late.weight.detach().numpy())
    asked = Request(query="river town", head="rank", k=2, retrieve=True, first_stage="dense")
    (search,) = cut.score([asked])
    assert search.all_windows is not None and len(search.windows) < len(search.all_windows)
    scores = cut.cascade.scores(search.encoding.states, search.all_windows.states, made.codec)
    kept = set(np.argsort(-scores)[:3])
    assert set(search.all_windows.rows[sorted(kept)]) <= set(search.windows.rows)
    assert cut.reopened().cascade.projection is not None
    assert len(Engine(learned, cascade=0.2).rerank("river", texts=list(WORDS), k=2)) == 2


def test_by_default_a_search_reads_what_its_model_says_is_enough(learned, tmp_path):
    spec = replace(learned.spec, late=replace(learned.spec.late, keep=0.2))
    sure = learned.rebuild(spec, {"did": "choose the share"})
    made, ours = [], {"runtime": "torch"}  # no graphs are compiled
    for name, model in (("all", learned), ("some", sure)):
        with Index.create(tmp_path / name, model, codec="int8", **ours) as index:
            index.add(
                Passage(id=f"p{n}", text=f"{a} {b}") for n, (a, b) in enumerate(pairwise(WORDS))
            )
        made.append(index.path)
    assert Index.open(made[1], model=learned, **ours).spec.late.keep is None, (
        "no part of the fingerprint"
    )

    def read(engine: Engine, **how) -> int:
        asked = Request(query="river town", head="rank", k=2, first_stage="dense", **how)
        (search,) = engine.score([asked])
        return len(search.windows)

    ids, some = tuple(f"p{n}" for n in range(9)), Engine(made[1], **ours)
    assert read(Engine(made[0], **ours), retrieve=True) == 9
    assert 2 <= read(some, retrieve=True) < 9
    assert 2 <= read(some.reopened(), retrieve=True) < 9
    assert read(some, ids=ids) == 9, "all that the caller named are read"
    assert read(Engine(made[1], cascade=1.0, **ours), retrieve=True) == 9
    assert read(Engine(made[1], cascade="all", **ours), retrieve=True) == 9
    assert read(some, retrieve=True, read="all") == 9
    assert read(Engine(made[1], cascade=0.2, **ours), ids=ids) < 9
    with pytest.raises(InputError, match="read='some'; choose auto or all"):
        Request(query="x", head="rank", read="some")
    whole = some.search("river town", 9, first_stage="dense")
    assert len(whole) == 9, "as many as are asked for"
    with pytest.raises(SpecError, match=r"late\.keep=1\.5; choose a share"):
        replace(spec, late=replace(spec.late, keep=1.5))


def test_what_the_first_stage_knows_counts_where_the_model_learnt_how_much():
    late, prior = np.float32([0, 1, 2, 3, 4, -np.inf]), np.array([6.0, 0, 0, 0, 0, 0])
    plain, learnt = LateInteraction(keep=0.1), LateInteraction(keep=0.1, slope=1.0)
    assert plain.with_prior(late, prior) is late and learnt.with_prior(late, prior[:0]) is late
    both = learnt.with_prior(late, prior)
    assert both.argmax() == 0 and both[1:5].argmax() == 3 and both[5] == pytest.approx(both[0] - 6)
    # Twice as many as are asked for; a share of a hundred however many there are.
    many = np.arange(500, dtype=np.float32)
    assert learnt.choose(both, 1).tolist() == [0, 4]
    exact = {"keep": 0.1, "margin": 0.0}
    assert len(LateInteraction(**exact).choose(many, 3)) == 50
    assert LateInteraction(**exact, most=100).choose(many, 3).tolist() == list(range(490, 500))
    assert len(LateInteraction(**exact, most=100).choose(many, 8)) == 16
    assert len(LateInteraction(**exact, most=100).choose(many, 12, per_result("span"))) == 12


def test_it_belongs_to_the_model_and_not_to_its_fingerprint(learned, tmp_path):
    described = {n: t.shape for n, t in learned.spec.tensors().items()}
    assert described == {n: tuple(t.shape) for n, t in learned.net.state_dict().items()}
    learned.save(tmp_path / "m")
    loaded = Model.load(tmp_path / "m")
    assert loaded.spec == learned.spec and loaded.fingerprint == learned.fingerprint
    with torch.no_grad():
        loaded.net.late.weight.add_(1)
    assert Model(loaded.net, loaded.tokenizer).fingerprint == learned.fingerprint
    assert Model.split(learned, at=1).spec.late is None
    assert "late" not in to_json(replace(learned.spec, late=None))
    one_sided = ProjectionSpec(width=12, query=False)
    with pytest.raises(SpecError, match="they are 32 and 12 wide; project both sides"):
        replace(learned.spec, projection=one_sided)


def test_enough_documents_are_found_however_many_windows_they_have(model, tmp_path):
    split = Model.split(model("bert", "rank"), at=1, passage_tokens=12, stride=4)
    with Index.create(tmp_path / "i", split, codec="int8") as made:
        made.add([Passage(id="long", text="river " * 120), Passage(id="b", text="a town")])
        made.add([Passage(id="c", text="a moon"), Passage(id="d", text="the river king")])
        hits = Engine(made, cascade=0.05).rerank("river", ids=["long", "b", "c", "d"], k=4)
    assert {h.id for h in hits} == {"long", "b", "c", "d"}


def test_windows_of_one_passage_are_no_reason_to_read_all(model, tmp_path, monkeypatch):
    split = Model.split(model("bert", "rank"), at=1, passage_tokens=12, stride=4)
    texts = {"long": "river " * 120, **{f"{n}": f"a {WORDS[n]}" for n in range(10)}}
    with Index.create(tmp_path / "i", split, codec="int8") as made:
        made.add(Passage(id=ident, text=text) for ident, text in texts.items())
        engine = Engine(made, cascade=0.05)
        read, cross = [], type(engine.runtime).cross
        monkeypatch.setattr(
            type(engine.runtime),
            "cross",
            lambda self, query, passages, *a, **k: (
                read.append(len(passages)) or cross(self, query, passages, *a, **k)
            ),
        )
        hits = engine.rerank("river", ids=list(texts), k=4)
        windows = len(made.store.snapshot)
    assert len({h.id for h in hits}) == 4
    assert sum(read) < windows, "read once, and not all"


def test_what_older_versions_fitted_to_an_index_is_ignored(index, tmp_path):
    path = shutil.copytree(index, tmp_path / "i")
    (path / "cascade.safetensors").write_bytes(b"of an older version")
    assert check(path).sound
    with Index.open(path, write=True) as old:
        old.delete(["p0"])
        old.compact()
    assert len(Engine(path).search("river", 5)) == 5


def test_the_commands_read_a_share(index, monkeypatch, capsys):
    cli = Commands(monkeypatch, capsys)
    hits = cli("search", index, "river", "--cascade", "0.3", "--memory", "1MB", "--json").json
    assert len(hits["hits"]) == 10
    assert "give a share" in cli("search", index, "river", "--read", "auto").failure
    assert cli("ask", index, "which river", "--cascade", "0.5", "--json").json["answers"]
    assert cli("ask", index, "which river", "--read", "all", "--json").json["answers"]
    assert "--read is 'few'; give a share" in cli("search", index, "x", "--cascade", "few").failure
    assert "memory is 'big'" in cli("search", index, "x", "--memory", "big").failure
