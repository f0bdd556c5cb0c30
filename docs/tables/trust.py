"""The tables of what a disk, a kill and an attacker do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results import Table, read

KINDS = {
    "A1": "a filter of 40,000 fields",
    "A2": "an id of 400,000 characters",
    "A3": "20,000 pairs",
    "A4": "300,000 numbers, empty strings, unknown fields, nulls, levels",
    "A5": "connections that stop in their headers, 1,100 at a time",
    "A6": "a document of 15 MB",
    "A7": "unfinished bodies, 80 at a time; headers of 64 MiB, 200,000 headers",
}


def faults() -> Table:
    flips, repairs = read("faults_flips.json"), read("faults_repairs.json")
    index, store, serve = (
        read(f"faults_kills_{name}.json") for name in ("index", "store", "serve")
    )
    space, objects = read("faults_space.json"), read("faults_objects.json")
    rows = [
        (
            f"a byte changed, in each of {flips['files']} files in turn",
            flips["flips"],
            _said(flips["outcomes"]),
        ),
        (
            "one or two bytes changed, then `check --repair`",
            repairs["tried"],
            _said(repairs["outcomes"]),
        ),
        *(
            (f"`kill -9` during {work}", of["kills"], _harm(index))
            for work, of in index["works"].items()
        ),
        (
            f"`kill -9` of a writer: {_said(store['during'])}",
            store["kills"],
            _harm(store),
        ),
        ("`kill -9` of a server that is given passages", serve["kills"], _harm(serve)),
        ("no room to write, at some point of `add`", space["tries"], _said(space["outcomes"])),
        (
            "requests to an object store: slow, refused, or failed after the deed",
            sum(objects["requests"].values()),
            f"{objects['lost']} passages lost",
        ),
    ]
    return ("try", "times", "<what came of it"), rows


def attacked() -> Table:
    of = read("faults_attack.json")
    phases = [("200 clients", of["calm"]), ("the same beside all attacks", of["attacked"])]
    rows = []
    for name, seen in phases:
        statuses = dict(seen["statuses"])
        right = statuses.pop("200") - seen["wrong"]
        anew = statuses.pop("reconnected", 0)
        other = _said(statuses) or "none"
        times = (f"{seen[f'health_{key}_ms']:.0f}" for key in ("p50", "p99", "worst"))
        rows.append((name, f"{right:,}", seen["wrong"], other, anew, *times))
    first = ("", "right answers", "wrong", "<other statuses", "connected anew")
    return (*first, "`/health` p50, ms", "p99, ms", "worst, ms"), rows


def attacks() -> Table:
    told: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for name, count in read("faults_attack.json")["attacked"]["attacks"].items():
        kind, _, rest = name.partition(" ")
        told[kind].append(f"{rest.rpartition(': ')[2]}: {count:,}")
    return ("attack", "<how it was answered"), [
        (what, ", ".join(told[kind])) for kind, what in KINDS.items()
    ]


def _said(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def _harm(of: Mapping[str, Any]) -> str:
    return _said({what: of[what] for what in ("lost", "doubled", "changed")})


TRUST = (faults, attacked, attacks)
