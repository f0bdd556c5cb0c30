"""The tables of learning from texts without labels."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from results import Table, read, runs

OBJECTIVES = ("mlm", "nsp", "sop", "electra", "structbert", "wklm")
SEEDS = range(3)


def pretraining_field() -> Table:
    """Ranking after each objective on the texts of the field, against none."""
    of = runs("train_pretrain.json")
    plain = [of[f"acl-none-s{seed}"]["fp"] for seed in SEEDS]
    rows = [("none", None, None, *_scores(plain))]
    for name in OBJECTIVES:
        learnt = [of[f"acl-{name}-s{seed}"] for seed in SEEDS]
        ranked = [of[f"acl-{name}-rank-s{seed}"]["fp"] for seed in SEEDS]
        before, after = (
            statistics.mean(one[when]["perplexity"] for one in learnt)
            for when in ("before", "after")
        )
        rows.append((f"`{name}`", f"{before:,.0f}", f"{after:.1f}", *_scores(ranked)))
    return ("objective", "perplexity before", "after", "MRR@10", "nDCG@10"), rows


def _scores(found: Sequence[dict[str, float]]) -> tuple[str, str]:
    mrr, ndcg = ([one[metric] for one in found] for metric in ("mrr@10", "ndcg@10"))
    return spread(mrr), spread(ndcg)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def agreeing() -> Table:
    """How far a split model says what its joint teacher says, before and after it was adapted."""
    found = read("adapt_squad.json")["fields"]["squad"]
    rows = []
    for what, name in (("queries made of paragraphs", ""), ("questions of SQuAD", "judged_")):
        for when in ("before", "after"):
            one = found[f"{name}agreement_{when}"]
            shares = (f"{100 * one[metric]:.1f} %" for metric in ("top-1", "ndcg@10"))
            rows.append((what, when, *shares, f"{one['tau']:.3f}"))
    return ("set aside", "adapting", "same first", "nDCG@10", "Kendall's tau"), rows


def kept() -> Table:
    """nDCG@10 of a teacher from judgments and of its students, of the same candidates of a search."""
    rows: list[tuple[object, ...]] = []
    for name, title in (("judged", "every layer"), ("judged_keep", "above the split alone")):
        one = read(f"adapt_{name}.json")["fields"]["nfcorpus"]
        for place, how in ((0, "rank head alone"), (1, "as a search blends it")):
            before, after, teacher = (one[who][place] for who in ("before", "after", "teacher"))
            scores = (f"{score:.2f}" for score in (before, after, teacher))
            rows.append((title, how, *scores, f"{100 * after / teacher:.1f} %"))
    return ("trained", "scored by", "student before", "after", "teacher", "kept"), rows


def from_scratch() -> Table:
    """A small encoder after minutes of each objective, fine-tuned on two tasks."""
    of = runs("train_scratch.json")
    rows = []
    for name, title in (("none", "none"), ("mlm", "`mlm`"), ("electra", "`electra`")):
        steps = of[f"scratch-{name}-s0"]["steps"] if name != "none" else None
        read_, said = (of[f"scratch-{name}-{task}-s0"]["fp"] for task in ("squad", "mnli"))
        rows.append((title, steps, f"{read_['f1']:.1f}", f"{said['accuracy']:.1f}"))
    return ("objective", "steps", "SQuAD F1", "MNLI accuracy"), rows


def stopped() -> Table:
    """A run of `adapt` on two cores that was killed half-way, and the same command again."""
    told = read("adapt_stop.json")
    one = told["fields"]["lisa"]
    row = (f"{one['passages']:,}", told["minutes"], one["first"]["steps"], one["steps"])
    said = (one["again"][when] for when in ("before", "after"))
    first, tau = zip(*((f"{100 * x['top-1']:.0f} %", f"{x['tau']:.3f}") for x in said), strict=True)
    header = ("passages", "minutes", "killed at step", "steps in all", "same first before", "after")
    return (*header, "Kendall's tau before", "after"), [(*row, *first, *tau)]


PRETRAINING = (pretraining_field, from_scratch, agreeing, kept, stopped)
