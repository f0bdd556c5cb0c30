"""What a report is made of: the files of sweeps, layer studies, races, adapted and certified models."""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoupled.errors import InputError

Json = dict[str, Any]

KINDS = {
    "sweep": ("split", "task", "data", "model", "metric", "score", "agreement", "tokens", "flops"),
    "layers": (
        *("task", "model", "layers", "pairs", "passages", "variance"),
        *("crossing_query", "crossing_passage", "distances"),
    ),
    "bench": (),
    "adapt": ("model", "teachers", "queries", "held_out", "before", "after", "split_ms"),
    "certificate": ("model", "teacher", "queries", "tau", "ndcg", "joint_ms", "split_ms"),
}
"""The kinds of files that can be drawn, and the fields that their figures are drawn from."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Everything that was read: what figures are drawn from, by kind."""

    sweep: Sequence[Sequence[Json]] = ()
    """The lines of each sweep, in order of the splits."""
    layers: Sequence[Json] = ()
    bench: Sequence[Json] = ()
    adapt: Sequence[Json] = ()
    """What `adapt` says of a model."""
    certificate: Sequence[Json] = ()
    """What `certify` says of a model."""
    skipped: tuple[str, ...] = ()
    """Names of files that hold none of these."""


def read_sources(paths: Iterable[Path]) -> Sources:
    """Read files, and folders of files; one that holds nothing of use is named, none at all is an error."""
    read: dict[str, list[Any]] = {}
    skipped: list[str] = []
    for path in _files(paths):
        documents = _documents(path)
        kind = documents[0].get("kind") if documents else None
        if kind not in KINDS or (kind == "bench" and not documents[0].get("rows")):
            skipped.append(path.name)  # a race that was cut off has no rows
            continue
        if lacking := [n for one in documents for n in KINDS[kind] if n not in one]:
            raise InputError(
                f"{path} says that it is of `{kind}` and lacks {lacking[0]!r}; make it again, or leave it out"
            )
        lines = tuple(sorted(documents, key=lambda line: line.get("split", 0)))
        read.setdefault(kind, []).append(lines if kind == "sweep" else documents[0])
    if not read:
        named = ", ".join(skipped) or "no file"
        raise InputError(
            f"nothing to draw in {named}; give what `decoupled lab sweep`, `layers`, `bench`, "
            "`decoupled adapt` or `certify` wrote"
        )
    return Sources(**read, skipped=tuple(skipped))


def _files(paths: Iterable[Path]) -> list[Path]:
    files = []
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist; give a file or folder of results")
        inside = path.iterdir() if path.is_dir() else [path]
        files += sorted(p for p in inside if path == p or p.suffix in (".json", ".jsonl"))
    return files


def _documents(path: Path) -> list[Json]:
    """The JSON objects of a file: one, or one a line."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return []
    documents = []
    try:
        documents = [json.loads(text)]
    except ValueError:
        for line in text.splitlines():
            with suppress(ValueError):
                documents.append(json.loads(line))
    return documents if all(isinstance(one, dict) for one in documents) else []
