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


COLLECTIONS = {
    "test": {"cranfield": "Cranfield", "nfcorpus": "NFCorpus", "lisa": "LISA"},
}


def adapting() -> Table:
    """nDCG@10 of a search of the starter, and of one that hears other candidates."""
    rows: list[tuple[object, ...]] = []
    for part, names in COLLECTIONS.items():
        found = {title: read(f"adapt_{name}.json")["fields"][name] for name, title in names.items()}
        for title, one in found.items():
            gain = one["after"] - one["before"]
            both = f"{one['before']:.2f}", f"{one['after']:.2f}"
            rows.append((title, part, one["judged"], *both, f"{gain:+.2f}"))
        mean = statistics.mean(one["after"] - one["before"] for one in found.values())
        rows.append((f"mean of {part}", None, None, None, None, f"{mean:+.2f}"))
    return ("collection", "", "queries", "before", "after", "gained"), rows


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


def stopped() -> Table:
    """A run of `adapt` on two cores that was killed half-way, and the same command again."""
    told = read("adapt_stop.json")
    one = told["fields"]["lisa"]
    taus = (f"{one['again'][when]['tau']:.3f}" for when in ("before", "after"))
    row = (f"{one['passages']:,}", told["minutes"], one["first"]["steps"], one["steps"], *taus)
    header = ("passages", "minutes", "killed at step", "steps in all", "tau before", "after")
    return header, [row]


PRETRAINING = (pretraining_field, adapting, agreeing, stopped)
