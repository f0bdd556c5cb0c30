"""What a report is made of: sweeps, layer studies, training results, costs, benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decoupled.errors import InputError

Json = dict[str, Any]

DOCUMENTS = {"layers": "layers", "cost": "costs", "bench": "benches", "smaller": "smaller"}
DOCUMENTS |= {"calibration": "calibrations", "adapt": "adapted"}
"""Files that are one document: their kind, and where it goes."""
NEEDED = {
    "sweep": ("split", "task", "data", "model", "metric", "score", "agreement", "tokens", "flops"),
    "layers": (
        *("task", "model", "layers", "pairs", "passages", "variance"),
        *("crossing_query", "crossing_passage", "distances"),
    ),
    "cost": ("storage", "demand", "prices", "command"),
    "smaller": ("dataset", "metric", "models", "command"),
    "calibration": ("name", "title", "curves"),
    "adapt": ("model", "teachers", "queries", "held_out", "before", "after", "split_ms"),
}
"""What figures are drawn from, by the kind of the file."""
_METRICS = ("accuracy", "f1", "mrr@10")
"""Accuracy first: pair tasks with two classes also carry an F1."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One judged model."""

    dataset: str
    split: int
    variant: str
    """What sets it apart from others of its split, as its point is called."""
    curve: str | None
    """The curve that it is a point of: `joint`, `distilled`, `longer`, `untrained`, `projection`, or none."""
    metric: str
    value: float
    trained: bool = True
    projection: int | None = None
    bits: int | None = None
    seed: int = 0
    runs: int = 1
    """Seeds that the value is the mean of."""
    pairs: int | None = None
    """Pairs that it was judged by."""
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Everything that was read."""

    scores: tuple[Score, ...] = ()
    sweeps: tuple[tuple[Json, ...], ...] = ()
    """The lines of each sweep, in order of the splits."""
    layers: tuple[Json, ...] = ()
    costs: tuple[Json, ...] = ()
    benches: tuple[Json, ...] = ()
    smaller: tuple[Json, ...] = ()
    """Scores, sizes and times of smaller models, a document for each dataset."""
    calibrations: tuple[Json, ...] = ()
    """Reliability of scores: curves of bins."""
    adapted: tuple[Json, ...] = ()
    """What `adapt` says of a model."""
    skipped: tuple[str, ...] = ()
    """Files that hold none of these."""


def read_sources(places: Iterable[Path]) -> Sources:
    """Read files, and folders of files; one that holds nothing of use is named, none at all is an error."""
    kinds = ("scores", "sweeps", *DOCUMENTS.values())
    found: dict[str, list[Any]] = {kind: [] for kind in kinds}
    skipped = []
    for path in _files(places):
        understood = _understood(path)
        if not understood:
            skipped.append(path.name)
        for kind, value in understood:
            found[kind].append(value)
    if not any(found.values()):
        named = ", ".join(skipped) or "no file"
        raise InputError(
            f"nothing to draw in {named}; give what `decoupled lab sweep`, `layers`, `cost`, `bench` or "
            "`adapt` wrote"
        )
    found["scores"] = _merged(found["scores"])
    return Sources(**{n: tuple(v) for n, v in found.items()}, skipped=tuple(skipped))


def _files(places: Iterable[Path]) -> list[Path]:
    found = []
    for place in places:
        if not place.exists():
            raise InputError(f"{place} does not exist; give a file or folder of results")
        inside = place.iterdir() if place.is_dir() else [place]
        found += sorted(p for p in inside if place == p or p.suffix in (".json", ".jsonl"))
    return found


def _understood(path: Path) -> list[tuple[str, Any]]:
    """What a file holds, by its content; a run that trained a joint model also carries its layers."""
    documents = _documents(path)
    first = documents[0] if documents and isinstance(documents[0], dict) else {}
    _check(path, documents, first.get("kind"))
    if first.get("kind") == "sweep":
        return [("sweeps", tuple(sorted(documents, key=lambda line: line["split"])))]
    if first.get("kind") == "shrink":
        return []  # other budgets than the sweeps'; they are drawn with their times, as `smaller`
    if first.get("kind") == "bench" and not first.get("rows"):
        return []  # a race that was cut off
    if first.get("kind") in DOCUMENTS:
        return [(DOCUMENTS[first["kind"]], first)]
    runs = first.get("runs") if isinstance(first.get("runs"), list) else documents
    command = first.get("command", "")
    found: list[tuple[str, Any]] = []
    for run in runs or ():
        scores = scores_of(run, command)
        found += [("scores", score) for score in scores]
        if scores and isinstance(run.get("layers"), dict):
            found.append(("layers", run["layers"]))
    return found


def _check(path: Path, documents: Sequence[Json], kind: str | None) -> None:
    """Raise where a file says what it is and lacks what figures are drawn from."""
    for document in documents if kind in NEEDED else ():
        lacking = [name for name in NEEDED[str(kind)] if name not in document]
        if lacking:
            raise InputError(
                f"{path} says that it is of `{kind}` and lacks {lacking[0]!r}; make it again, or leave it out"
            )


def _documents(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return []
    with suppress(ValueError):
        return [json.loads(text)]
    found = []
    for line in text.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


# Training results ---------------------------------------------------------------------------------


OPTIONS = {"race": 4}
"""Pairs that make one question."""
BITS = {"fp": None, "int8": 8, "int4": 4}
"""Bits of the states that a model was judged with, by the name of the entry where it does not say them."""


def scores_of(result: Any, command: str = "") -> list[Score]:
    """The scores of one training run, an entry each; a run that names no variant is not drawn."""
    if not isinstance(result, Mapping) or not isinstance(result.get("test"), Mapping):
        return []
    run = result.get("run") or {}
    if "variant" not in run:
        return []
    found = []
    for code, metrics in result["test"].items():
        if not isinstance(metrics, Mapping) or not ("bits" in metrics or code in BITS):
            continue
        metric = next((m for m in _METRICS if isinstance(metrics.get(m), (int, float))), None)
        if metric is not None:
            found.append(
                Score(
                    dataset=run["dataset"],
                    split=metrics.get("split", run.get("split", 0)),
                    variant=run["variant"],
                    curve=run.get("curve"),
                    metric=metric,
                    value=metrics[metric],
                    trained=run.get("train", True),
                    projection=run.get("projection"),
                    bits=metrics.get("bits", BITS.get(code)),
                    seed=run.get("seed", 0),
                    pairs=_judges(result),
                    command=result.get("command") or command,
                )
            )
    return found


def _judges(result: Mapping[str, Any]) -> int | None:
    """What a score is the mean over: pairs, or the questions whose options they are."""
    pairs = (result.get("pairs") or {}).get("test")
    dataset = result["run"]["dataset"].partition("-")[0]
    return pairs // OPTIONS.get(dataset, 1) if pairs else None


def _merged(scores: Sequence[Score]) -> list[Score]:
    """Seeds of one variant as their mean; a later file replaces what an earlier one says of a seed."""
    groups: dict[tuple[object, ...], dict[int, Score]] = {}
    for score in scores:
        key = (score.dataset, score.split, score.variant, score.projection, score.bits)
        groups.setdefault(key, {})[score.seed] = score
    found = []
    for seeds in groups.values():
        mean = sum(s.value for s in seeds.values()) / len(seeds)
        found.append(replace(list(seeds.values())[-1], value=mean, runs=len(seeds)))
    return found
