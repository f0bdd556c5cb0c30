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


def pipelines() -> Table:
    of = read("pipelines.json")
    names = ("nDCG@10", "RR@10", "P@10", "AP")
    rows = []
    for system in of["systems"]:
        scores = [f"{system[name]:.3f}" for name in names]
        better, worse = (system[f"nDCG@10 {sign}"] for sign in "+-")
        turns = "" if better is None else f"{better:.0f} / {worse:.0f}"
        p = system["nDCG@10 p-value"]
        rows.append((system["name"], *scores, turns, "" if p is None else f"{p:.3f}"))
    header = f"{of['data']}, {of['queries']} queries, {of['depth']} documents each"
    return (header, *names, "better / worse than BM25", "p"), rows


def environments() -> Table:
    rows = []
    alone = read("environments.json")["environments"]["alone"]["bytes"]
    for name, of in read("environments.json")["environments"].items():
        versions, mb = of["versions"], of["bytes"] / 1e6
        beside = f"`{name}` {versions[name]}" if name in versions else "alone"
        torch = versions.get("torch", "").partition("+")[0]
        more = "" if name == "alone" else f"{mb - alone / 1e6:,.0f}"
        shown = (versions["numpy"], versions["pyarrow"], versions["pylance"], torch)
        rows.append((beside, *shown, f"{mb:,.0f}", more, of["import_cpu_ms"]))
    header = ("beside", "numpy", "pyarrow", "Lance", "torch", "MB", "of them beside ours")
    return (*header, "`import decoupled`, CPU ms"), rows


BESIDE = (database, mteb_task, pipelines, environments)
