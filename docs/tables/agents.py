"""The tables of agents and of pruning."""

from __future__ import annotations

from results import Table, read

SETS = {
    "squad_dev": "SQuAD 1.1 dev, never trained on",
    "nq": "nq, trained on",
    "policyqa": "policyqa, trained on",
    "subjqa": "subjqa (reviews), never trained on",
}
RULES = ("keep", "span", "bm25", "first")


def prune() -> Table:
    of = read("prune.json")["sets"]
    rows = []
    for name, about in SETS.items():
        kept = [f"{100 * of[name]['answers_kept'][rule]['60% removed']:.1f}" for rule in RULES]
        auto = next(t for t in of[name]["thresholds"] if t["threshold"] == 0.1)
        at = f"{100 * auto['removed']:.0f} % / {100 * auto['answers_kept']:.1f} %"
        rows.append((about, *kept, at, f"{100 * auto['removed_of_other_passages']:.0f} %"))
    header = ("answers kept, %, with 60 % of the tokens removed", "`prune`", "best spans", "BM25")
    return (*header, "first sentences", "`auto`: removed / kept", "of other passages"), rows


def context() -> Table:
    of = read("prune.json")["context"]
    rows = [
        (f"{when}", of[f"tokens_{word}"], f"{100 * of[f'with_an_answer_{word}']:.1f} %")
        for word, when in (("before", "whole passages"), ("after", '`prune="auto"`'))
    ]
    return (
        f"five passages for a prompt, {of['questions']} questions",
        "tokens",
        "with an answer",
    ), rows


def agents() -> Table:
    of = read("agents.json")
    rows = []
    for name, about in (("stdio", "stdio"), ("http", "streamable HTTP")):
        own = of[name]
        cold = own.get("cold", {}).get("in_step_s")
        warm = own["warm"]
        first = f"{100 * own['right_first']:.0f} %"
        times = (own["p50_ms"], own["p95_ms"], own["ask_p50_ms"], own["ask_p95_ms"])
        rows.append(
            (about, cold, warm["ready_s"], warm["first_answer_s"], *times, first, own["memory_mb"])
        )
    header = (
        f"{of['passages']:,} passages, load {of['load_average']:.0f}",
        "cold, all indexed, s",
        "ready, s",
    )
    header = (*header, "warm, first answer, s", "search p50, ms", "p95", "ask p50", "p95")
    return (*header, "right first", "MB"), rows


AGENTS = (prune, context, agents)
