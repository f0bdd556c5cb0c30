from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from augment import combine, cropped, shuffled, with_hard_negatives
from bm25 import Bm25
from stored import load_examples, save_examples
from threshold import best_threshold

from decoupled.errors import InputError
from decoupled.measure.agreement import Case, agreement, outputs
from decoupled.measure.metrics import best_over
from decoupled.measure.pairs import Pair, Span
from decoupled.model.model import Model
from decoupled.model.parts.head import HeadSpec
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import _first_queries, prepare, tokenise
from decoupled.train.data.tasks import TASKS, by_head, task_for
from decoupled.train.evaluate import (
    How,
    PredictedSpans,
    answers,
    class_metrics,
    evaluate_examples,
    judged_answers,
    judged_ranking,
)
from decoupled.train.losses import UNLABELLED
from decoupled.train.recipe import PLAIN, override
from decoupled.train.reshape import with_text
from toy import PLACES, class_pairs, span_pairs


def test_answers_over_windows_are_substrings_scored_as_squad_scores_them(model):
    made = with_text(model("bert", "span"), passage_tokens=12, stride=6)
    pairs = []
    for number in range(6):
        words = [PLACES[(number + i) % len(PLACES)] for i in range(16)]
        passage = "  ".join(words)
        answer = words[number + 2]
        golds = (
            Span(text=answer, start=passage.index(answer)),
            Span(text="The " + words[0], start=0),
        )
        pairs.append(Pair(query=answer, passage=passage, answers=golds[:1], id=f"q{number}"))
    data = tokenise(pairs, made.tokenizer, TASKS["squad"], train=False)
    assert len(data) > len(pairs)
    found = answers(made.net, data, TASKS["squad"])
    assert all(text and text in pair.passage for text, pair in zip(found.texts, pairs, strict=True))
    expected = [best_over([p.answers[0].text], t) for p, t in zip(pairs, found.texts, strict=True)]
    result = evaluate_examples(made.net, data, TASKS["squad"])
    assert result["exact"] == pytest.approx(100 * np.mean([e for e, _ in expected]))
    assert result["f1"] == pytest.approx(100 * np.mean([f for _, f in expected]))
    small = evaluate_examples(made.net, data, TASKS["squad"], How(tokens=40))
    assert small == pytest.approx(result)


def test_a_gold_answer_of_articles_alone_does_not_count():
    assert best_over(["the", "king"], "") == (0.0, 0.0) and best_over(["the", "king"], "King")[0]
    assert best_over(["the"], "") == best_over([], "an") == (1.0, 1.0)


def test_training_windows_hold_the_whole_answer(model):
    made = with_text(model("bert", "span"), passage_tokens=12, stride=6)
    passage = " ".join(PLACES[i % 12] for i in range(30))
    start = passage.index("forest island")
    pair = Pair(
        query="x", passage=passage, answers=(Span(text="forest island", start=start),), id="1"
    )
    data = tokenise([pair], made.tokenizer, TASKS["squad"], train=True)
    every = tokenise([pair], made.tokenizer, TASKS["squad"], train=False)
    assert 0 < len(data) < len(every)
    for row in range(len(data)):
        first, last = data.label[row] - 1
        offsets = data.truth.offsets[int(data.passage_of[row])]
        assert passage[offsets[first, 0] : offsets[last, 1]] == "forest island"


def test_examples_survive_a_file_and_a_tune_split_keeps_passages_apart(model, tmp_path):
    made = model("bert", "span")
    pairs = [p for p in span_pairs(20) for _ in range(2)]
    pairs = [Pair(**{**vars(p), "id": str(n)}) for n, p in enumerate(pairs)]
    data = tokenise(pairs, made.tokenizer, TASKS["squad"], train=True)
    save_examples(data, tmp_path / "e.npz")
    again = load_examples(tmp_path / "e.npz")
    for name in ("query_of", "passage_of", "label", "score", "question", "part"):
        assert np.array_equal(getattr(again, name), getattr(data, name))
    assert again.truth.texts == data.truth.texts and again.truth.golds == data.truth.golds
    assert evaluate_examples(made.net, again, TASKS["squad"]) == evaluate_examples(
        made.net, data, TASKS["squad"]
    )
    train, tune = data.divide(0.2, seed=1)
    assert len(train) + len(tune) == len(data) and len(tune) == 8
    assert not set(train.part) & set(tune.part)
    with pytest.raises(InputError, match=r"1 part\(s\) .*set some aside for judging"):
        data.select(np.arange(2)).divide()


def test_what_is_set_aside_is_judged_as_evaluate_judges_it(model):
    made = with_text(model("bert", "span"), passage_tokens=12, stride=6)
    pairs = []
    for number in range(20):
        words = [PLACES[(number * 5 + i * i) % 12].title() for i in range(30)]
        passage = " ".join(words)
        start = passage.index(words[number])
        answer = Span(text=words[number], start=start)
        pairs.append(Pair(query="where", passage=passage, answers=(answer,), id=str(number)))
    for name in ("squad", "squad2"):
        data = tokenise(pairs, made.tokenizer, TASKS[name], train=True)
        train, tune = prepare(pairs, made, name).divided(made, seed=0)
        held = [pair for pair in pairs if pair.passage in tune.truth.texts]
        whole = tokenise(held, made.tokenizer, TASKS[name], train=False)
        assert 0 < len(held) < 20 and len(tune) == len(whole) > len(data) - len(train)
        assert not {train.truth.texts[n] for n in train.part} & set(tune.truth.texts)
        assert evaluate_examples(made.net, tune, TASKS[name]) == evaluate_examples(
            made.net, whole, TASKS[name]
        )


def test_squad2_is_trained_and_judged_on_the_same_cased_text(model):
    made, passage = model("roberta", "span"), "The Castle beside a River"
    pairs = [Pair(query="Where is it?", passage=passage, answers=(Span(text="River", start=20),))]
    cased = made.tokenizer.queries(["Where is it?"])[0], made.tokenizer.windows([passage])[0][0].ids
    for train in (True, False):
        data = tokenise(pairs, made.tokenizer, TASKS["squad2"], train=train)
        rows = (side.values.tolist() for side in (data.queries, data.passages))
        assert list(rows) == [ids.tolist() for ids in cased]
    lowered = made.tokenizer.windows([passage.lower()])[0][0].ids
    assert lowered.tolist() != cased[1].tolist()  # or the tokenizer would hide the casing


def test_passages_of_a_query_are_set_aside_once(model):
    texts = ("the king", "a lake", "the moon", "old ship", "a star")
    pairs = [Pair(query=q, passage=p, label=int(p in texts[:2])) for q in PLACES for p in texts]
    made = model("bert", "rank")
    _, tune = prepare(pairs, made, "rank").divided(made, seed=0)
    seen = list(zip(tune.question.tolist(), tune.passage_of.tolist(), strict=True))
    assert len(seen) == len(set(seen)) == 5 and tune.label[:, 0].sum() == 2


def test_no_answer_can_be_right_wherever_a_model_is_judged(model):
    from decoupled.lab.study.sweep import predict

    made = model("bert", "span")
    pairs = [replace(pair, answers=()) for pair in span_pairs(6)]
    data = tokenise(pairs, made.tokenizer, TASKS["squad2"], train=False)

    class Silent(torch.nn.Module):
        """Says at every place that there is no answer."""

        spec = made.net.heads["span"].spec

        def forward(self, x, real):
            logits = torch.zeros(*x.shape[:2], 2)
            logits[:, 0] = 5.0
            return logits

    made.net.heads["span"] = Silent()
    assert evaluate_examples(made.net, data, TASKS["squad2"])["f1"] == 100.0
    assert predict(made, TASKS["squad2"], data).metrics["f1"] == 100.0
    assert evaluate_examples(made.net, data, TASKS["squad"])["f1"] == 0.0


def test_the_null_threshold_is_the_best_one():
    golds = (("a",), (), ("b",), ())
    found = PredictedSpans(
        texts=["a", "c", "x", "d"],
        best=np.array([5.0, 1.0, 4.0, 3.0]),
        null=np.array([1.0, 3.0, 5.0, 0.0]),
    )
    data = stub(golds)
    chosen = best_threshold(found, data)
    best = judged_answers(found, data, chosen).metrics["f1"]
    assert best == max(judged_answers(found, data, t).metrics["f1"] for t in np.arange(-6, 6, 0.25))
    assert best == 75.0
    assert judged_answers(found, data, None).metrics["f1"] == 25.0


def stub(golds) -> Examples:
    from decoupled.model.states import Ragged
    from decoupled.train.data.examples import Truth

    count = len(golds)
    one = Ragged(np.zeros(count, np.int32), np.ones(count, np.int64))
    number = np.arange(count, dtype=np.int32)
    truth = Truth(
        offsets=Ragged(np.zeros((count, 2), np.int32), np.ones(count, np.int64)),
        texts=("",) * count,
        text_of=number,
        golds=golds,
    )
    return Examples(
        queries=one,
        passages=one,
        query_of=number,
        passage_of=number,
        label=np.zeros((count, 2), np.int32),
        score=np.zeros(count, np.float32),
        question=number,
        part=number,
        truth=truth,
    )


def test_ranking_metrics_agree_with_ir_measures():
    draw = np.random.default_rng(0)
    question = np.repeat(np.arange(12), 15).astype(np.int32)
    score = draw.normal(size=len(question))
    grade = (draw.random(len(question)) < 0.2).astype(np.int32) * draw.integers(
        1, 4, len(question)
    ).astype(np.int32)
    got = judged_ranking(score, grade, question).metrics
    try:
        import ir_measures
    except ImportError:
        pytest.skip("ir-measures is not installed")
    judged = [q for q in range(12) if (grade[question == q] > 0).any()]
    rows = [(str(q), f"{i:03d}", i) for i, q in enumerate(question) if q in judged]
    qrels = [ir_measures.Qrel(q, d, int(grade[i])) for q, d, i in rows]
    run = [ir_measures.ScoredDoc(q, d, float(score[i])) for q, d, i in rows]
    want = ir_measures.calc_aggregate([ir_measures.RR @ 10, ir_measures.nDCG @ 10], qrels, run)
    assert got["mrr@10"] == pytest.approx(100 * want[ir_measures.RR @ 10])
    assert got["ndcg@10"] == pytest.approx(100 * want[ir_measures.nDCG @ 10])


def test_ranking_by_hand_and_without_relevant_passages():
    got = judged_ranking(
        np.array([3.0, 2.0, 1.0, 1.0]),
        np.array([0, 1, 0, 1], np.int32),
        np.array([0, 0, 0, 1], np.int32),
    )
    assert got.metrics["mrr@10"] == pytest.approx(75.0) and got.each.tolist() == [0.5, 1.0]
    with pytest.raises(InputError, match="no query has a relevant passage"):
        judged_ranking(np.ones(2), np.zeros(2, np.int32), np.zeros(2, np.int32))


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_scores_that_do_not_tell_passages_apart_earn_nothing_by_their_order(value):
    """A positive stands first in its group, so a stable order would make such a model perfect."""
    grade = np.tile(np.array([1, 0, 0, 0], np.int32), 3)
    question = np.repeat(np.arange(3), 4).astype(np.int32)
    got = judged_ranking(np.full(12, value), grade, question).metrics
    assert got == judged_ranking(np.full(12, value), grade[::-1], question).metrics
    assert got["mrr@10"] == pytest.approx(25.0)
    assert got["ndcg@10"] == pytest.approx(100 / np.log2(5))


def test_a_grade_below_zero_is_not_relevant():
    scores, question = np.array([3.0, 2.0, 1.0]), np.zeros(3, np.int32)
    below = judged_ranking(scores, np.array([-2, 1, 0], np.int32), question).metrics
    assert below == judged_ranking(scores, np.array([0, 1, 0], np.int32), question).metrics


def test_accuracy_and_the_f1_of_two_classes():
    got = class_metrics(np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0], np.int32), 2)
    assert got == {"accuracy": 50.0, "f1": 50.0}


def test_agreement_of_classes_is_the_share_of_equal_labels():
    class Says:
        spec = SimpleNamespace(split=1)

        def __init__(self, text):
            self.left = iter(text.split())

        def classify(self, pairs):
            return [SimpleNamespace(label=next(self.left)) for _ in pairs]

    data = [Case(query="a", passages=("x", "y", "z")), Case(query="b", passages=("x",))]
    joint = Says("yes no yes no")
    expected = [outputs(joint, case, "classes") for case in data]
    found = agreement(Says("yes yes yes no"), data, "classes", expected)
    assert (found.score, found.queries) == (0.75, 2)


def test_int8_states_change_little_and_int4_more(model):
    split = Model.split(model("bert", "rank"), at=2)
    pairs = [
        Pair(query=p.query, passage=p.passage, label=i % 2, id=p.id, group="g")
        for i, p in enumerate(span_pairs(8))
    ]
    data = tokenise(pairs, split.tokenizer, TASKS["rank"], train=False)
    from decoupled.train.evaluate import pair_logits

    exact, eight, four = (
        pair_logits(split.net, data, TASKS["rank"], How(bits=b)) for b in (None, 8, 4)
    )
    assert 0 < np.abs(eight - exact).max() < np.abs(four - exact).max()


def test_rank_groups_hold_a_positive_and_its_own_negatives(model):
    made = model("bert", "rank")
    asked = [
        replace(p, query=f"{p.passage.split()[0]} {p.passage.split()[1]} of")
        for p in span_pairs(10)
    ]
    pairs = with_hard_negatives(asked, 2)
    answer = {p.id: p.answers[0].text for p in asked}
    assert sum(p.label == 0 for p in pairs) > 5
    for pair in pairs:
        if pair.label == 0:
            assert answer[pair.group.split(":")[0]] not in pair.passage.split()
    data = tokenise(pairs, made.tokenizer, TASKS["rank"], train=True)
    assert data.per_group == 4 and data.groups == 10 and data.share == "query"
    label = data.label[:, 0].reshape(-1, 4)
    assert (label[:, 0] == 1).all() and (label[:, 1:] == 0).all()
    assert (data.query_of.reshape(-1, 4) == data.query_of[::4, None]).all()


def test_rank_groups_keep_the_scores_that_were_given(model):
    given = {"the king": 7.5, "a lake": -3.25, "the moon": 2.5, "old ship": -6.5}
    pairs = [Pair(query="king", passage=p, label=score) for p, score in given.items()]
    pairs.append(Pair(query="moon", passage="star and moon", label=4.5))
    data = tokenise(pairs, model("bert", "rank").tokenizer, TASKS["rank"], train=True)
    score, label = data.score.reshape(-1, 4), data.label[:, 0].reshape(-1, 4)
    assert label.tolist() == [[1, 0, 0, 0]] * 3
    for row, positive in zip(score.tolist(), (7.5, 2.5, 4.5), strict=True):
        assert row[0] == positive
        judged = [-6.5, -3.25] if positive != 4.5 else []
        assert sorted(row[1:]) == sorted([*judged, *[-6.5] * (3 - len(judged))])


def test_a_relevant_passage_is_never_drawn_as_a_negative(model):
    tokenizer = model("bert", "rank").tokenizer
    texts = ("the king", "a lake", "the moon")
    pairs = [Pair(query="king", passage=p, label=int(p != "the moon")) for p in texts]
    data = tokenise(pairs, tokenizer, TASKS["rank"], train=True)
    assert data.passage_of.reshape(-1, 4).tolist() == [[0, 2, 2, 2], [1, 2, 2, 2]]
    with pytest.raises(
        InputError, match=r"a passage that is not relevant to it, so there is nothing"
    ):
        tokenise(pairs[:2], tokenizer, TASKS["rank"], train=True)


def test_margins_need_groups(model):
    from decoupled.train.objectives.distill import Distill

    recipe = override(PLAIN, {"weights.margin": 0.5})
    with pytest.raises(
        InputError, match=r"margin=0.5 compares the passages of a query, and the task"
    ):
        Distill(model("bert", "span").net, TASKS["squad"], recipe)


def test_a_question_of_several_passages_has_the_answers_of_all(model):
    king, moon = Span(text="king", start=4), Span(text="moon", start=2)
    asked = [
        Pair(query="who", passage="the king", answers=(king,), id="q"),
        Pair(query="who", passage="a moon", answers=(moon,), id="q"),
        Pair(query="who", passage="old ship", id="q"),
        Pair(query="where", passage="old ship", id="r"),
    ]
    data = tokenise(asked, model("bert", "span").tokenizer, TASKS["squad2"], train=False)
    assert data.truth.golds == (("king", "moon"), ())


def test_bm25_prefers_rare_words_and_short_passages():
    index = Bm25(["the king of the castle", "the moon", "the moon and the king and the sea", "x"])
    assert index.best("moon", 3) == [1, 2]
    assert index.best("castle the", 1) == [0]
    assert index.best("nothing", 2) == []


def test_label_free_pairs_are_judged_by_the_teacher_alone(model):
    made = model("bert", "span")
    data = tokenise(span_pairs(20), made.tokenizer, TASKS["squad"], train=True)
    other = shuffled(data, 30)
    assert (other.label == UNLABELLED).all() and len(other) > 15
    pairs_seen = set(zip(data.query_of.tolist(), data.passage_of.tolist(), strict=True))
    assert not pairs_seen & set(
        zip(other.query_of.tolist(), other.passage_of.tolist(), strict=True)
    )
    assert (shuffled(data, 30, null=True).label == 0).all()
    crop = cropped(data, made.spec.text, 10)
    text = made.spec.text
    for row in range(10):
        query = crop.queries[int(crop.query_of[row])].tolist()
        passage = crop.passages[int(crop.passage_of[row])].tolist()
        body = query[len(text.query_prefix) : len(query) - len(text.query_suffix)]
        assert tuple(query[: len(text.query_prefix)]) == text.query_prefix
        assert any(passage[i : i + len(body)] == body for i in range(len(passage)))
    short = replace(text, query_tokens=len(text.query_prefix) + len(text.query_suffix) + 3)
    few = cropped(data, short, 10)
    assert {len(few.queries[int(n)]) for n in few.query_of} == {short.query_tokens}
    both = combine([data, other, crop])
    assert len(both) == len(data) + len(other) + 10
    last = both.queries[int(both.query_of[-1])]
    assert last.tolist() == crop.queries[int(crop.query_of[-1])].tolist()


def test_a_limit_keeps_the_first_queries_with_all_their_passages():
    pairs = [Pair(query=q, passage=p) for q, p in ("qa", "ra", "qb", "rb", "sa")]
    assert _first_queries(pairs, TASKS["rank"], 1) == [pairs[0], pairs[2]]
    assert _first_queries(pairs, TASKS["squad"], 3) == pairs[:3]


def test_the_task_of_pairs_follows_the_data():
    assert task_for("pairs", span_pairs(3)).head == "span"
    assert task_for("pairs", class_pairs(4)).labels == ("no", "yes")
    graded = [Pair(query="a", passage="b", label=1), Pair(query="a", passage="c", label=0)]
    assert task_for("pairs", graded).head == "rank"
    with pytest.raises(InputError, match=r"task 'sqad' is unknown; choose one of squad, squad2"):
        task_for("sqad", [])


def test_of_several_heads_pairs_are_for_the_one_that_they_fit():
    span, rank = HeadSpec(kind="span"), HeadSpec(kind="rank")
    classes = HeadSpec(kind="classes", labels=("0", "1"))
    graded = [Pair(query="a", passage="b", label=1), Pair(query="a", passage="c", label=0)]
    silent = [Pair(query="a", passage="b")]
    for heads in ([span, rank], [rank, span]):
        assert task_for("pairs", graded, heads).head == "rank"
        assert task_for("pairs", span_pairs(3), heads).head == "span"
        assert task_for("pairs", silent, heads).head == heads[0].kind, "they say nothing"
    assert task_for("pairs", graded, [classes]).head == "classes"
    assert task_for("pairs", graded, [span]).head == "rank", "no questions without answers"


def test_labels_that_are_written_as_decimals(model):
    made = model("bert", "bare")

    def labels(task: str, *given: float) -> list[int]:
        pairs = [Pair(query="a", passage=f"p{n}", label=x) for n, x in enumerate(given)]
        return tokenise(pairs, made.tokenizer, TASKS[task], train=False).label[:, 0].tolist()

    assert labels("mnli", 2.0, 0.0, 1.0) == [2, 0, 1]
    assert labels("rank", 3.0, 2.0, 0.0, 1) == [3, 2, 0, 1]
    assert labels("rank", 3.0, 0.4, -0.4, 2) == [1, 1, 0, 2], "scores"
    for wrong in (1.5, 3.0, float("nan")):
        with pytest.raises(InputError, match=rf"label {wrong}; expected one of contra.*; correct"):
            labels("mnli", wrong)


def test_a_swapped_task_caches_the_first_text(model):
    made = model("bert", "bare")
    pair = Pair(query="the old premise", passage="king", label="neutral", id="1")
    data = tokenise([pair], made.tokenizer, TASKS["mnli"], train=True)
    assert data.passages.lengths[0] > data.queries.lengths[0]
    assert data.label[0, 0] == 2


def test_options_must_be_complete(model):
    made = model("bert", "choice")
    pairs = [Pair(query=str(i), passage="a", label=0, group="q") for i in range(3)]
    with pytest.raises(InputError, match="has 3 options; expected 4 for each"):
        tokenise(pairs, made.tokenizer, TASKS["race"], train=True)


NLI = ("contradiction", "entailment", "neutral")


@pytest.fixture
def turned(model) -> Model:
    """A model whose head has the classes of the task in another order and case."""
    whole = model("bert", "classes")
    head = replace(whole.spec.head("classes"), labels=("Neutral", "Contradiction", "Entailment"))
    return whole.rebuild(replace(whole.spec, heads=(head,)), {"did": "renumber"})


CLASSES = [0] * 7 + [1] * 3 + [2] * 2
LABELS = {
    "name": NLI,
    "head": [name.title() for name in NLI],
    "number": range(3),
    "real": (0.0, 1.0, 2.0),
}


def nli_pairs(kind: str) -> list[Pair]:
    """Pairs labelled with the task's names, the head's or the task's numbers."""
    found = zip(span_pairs(len(CLASSES)), CLASSES, strict=True)
    return [replace(pair, label=LABELS[kind][number]) for pair, number in found]


@pytest.mark.parametrize("kind", LABELS)
def test_every_way_to_train_numbers_classes_as_the_head_does(turned, kind, monkeypatch):
    from decoupled.lab import tune
    from decoupled.train import run

    pairs, want = nli_pairs(kind), [(1, 2, 0)[number] for number in CLASSES]
    found = {"evaluate": prepare(pairs, turned, "mnli", train=False).examples(turned)}
    found["shrink"] = prepare(pairs, turned, "mnli").examples(turned)
    seen: list[run.Data] = []

    def train(model, data, *rest, **more):
        seen.append(data)
        return model, [run.Report(best=1.0)]

    for module in (run, tune):
        monkeypatch.setattr(module, "train_model", train)
    run.distill(turned, data=pairs, task="mnli", recipe="plain")
    found["distill"] = seen[0].train
    for name, data in found.items():
        assert data.label[:, 0].tolist() == want, name
    tune.tune(turned, data=pairs, task="mnli", recipe=PLAIN, trials=1)
    tuned = [*seen[1].train.label[:, 0].tolist(), *seen[1].tune.label[:, 0].tolist()]
    assert sorted(tuned) == sorted(want)


def test_classes_that_the_head_writes_otherwise(turned):
    task, pairs = by_head(TASKS["squad"], span_pairs(2), turned.spec)
    assert task == TASKS["squad"] and pairs == span_pairs(2)
    with pytest.raises(
        InputError, match=r"tells 3 classes apart and the task 'boolq' has 2 \(no, yes"
    ):
        by_head(TASKS["boolq"], class_pairs(2), turned.spec)
    head = turned.spec.heads[0]

    def labelled(*labels: str):
        spec = replace(turned.spec, heads=(replace(head, labels=labels),))
        return by_head(TASKS["mnli"], nli_pairs("name")[6:12:2], spec)

    task, pairs = labelled("LABEL_0", "LABEL_1", "LABEL_2")
    assert [pair.label for pair in pairs] == list(task.labels) == ["LABEL_0", "LABEL_1", "LABEL_2"]
    with pytest.raises(
        InputError, match=r"which is which is unclear; label the pairs with the model"
    ):
        labelled("neutral", "yes", "no")
