"""The tables of other people's stacks: databases, pipelines, tasks and environments."""

from __future__ import annotations

from results import Table, read

BUILDS = {
    "first": "first",
    "unchanged": "nothing changed",
    "changed": "other texts, other metadata and lost rows, a hundred each",
}


def database() -> Table:
    of = read("database.json")
    rows = []
    for name, about in BUILDS.items():
        build = of["builds"][name]
        counts = (build["added"], build["tokens"], build["removed"], build["passages"])
        rows.append((about, *(f"{count:,}" for count in counts)))
    header = f"build from {of['rows']:,} rows of PostgreSQL"
    return (header, "rows encoded", "tokens encoded", "rows removed", "passages after"), rows


def mteb_task() -> Table:
    of = read("mteb_med.json")
    scores = of["scores"]
    names = ("ndcg_at_10", "map_at_100", "mrr_at_10", "recall_at_100")
    shown = ("nDCG@10", "MAP@100", "MRR@10", "recall@100")
    row = (f"`{of['data']}`, by MTEB {of['mteb']}", *(f"{scores[n]:.3f}" for n in names))
    return (f"bundled model, {of['candidates']} candidates", *shown), [row]


BESIDE = (database, mteb_task)
