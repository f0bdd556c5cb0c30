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


def adapting() -> Table:
    """nDCG@10 of a search before and after the starter was adapted to a collection."""
    rows = []
    for name, title in (
        ("cranfield", "Cranfield"),
        ("nfcorpus", "NFCorpus"),
        ("lisa", "LISA"),
    ):
        found = read(f"adapt_{name}.json")["fields"][name]
        rows.append((title, found["judged"], f"{found['before']:.2f}", f"{found['after']:.2f}"))
    return ("collection", "queries", "before", "after"), rows


PRETRAINING = (pretraining_field, adapting)
