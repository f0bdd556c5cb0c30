"""`build_index`: a corpus becomes an index, in this process, in several, or on a cluster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from decoupled.errors import InputError, OptionError
from decoupled.index.documents import Problem, read_passages
from decoupled.index.index import Index
from decoupled.index.ingest import Added, Progress
from decoupled.index.manifest import codec_name, is_index, model_folder, read_manifest
from decoupled.model.folder import read_spec
from decoupled.runtime.open import check_name
from decoupled.serve.cluster.workers import open_workers


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a build did, and what the index holds now."""

    index: str
    added: Added
    skipped: int
    """Broken lines of the corpus."""
    passages: int

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "added": self.added.added,
            "unchanged": self.added.unchanged,
            "replaced": self.added.replaced,
            "skipped": self.skipped,
            "seconds": round(self.added.seconds, 3),
            "passages": self.passages,
            "duplicates": list(self.added.duplicates),
        }


def build_index(  # noqa: PLR0913 (the options of a build)
    corpus: Sequence[str],
    output: str | Path,
    *,
    model: str | Path | None = None,
    codec: str | None = None,
    append: bool = False,
    cluster: str | None = None,
    workers: int | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    runtime: str = "auto",
    report: Callable[[Problem], None] | None = None,
    on_bytes: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> Built:
    """Encode the passages of files and folders once and store them; an interrupted build goes on.

    The codec is `int8` where an index is begun. One that was built from another corpus is only added to with
    `append`. `workers` processes encode, or with `cluster` so many actors of the Ray cluster at that address.
    `report` is told of each line that is skipped, `on_bytes` how many more bytes of the corpus were read,
    `progress` what `Index.add` tells.
    """
    check_name(runtime)
    skipped: list[Problem] = []

    def skip(problem: Problem) -> None:
        skipped.append(problem)
        if report is not None:
            report(problem)

    exists = is_index(output)
    sources = list(corpus)
    if exists:
        _check_same(output, sources, codec, append)
    stream = read_passages(*corpus, on_error=on_error, report=skip, on_bytes=on_bytes)
    # Read now, so that a corpus of the wrong form fails before a model is loaded or anything written.
    first = list(itertools.islice(stream, 1))
    if not exists and not first:
        raise InputError(
            f"no passages in {' '.join(corpus)}, so there is nothing to index; check the path"
        )
    if exists:
        index = Index.open(output, model=model, write=True, runtime=runtime)
    else:
        index = Index.create(output, model, codec=codec or "int8", runtime=runtime, sources=sources)
    name = index.location.name
    with index, open_workers(name, cluster=cluster, count=workers, runtime=runtime) as helpers:
        added = index.add(itertools.chain(first, stream), progress=progress, workers=helpers)
        return Built(index=name, added=added, skipped=len(skipped), passages=len(index))


def _check_same(output: str | Path, corpus: list[str], codec: str | None, append: bool) -> None:
    """Refuse to go on with a build that was started from something else."""
    manifest = read_manifest(output)
    sources = manifest.get("sources") or corpus
    if sources != corpus and not append:
        raise OptionError(
            f"{output} was built from {' '.join(sources)}, not from {' '.join(corpus)}; "
            "add to it with --append, or choose another path"
        )
    if codec and codec_name(codec, read_spec(model_folder(output))) != manifest["codec"]:
        raise OptionError(
            f"{output} stores states as {manifest['codec']}, not {codec}; leave out --codec, or choose "
            "another path"
        )
