"""From logits to results: passages in order, answers that compare across passages, labels.

Span logits hold, for each window, its no-answer row and then a start and an end logit per token. The query
has no rows there and special tokens are left out, so neither can be part of an answer.
"""

import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from decoupled.index.record import Excerpt
from decoupled.model.language import is_language, query_note
from decoupled.model.parts.head import HeadKind
from decoupled.model.scoring import Floats, Scoring, sigmoid
from decoupled.model.spec import ModelSpec
from decoupled.model.states import Ragged
from decoupled.model.tokens import Tokenizer
from decoupled.search.request import Request, SearchRun, attempt, timed
from decoupled.search.results import Answer, Answers, Evidence, Hit, Hits, Label, Labels
from decoupled.search.spans import lacks_number, widened

Outcome = Hits | Answers | Labels | Exception
"""The result of a request, or the error for which it has none."""

MAX_TOKENS = 30
"""Longest answer, in tokens (DeFormer)."""
NAMED = 20
"""Ids that a note names."""
FAINT = 0.01
"""Share of the best answer's score below which another answer is not shown."""
UNFIT = float(np.log(0.1))
"""Added to the logit of a span without a number where the question asks for one."""

_WORDS = """
a an the and or but nor if then than as at by for from in into of off on onto out over per to up
upon via with within without about after before between during since through under until is are
was were be been being am do does did has have had having must shall should would could this that
these those it its their his her our your my he she they we you i them him us me which what whose
whom when where how why there here also so such very just
"""
FILLERS = frozenset(_WORDS.split())
"""Function words: a span of nothing else answers no question. `may` and `will` are names too."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def outcome(spec: ModelSpec, search: SearchRun) -> Outcome:
    """The result of a search; the texts that it needs are read now."""
    makers: dict[str, Callable[[ModelSpec, SearchRun], Hits | Answers | Labels]]
    makers = {"span": _answers, "classes": _labels}
    if search.error is None:
        with attempt(search):
            with timed("cross_ms", search):
                result = makers.get(search.request.head, _hits)(spec, search)
            return replace(result, timing=search.timing())
    assert search.error is not None
    return search.error


def noted(tokenizer: Tokenizer, search: SearchRun, result: Outcome) -> Outcome:
    """The result with a note if the model cannot read the query, and of ids that the index does not have.

    A query in no language has no answer.
    """
    request, ids = search.request, search.unknown
    note = query_note(tokenizer, request.query)
    if isinstance(result, Exception) or not (note or ids):
        return result
    silent = note and request.threshold == "auto" and not is_language(request.query)
    if isinstance(result, Answers) and silent:
        result = replace(result, items=(), rejected=(*result.items, *result.rejected))
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    unknown = f"ids that the index does not have: {', '.join(ids[:NAMED])}{more}" if ids else None
    return replace(result, notes=tuple(filter(None, (note, unknown))))


def _hits(spec: ModelSpec, search: SearchRun) -> Hits:
    """The `k` best passages by their best windows; scores are probabilities, or logits with `raw`."""
    request = search.request
    values = _rank_logits(search, request.head)
    scores = values if request.raw else rank_chances(spec, request, values)
    hits = tuple(
        Hit(
            id=excerpt.id,
            score=float(scores[window]),
            text=excerpt.text,
            title=excerpt.title,
            meta=excerpt.meta,
            offset=excerpt.start,
            first_stage=search.first_stage(window),
        )
        for window, excerpt in _best_windows(search, values, request.k)
    )
    return Hits(query=request.query, items=hits, tokens=search.tokens)


def _labels(spec: ModelSpec, search: SearchRun) -> Labels:
    """The label of each passage by its most certain window, in the order in which they were given."""
    request, names = search.request, spec.head("classes").labels
    logits = search.logits["classes"].values.astype(np.float64)
    labels = []
    for window, _ in sorted(_best_windows(search, logits.max(-1), None), key=lambda best: best[0]):
        values = logits[window]
        scores = values if request.raw else softmax(values)
        best = int(values.argmax())
        shares = {name: float(score) for name, score in zip(names, scores, strict=True)}
        labels.append(Label(label=names[best], score=float(scores[best]), scores=shares))
    return Labels(query=request.query, items=tuple(labels), tokens=search.tokens)


def _answers(spec: ModelSpec, search: SearchRun) -> Answers:
    """The `k` best answers, none overlapping a better one of its passage; and the weight of all spans."""
    request, logits, count = search.request, search.logits, len(search.windows)
    if not count:
        return Answers(query=request.query, items=(), tokens=search.tokens)
    k = count if request.k is None else request.k
    before = search.windows.leads(len(spec.text.passage_prefix))
    after = len(spec.text.passage_suffix)
    bests, totals, nulls = window_scores(logits["span"], before=before, after=after)
    shift = _shift(spec, search, nulls)
    # Log of the summed weight of all spans of all windows: the denominator of every score.
    weight = float(np.logaddexp.reduce(totals + shift))
    order = np.argsort(-(bests + shift), kind="stable")[: pool(k)].tolist()
    answers = []
    for window, (key, excerpt) in zip(order, search.describe(order), strict=True):
        ends = {"before": int(before[window]), "after": after}
        for score, first, last in best_spans(logits["span"][window][1:], **ends, k=k):
            answer = _answer(excerpt, first, last, float(score + shift[window]))
            if lacks_number(request.query, answer.text):
                answer = replace(answer, score=answer.score + UNFIT)
            if answer.text:
                answers.append((key, answer))
    kept = _without_overlaps(sorted(answers, key=lambda keyed: -keyed[1].score))[: pool(k)]
    whole = Answers(query=request.query, items=tuple(kept), tokens=search.tokens, weight=weight)
    return whole if request.part else likely_answers(spec, request, whole)


def _shift(spec: ModelSpec, search: SearchRun, nulls: Floats) -> Floats:
    """Numbers to add to span logits, one for each window, that make spans of different passages comparable.

    The odds against no answer where the head learnt it, with a part of the passage's rank logit where the
    model learnt that; else the logarithm of its relevance (measured: examples/starter/train.py).
    """
    ranks = _rank_logits(search) if "rank" in search.logits else None
    if spec.head("span").null:
        return -nulls if ranks is None else (spec.scoring or Scoring()).answer_rank * ranks - nulls
    return np.zeros(len(nulls)) if ranks is None else np.log(sigmoid(ranks))


def _rank_logits(search: SearchRun, head: HeadKind = "rank") -> Floats:
    """The logits of passages, with what the first stage adds to those that it found."""
    values, added = search.logits[head].values[:, 0].astype(np.float64), search.windows.prior
    values[: len(added)] += added
    return values


def rank_chances(spec: ModelSpec, request: Request, values: Floats) -> Floats:
    """Probabilities of rank logits, to which the first stage has added its part where there was one."""
    scoring = spec.scoring or Scoring()
    return (scoring.search if request.retrieve and request.blend else scoring.rank)(values)


def likely_answers(spec: ModelSpec, request: Request, answers: Answers) -> Answers:
    """Different answers, none faint beside the best: logarithms of weights become probabilities.

    Those below the threshold are no answers but `rejected` ones.
    """
    scoring, k = spec.scoring or Scoring(), len(answers) if request.k is None else request.k
    # Shares of all spans add up where answers are equal; probabilities would not.
    best = sorted(answers, key=lambda answer: -answer.score)[: pool(k)]
    merged = merge([replace(a, score=float(np.exp(a.score - answers.weight))) for a in best], k)
    shares = np.array([answer.score for answer in merged], np.float64)
    learnt = scoring.answer if request.retrieve else scoring.answer_given
    if learnt is not None:
        chances = learnt(shares, answers.weight)
    else:
        # The no-answer logit was subtracted from all spans, so no answer itself weighs exp(0).
        some = np.logaddexp(answers.weight, 0.0) if spec.head("span").null else answers.weight
        chances = shares * np.exp(answers.weight - some)
    faint = FAINT * chances.max(initial=0.0)
    scored = [a.scaled(p) for a, p in zip(merged, chances.tolist(), strict=True) if p >= faint]
    least = _threshold(spec, request)
    likely = tuple(answer for answer in scored if answer.score >= least)
    return replace(answers, items=likely, rejected=tuple(a for a in scored if a.score < least))


def _threshold(spec: ModelSpec, request: Request) -> float:
    """The score below which an answer of this request is rejected."""
    if request.threshold != "auto":
        return request.threshold
    passages_given, scoring = not request.retrieve, spec.scoring or Scoring()
    learnt = scoring.answer_threshold(passages_given=passages_given)
    if learnt is not None:
        return learnt
    # Shares that were never calibrated say little about many passages: then every question is answered. In
    # passages that a caller names, a head that learnt to find no answer gives none where that is likelier.
    return scoring.no_answer if passages_given and spec.head("span").null else 0.0


def _answer(excerpt: Excerpt, first: int, last: int, score: float) -> Answer:
    start, end = int(excerpt.offsets[first, 0]), int(excerpt.offsets[last, 1])
    if start < end:
        start, end = widened(excerpt.text, start, end)
    return Answer(
        text=excerpt.text[start:end],
        score=score,
        start=start,
        end=end,
        passage_id=excerpt.id,
        passage=excerpt.text,
        title=excerpt.title,
        meta=excerpt.meta,
        offset=excerpt.start,
    )


def _best_windows(
    search: SearchRun, scores: Floats, k: int | None
) -> Iterator[tuple[int, Excerpt]]:
    """The best window of each passage, best passages first, at most `k`; ties keep their order."""
    order = np.argsort(-scores, kind="stable").tolist()
    most = max(len(order), 1) if k is None else k
    seen: set[object] = set()
    for start in range(0, len(order), most):
        # Texts are read in portions: two windows of one passage leave room for another passage.
        which = order[start : start + most]
        for window, (key, excerpt) in zip(which, search.describe(which), strict=True):
            if key not in seen:
                seen.add(key)
                yield window, excerpt
                if len(seen) == most:
                    return


def _without_overlaps(ranked: Sequence[tuple[object, Answer]]) -> list[Answer]:
    """Answers, best first, without those that overlap a better one in the same document, known by its key."""
    kept: list[tuple[object, Answer]] = []
    for key, answer in ranked:
        start, end = answer.offset + answer.start, answer.offset + answer.end
        if not any(
            same == key and start < other.offset + other.end and other.offset + other.start < end
            for same, other in kept
        ):
            kept.append((key, answer))
    return [answer for _, answer in kept]


def softmax(x: Floats) -> Floats:
    """Softmax of all values."""
    return np.exp(x - np.logaddexp.reduce(x))


def window_scores(
    logits: Ragged, *, before: int | npt.NDArray[np.int64], after: int, max_tokens: int = MAX_TOKENS
) -> tuple[Floats, Floats, Floats]:
    """Per window: its best span, the log of the summed weight of all its spans, and no-answer.

    `exp(score - log sum of exp(total))` is the probability of a span among all spans of all windows, so
    scores compare across passages. `before` and `after` count what is not of the text at the ends.
    """
    padded, _ = logits.pad()
    token = np.arange(padded.shape[1] - 1)
    usable = (token >= np.reshape(before, (-1, 1))) & (
        token < (logits.lengths - 1 - after)[:, None]
    )
    start = np.where(usable, padded[:, 1:, 0], -np.inf).astype(np.float64)
    end = np.where(usable, padded[:, 1:, 1], -np.inf).astype(np.float64)
    # The score of no answer is the sum of its start and end logit, as in BERT for SQuAD 2.0.
    null = padded[:, 0].astype(np.float64).sum(-1)
    # Taken off before exp and added to the log, against overflow; finite without any token.
    top = np.maximum(start.max(1, initial=-np.inf) + end.max(1, initial=-np.inf), -1e30)
    best, weight = np.full(len(logits), -np.inf), np.zeros(len(logits))
    # Spans of one length at a time: memory for [P,T] scores and not for [P,T,T].
    for length in range(min(max_tokens, start.shape[1])):
        score = start[:, : start.shape[1] - length] + end[:, length:]
        best = np.maximum(best, score.max(1, initial=-np.inf))
        weight += np.exp(score - top[:, None]).sum(1)
    with np.errstate(divide="ignore"):
        return best, top + np.log(weight), null


def best_spans(
    logits_T2: npt.NDArray[np.generic],
    *,
    before: int,
    after: int,
    k: int = 1,
    max_tokens: int = MAX_TOKENS,
) -> list[tuple[float, int, int]]:
    """(score, first, last) of the `k` best spans of one window that do not overlap, best first.

    The logits come without the no-answer row; a score is the sum of a start and an end logit.
    """
    start, end = logits_T2[before : len(logits_T2) - after].astype(np.float64).T
    if not len(start):
        return []
    reach = min(max_tokens, len(start))
    padded = np.concatenate([end, np.full(reach - 1, -np.inf)])
    # [T,R]: the score of the span that begins at token t and has r + 1 tokens.
    score_TR = start[:, None] + np.lib.stride_tricks.sliding_window_view(padded, reach)
    spans: list[tuple[float, int, int]] = []
    while len(spans) < k and score_TR.max() > -np.inf:
        first, length = divmod(int(score_TR.argmax()), reach)
        last = first + length
        spans.append((float(score_TR[first, length]), first + before, last + before))
        # Strike out every span that shares a token with this one.
        score_TR[first : last + 1] = -np.inf
        for earlier in range(max(0, first - reach + 1), first):
            score_TR[earlier, first - earlier :] = -np.inf
    return spans


# Equal answers ------------------------------------------------------------------------------------


def normalise_answer(text: str) -> str:
    """Lower case, without punctuation, articles and surplus blanks (SQuAD's script)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def pool(k: int) -> int:
    """Number of spans that are looked at for `k` merged answers, since some are equal or fillers."""
    return 4 * k + 4


def is_filler(text: str) -> bool:
    """Whether a text is only function words and punctuation; `WHO` and `A` in capitals are names."""
    words = re.findall(r"\w+", text)
    return all(word.lower() in FILLERS and not word.isupper() for word in words)


def merge(answers: Iterable[Answer], k: int) -> list[Answer]:
    """The `k` heaviest different answers: the best span of each, its evidence, and their summed weight."""
    groups: dict[str, list[Answer]] = {}
    for answer in sorted(answers, key=lambda answer: -answer.score):
        if not is_filler(answer.text):
            groups.setdefault(normalise_answer(answer.text) or answer.text, []).append(answer)
    return sorted(map(_merged, groups.values()), key=lambda answer: -answer.score)[:k]


def _merged(equal: Sequence[Answer]) -> Answer:
    evidence = tuple(
        Evidence(**{field.name: getattr(answer, field.name) for field in fields(Evidence)})
        for answer in equal
    )
    return replace(equal[0], score=min(1.0, sum(e.score for e in evidence)), evidence=evidence)
