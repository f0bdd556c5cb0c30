"""The tables of documents: questions over manuals, titles, and builds that are interrupted."""

from __future__ import annotations

from typing import Any

from results import Table, read

STAGES = {
    "search": "`search`",
    "lexical": "BM25",
    "dense": "dense vectors",
    "hybrid": "both (first stage)",
}


def manuals(name: str = "manuals.json") -> Table:
    of = read(name)
    rows = []
    for stage, words in STAGES.items():
        found, other = of["passages"][stage], of["compared"].get(stage)
        row = (words, *(found[f"in_{depth}"] for depth in (1, 3, 10)), f"{found['mrr@10']:.3f}")
        rows.append((*row, *(_paired(other) if other else [""] * 4)))
    of_all = f"of {of['questions']}, in 1"
    first = ("ranked by", of_all, "in 3", "in 10", "MRR@10")
    return (*first, "search higher", "lower", "p", "gain in MRR"), rows


def manuals_answers() -> Table:
    of = read("manuals.json")
    none = of["unanswerable"]
    return ("", "questions", "count"), [
        ("right first", of["questions"], of["answers"]["in_1"]),
        ("right in three", of["questions"], of["answers"]["in_3"]),
        ("neither manual answers it: nothing is said", none["questions"], none["withheld"]),
    ]


def manuals_apache() -> Table:
    return manuals("manuals_apache.json")


def manuals_apache_answers() -> Table:
    of = read("manuals_apache.json")
    none, auto, all_of = of["unanswerable"], of["answers"]["auto"], of["questions"]
    return ("", "questions", "count"), [
        ("right first", all_of, of["answers"]["in_1"]),
        ("right in three", all_of, of["answers"]["in_3"]),
        ("with `auto`: a right answer", all_of, auto["right"]),
        ("with `auto`: a wrong one", all_of, auto["wrong"]),
        ("with `auto`: none", all_of, auto["silent"]),
        (
            "the manual does not answer it: nothing is said",
            none["questions"],
            none["withheld_auto"],
        ),
    ]


def titles_rows() -> Table:
    of, ways = read("titles_rows.json")["rows"], ("titled", "in the text", "none")
    rows = [(words, *(f"{of[way][name]:.3f}" for way in ways)) for name, words in STAGES.items()]
    return ("nDCG@10", "title", "in the text", "no title"), rows


def resume() -> Table:
    rows = [
        (
            f"{stop['share']:.0%}",
            f"{stop['stored']:,}",
            f"{stop['lost_seconds']:.1f} s",
            f"{stop['by_content_seconds']:.1f} s",
        )
        for stop in read("resume.json")["stops"]
    ]
    return ("Ctrl-C at", "passages stored", "work lost", "first new passages after"), rows


def _paired(other: dict[str, Any]) -> tuple[Any, ...]:
    """Which of two ways ranks higher how often, the sign test of that, and the gain."""
    interval = " to ".join(f"{edge:+.3f}" for edge in other["mrr_gain_95"])
    return other["better"], other["worse"], f"{other['sign_test_p']:.4f}", interval


DOCUMENTS = (
    manuals,
    manuals_answers,
    manuals_apache,
    manuals_apache_answers,
    titles_rows,
    resume,
)
