"""Learn on development data what the scores of answers mean, and when to give none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from decoupled.measure.metrics import best_over
from decoupled.measure.pairs import Pair
from decoupled.methods.scores.calibration import calibration_error, reliability
from decoupled.methods.scores.logistic import fit_logistic
from decoupled.model.scoring import AnswerPlatt, Floats, Scoring
from decoupled.model.spec import ModelSpec
from decoupled.search.answers import outcome
from decoupled.search.engine import Engine
from decoupled.search.request import Request, SearchRun
from decoupled.search.results import Answers

RANKS = (0.0, 0.25, 0.5, 1.0, 2.0)
"""Weights of the rank logit that are tried."""
KEPT = 0.95
"""Share of the right answers that are still given where unlikely ones are not."""
TOLERANCE = 0.005
"""Weights whose F1 is within this of the best count as equally good; their mean is taken."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadQuestion:
    """A question as it was read, and its gold answers."""

    search: SearchRun
    golds: tuple[str, ...]

    @property
    def retrieved(self) -> bool:
        """Whether it was read in passages that a search retrieved; otherwise in its own passage."""
        return self.search.request.retrieve


def read_questions(
    engine: Engine,
    pairs: Sequence[Pair],
    absent: Sequence[Pair],
    count: int,
    step: Callable[[int], None],
) -> list[ReadQuestion]:
    """Questions as they are read: with their own passage, and with retrieved passages.

    A question of `pairs` that its passage does not answer is only read with that passage. Questions of
    `absent`, whose passages are not in the corpus, are only read with what is retrieved instead.
    """
    questions = []
    for pair, missing in [*((pair, False) for pair in pairs), *((pair, True) for pair in absent)]:
        golds = () if missing else tuple(answer.text for answer in pair.answers)
        own = Request(query=pair.query, head="span", k=3, texts=(pair.passage,))
        retrieved = replace(own, texts=(), retrieve=True, candidates=count)
        requests = [retrieved] if missing else [own, retrieved] if golds else [own]
        for search in engine.score(requests):
            if search.error is not None:
                raise search.error
            questions.append(ReadQuestion(search=search, golds=golds))
        step(2)
    return questions


def choose_answers(
    spec: ModelSpec,
    questions: Sequence[ReadQuestion],
    scoring: Scoring,
    ranks: Sequence[float] = RANKS,
) -> tuple[Scoring, dict[str, object]]:
    """Choose the weight of the rank logit of `ranks`, the calibration of answers, and when to give none."""

    def answered(scoring: Scoring, chosen: Sequence[ReadQuestion]) -> list[Answers]:
        learnt = replace(spec, scoring=scoring)
        results = [outcome(learnt, one.search) for one in chosen]
        if wrong := [error for error in results if isinstance(error, Exception)]:
            raise wrong[0]
        return [answers for answers in results if isinstance(answers, Answers)]

    def f1(results: Sequence[Answers], chosen: Sequence[ReadQuestion]) -> Floats:
        texts = [answers[0].text if len(answers) else "" for answers in results]
        both = zip(chosen, texts, strict=True)
        return np.array([best_over(one.golds, text)[1] for one, text in both])

    # Calibration is fitted on uncalibrated shares, so older fits are taken out first.
    plain = replace(scoring, answer=None, answer_given=None)
    retrieved = [one for one in questions if one.retrieved]
    with_passage = [one for one in questions if not one.retrieved]
    answerable = [one for one in retrieved if one.golds]
    means = {0.0: 0.0}
    if answerable and any(head.kind == "rank" for head in spec.heads):
        means = {
            r: float(f1(answered(replace(plain, answer_rank=r), answerable), answerable).mean())
            for r in ranks
        }
    good = [r for r, mean in means.items() if mean >= max(means.values()) - TOLERANCE]
    plain = replace(plain, answer_rank=float(np.mean(good)))
    figures: dict[str, object] = {"open_f1": {str(r): round(v, 4) for r, v in means.items()}}
    of_given, figures["error_given"] = _calibration(
        spec, with_passage, answered(plain, with_passage)
    )
    of_found, figures["error"] = _calibration(spec, retrieved, answered(plain, retrieved))
    fitted = replace(plain, answer=of_found, answer_given=of_given)
    least_given = _no_answer(with_passage, answered(fitted, with_passage), f1)
    both = zip(retrieved, answered(fitted, retrieved), strict=True)
    right = [a[0].score for one, a in both if len(a) and _right(one, a[0].text)]
    # Where the corpus answers every question, nothing is learnt, and every question is answered.
    learnt = right and len(answerable) < len(retrieved)
    least = float(np.quantile(right, 1 - KEPT)) if learnt else Scoring().no_answer
    return replace(fitted, no_answer_given=least_given, no_answer=least), figures


def _calibration(
    spec: ModelSpec, questions: Sequence[ReadQuestion], results: Sequence[Answers]
) -> tuple[AnswerPlatt | None, float | None]:
    """The calibration of the best answers of these questions, and the calibration error that is left."""
    rows = [
        (
            np.log(max(_share(spec, answers, answers[0].score), 1e-30)),
            answers.weight,
            _right(one, answers[0].text),
        )
        for one, answers in zip(questions, results, strict=True)
        if len(answers)
    ]
    if not rows:
        return None, None
    table = np.array(rows, np.float64)
    right = table[:, 2] > 0
    share, weight, offset = fit_logistic(table[:, :2], right).tolist()
    fitted = AnswerPlatt(share=share, weight=weight, offset=offset)
    scores = [fitted(np.exp(row[:1]), float(row[1]))[0] for row in table]
    return fitted, round(calibration_error(reliability(scores, table[:, 2])), 4)


def _share(spec: ModelSpec, answers: Answers, score: float) -> float:
    """An answer's share of the weight of all spans, from the score of a model that was not calibrated."""
    if not spec.head("span").null:
        return score
    # The score includes the weight of no answer, which is e^0 = 1; this divides it out again.
    return score * float(np.exp(np.logaddexp(answers.weight, 0.0) - answers.weight))


def _right(one: ReadQuestion, text: str) -> bool:
    """Whether F1 is above one half: a span with a word too many still answers."""
    return bool(one.golds) and best_over(one.golds, text)[1] > 0.5


def _no_answer(
    questions: Sequence[ReadQuestion],
    results: Sequence[Answers],
    f1: Callable[[Sequence[Answers], Sequence[ReadQuestion]], Floats],
) -> float | None:
    """The least score at which answering pays if half of the questions have none; None if all have one."""
    none = np.array([not one.golds for one in questions])
    if none.all() or not none.any():
        return None
    scores = np.array([answers[0].score if len(answers) else 0.0 for answers in results])
    gains = f1(results, questions)
    tried = np.unique(scores)

    def value(least: float) -> float:
        kept = np.where(scores >= least, np.where(none, 0.0, gains), none)
        # Both kinds count alike, however many of each the data happen to hold.
        return float(kept[none].mean() + kept[~none].mean())

    return float(max(tried, key=value))
