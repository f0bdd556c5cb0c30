"""The write path: passages in, encoded records out; the manifest that ties an index to its model.

INDEX/manifest.json       format, fingerprint of the model, codec
INDEX/model/              the model folder that made it
INDEX/codec.safetensors   what the codec was fitted to
INDEX/passages.lance/, INDEX/states/   the store
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decoupled import codec as codecs
from decoupled import folder, segment
from decoupled.errors import DecoupledError, IndexMismatch, InputError
from decoupled.manifest import (
    FORMAT,
    MODEL,
    check_storable,
    codec_name,
    copy_model,
    describe,
    fingerprint_of,
    is_free,
    is_index,
    load_codec,
    read_manifest,
    save_codec,
    source_of,
    write_manifest,
)
from decoupled.record import Record
from decoupled.runtime.open import open_runtime
from decoupled.spec import ModelSpec
from decoupled.store.base import KEEP, Snapshot, Store
from decoupled.store.place import place_of
from decoupled.store.table import LanceStore
from decoupled.text import Passage, Window

if TYPE_CHECKING:
    from datetime import timedelta

    from decoupled.codec import Codec
    from decoupled.model import Model
    from decoupled.runtime.base import Runtime

PART = 512
"""Passages per commit: a kill costs at most this many encodings."""
SAMPLE = 1024
"""Passages that a codec is fitted on, when it needs fitting."""
UPKEEP = 16
"""Commits between two updates of the search indexes while a build runs."""


@dataclass(frozen=True, kw_only=True)
class Added:
    """What `add` did."""

    added: int = 0
    unchanged: int = 0
    """Already there with the same content: not encoded again."""
    replaced: int = 0
    """Ids that were there with other content, or came twice; the last one stays."""
    seconds: float = 0.0
    duplicates: tuple[str, ...] = ()
    """The first few ids that came twice close together."""


@dataclass
class Tally:
    """The running count behind `Added`."""

    added: int = 0
    unchanged: int = 0
    replaced: int = 0
    duplicates: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def done(self) -> Added:
        """The count as it stands."""
        return Added(
            added=self.added,
            unchanged=self.unchanged,
            replaced=self.replaced,
            seconds=time.perf_counter() - self.started,
            duplicates=tuple(self.duplicates[:10]),
        )


Progress = Callable[[Added], None]


class Index:
    """Passages encoded by one model, in one folder or under an address such as `s3://bucket/docs.idx`.

    One process writes, any number read.
    """

    def __init__(
        self,
        path: Path,
        manifest: dict[str, Any],
        *,
        source: Model | Path,
        write: bool,
        runtime: str = "auto",
    ) -> None:
        self.path = path
        self.place = place_of(path)
        self.manifest = manifest
        self.source = source
        self.spec: ModelSpec = folder.read_spec(source) if isinstance(source, Path) else source.spec
        self._write = write
        self._runtime_name = runtime
        self._runtime: Runtime | None = None
        self.codec: Codec | None = load_codec(self.place, self.manifest["codec"], self.spec)
        self.store: Store | None = self._open_store()

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: Model | str | Path | None = None,
        *,
        codec: str = "int8",
        runtime: str = "auto",
        sources: Sequence[str] = (),
    ) -> Index:
        """A new, empty index, open for writing. The model, by default the bundled one, is copied into it.

        `sources` is noted in the manifest: what a command line builds the index from.
        """
        place = place_of(path)
        if is_index(path):
            raise InputError(
                f"{place.name} already holds an index; open it, or choose another path"
            )
        if not is_free(place):
            raise InputError(f"{place.name} exists and is not an index; choose another path")
        source = source_of(folder.starter_model() if model is None else model)
        spec = folder.read_spec(source) if isinstance(source, Path) else source.spec
        check_storable(spec)
        manifest = {
            "format": FORMAT,
            "fingerprint": fingerprint_of(source),
            "codec": codec_name(codec, spec),
            "model": describe(spec),
            "sources": list(sources),
        }
        place.publish(MODEL, lambda target: copy_model(source, target))
        write_manifest(place, manifest)  # last: from here on it is an index
        return cls(Path(path), manifest, source=source, write=True, runtime=runtime)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        model: Model | str | Path | None = None,
        write: bool = False,
        runtime: str = "auto",
    ) -> Index:
        """An existing index; another model than its own must have the same fingerprint."""
        place = place_of(path)
        manifest = read_manifest(path)
        if model is None:
            source: Model | Path = place.fetch(MODEL)
        else:
            source = source_of(model)
            found = fingerprint_of(source)
            if found != manifest["fingerprint"]:
                spec = folder.read_spec(source) if isinstance(source, Path) else source.spec
                raise IndexMismatch(
                    f"{place.name} was made by a model with fingerprint {manifest['fingerprint']} "
                    f"({manifest['model']}), not by {found} ({describe(spec)}); "
                    "open it with its own model, or index again"
                )
        return cls(Path(path), manifest, source=source, write=write, runtime=runtime)

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Passages, each counted once however many windows it has."""
        return self.store.snapshot.passages if self.store else 0

    @property
    def runtime(self) -> Runtime:
        """The loaded model; opened on first use."""
        if self._runtime is None:
            self._runtime = open_runtime(self.source, self.codec, name=self._runtime_name)
        return self._runtime

    def add(self, passages: Iterable[Passage], *, progress: Progress | None = None) -> Added:
        """Encode and store passages, in bounded memory, one commit per part.

        A passage whose id and content are already there is passed over, so that running the same build
        again after an interruption goes on where it stopped. An id with other content is replaced.
        """
        self._writable()
        tally = Tally()
        stream = iter(passages)
        if self.store is None:
            stream = self._begin(stream)
        if self.store is not None:
            self._add_parts(stream, self.store, tally, progress)
        return tally.done()

    def delete(self, ids: Sequence[str]) -> int:
        """Remove passages; returns how many were there."""
        self._writable()
        return self.store.delete(ids) if self.store else 0

    def compact(self, *, older_than: timedelta = KEEP) -> None:
        """Reclaim the space of deleted and replaced passages, and merge the search indexes."""
        self._writable()
        if self.store:
            self.store.compact(older_than=older_than)

    def info(self) -> dict[str, Any]:
        """What `info --json` prints."""
        snapshot = self.store.snapshot if self.store else None
        return {
            "kind": "index",
            "passages": snapshot.passages if snapshot else 0,
            "records": len(snapshot) if snapshot else 0,
            "bytes": self.place.total(),
            "state_bytes_per_token": self.codec.bytes_per_token if self.codec else None,
            "model": self.manifest["model"],
            "codec": self.manifest["codec"],
            "fingerprint": self.manifest["fingerprint"],
            "version": snapshot.version if snapshot else 0,
        }

    def refresh(self) -> Snapshot | None:
        """The newest version; None while nothing was ever added."""
        if self.codec is None:
            self.codec = load_codec(self.place, self.manifest["codec"], self.spec)
            self._runtime = None if self.codec else self._runtime
        if self.store is None:
            self.store = self._open_store()
        return self.store.refresh() if self.store else None

    def close(self) -> None:
        """Let another writer in."""
        if self.store:
            self.store.close()

    # Building -------------------------------------------------------------------------------------

    def _begin(self, stream: Iterator[Passage]) -> Iterator[Passage]:
        """Fit the codec on the first passages, make the store, and give the passages back."""
        first = list(
            itertools.islice(stream, SAMPLE if codecs.needs_fit(self.manifest["codec"]) else 1)
        )
        if not first:
            return iter(())
        windows = [w for group in self._windows(first) for w in group]
        sample = segment.encode(self.runtime, "passage", [w.ids for w in windows])
        fitted = codecs.fit(self.manifest["codec"], sample.states)
        save_codec(self.place, fitted)
        self.codec = fitted
        self._runtime = None  # it must know the codec
        self.store = self._open_store()
        return itertools.chain(first, stream)

    def _add_parts(
        self, stream: Iterator[Passage], store: Store, tally: Tally, progress: Progress | None
    ) -> None:
        """Encode one part while the one before it is being written."""
        with ThreadPoolExecutor(1) as writer:
            pending: tuple[Future[int], int] | None = None
            for number in itertools.count():
                part = list(itertools.islice(stream, PART))
                if part:
                    fresh = self._fresh(part, store, tally)
                    records = self._encode(fresh) if fresh else []
                if pending is not None:
                    tally.replaced += pending[0].result()
                    tally.added += pending[1]
                    pending = None
                if progress is not None:
                    progress(tally.done())
                if not part:
                    break
                if fresh:
                    pending = writer.submit(_commit, store, records, number), len(fresh)
        store.optimise()

    def _fresh(self, part: list[Passage], store: Store, tally: Tally) -> list[Passage]:
        """The passages of a part that are new or changed, each id once."""
        unique: dict[str, Passage] = {}
        for passage in part:
            if passage.id in unique:
                tally.duplicates.append(passage.id)
                tally.replaced += 1
            unique[passage.id] = passage
        known = store.snapshot.digests(list(unique))
        fresh = [p for p, old in zip(unique.values(), known, strict=True) if digest(p) != old]
        tally.unchanged += len(unique) - len(fresh)
        return fresh

    def _windows(self, passages: Sequence[Passage]) -> list[list[Window]]:
        return self.runtime.tokenizer.windows([p.text for p in passages])

    def _encode(self, passages: Sequence[Passage]) -> list[Record]:
        """Records of all windows of the passages, states encoded by the codec."""
        assert self.codec is not None
        split = self._windows(passages)
        windows = [w for group in split for w in group]
        encoding = segment.encode(self.runtime, "passage", [w.ids for w in windows])
        encoded = self.codec.encode(encoding.states)
        records: list[Record] = []
        for passage, group in zip(passages, split, strict=True):
            content = digest(passage)
            for number, window in enumerate(group):
                row = len(records)
                records.append(
                    Record(
                        id=passage.id,
                        window=number,
                        start=window.start,
                        text=window.text,
                        title=passage.title,
                        meta=passage.meta,
                        offsets=window.offsets,
                        states=np.asarray(encoded[row], np.uint8),
                        vector=encoding.vectors[row],
                        digest=content,
                    )
                )
        return records

    def _writable(self) -> None:
        if not self._write:
            raise DecoupledError(
                f"{self.place.name} was opened for reading; open it with write=True"
            )

    def _open_store(self) -> Store | None:
        if self.codec is None:
            return None
        if LanceStore.exists(self.path):
            return LanceStore.open(self.path, write=self._write)
        if not self._write:
            return None
        return LanceStore.create(
            self.path,
            token_bytes=self.codec.bytes_per_token,
            width=self.spec.vector_width,
        )


def _commit(store: Store, records: list[Record], number: int) -> int:
    name = hashlib.sha256("\0".join(f"{r.id}\0{r.digest}" for r in records).encode()).hexdigest()
    replaced = store.append(records, part=name[:32])
    if number % UPKEEP == UPKEEP - 1:
        store.optimise()
    return replaced


def digest(passage: Passage) -> int:
    """64 bits of everything about a passage that is stored."""
    content = json.dumps(
        [passage.text, passage.title, dict(passage.meta)], sort_keys=True, default=str
    )
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest(), "little")
