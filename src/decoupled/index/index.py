"""The write path: passages in, encoded records out; the manifest that ties an index to its model.

INDEX/manifest.json       format, fingerprint of the model, codec
INDEX/model/              the model folder that made it
INDEX/codec.safetensors   what the codec was fitted to
INDEX/passages.lance/, INDEX/states/   the store
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoupled.errors import DecoupledError, InputError
from decoupled.index import ingest as building
from decoupled.index.encode import encode_texts
from decoupled.index.ingest import Added, Progress, Sieve, Tally, Workers, part_name
from decoupled.index.manifest import (
    FORMAT,
    MANIFEST,
    MODEL,
    check_model,
    check_own_model,
    check_storable,
    codec_name,
    copy_model,
    describe,
    fingerprint_of,
    is_free,
    load_codec,
    model_sums,
    read_manifest,
    same_codec,
    save_codec,
    source_of,
    write_manifest,
)
from decoupled.index.record import Record
from decoupled.index.store.base import KEEP, Share, Snapshot, Store
from decoupled.index.store.location import Location, location_of, locked
from decoupled.model import folder
from decoupled.model.codec import build_codec, fit_codec, needs_fit
from decoupled.model.spec import ModelSpec
from decoupled.model.tokens import Passage
from decoupled.runtime.open import check_name, open_runtime

if TYPE_CHECKING:
    from datetime import timedelta

    from decoupled.index.store.commit import Staged
    from decoupled.index.store.lance import LanceStore
    from decoupled.model.codec import Codec
    from decoupled.model.model import Model
    from decoupled.runtime.base import Runtime

PART = 512
"""Passages per commit: a kill costs at most this many encodings."""
SAMPLE = 1024
"""Passages that a codec is fitted on, when it needs fitting."""
UPKEEP = 16
"""Commits between two updates of the search indexes while a build runs."""


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
        share: Share | None = None,
    ) -> None:
        self.path = path
        self.location = location_of(path)
        self.manifest = manifest
        self.source = source
        self.spec: ModelSpec = folder.read_spec(source) if isinstance(source, Path) else source.spec
        self._write, self._share = write, share
        self._runtime_name = runtime
        self._runtime: Runtime | None = None
        self._proven = True
        self.codec: Codec | None = load_codec(self.location, self.manifest["codec"], self.spec)
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
        check_name(runtime)
        location = location_of(path)
        _check_free(location)
        source = source_of(folder.starter_model() if model is None else model)
        spec = folder.read_spec(source) if isinstance(source, Path) else source.spec
        check_storable(spec)
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "fingerprint": fingerprint_of(source),
            "codec": codec_name(codec, spec),
            "model": describe(spec),
            "sources": list(sources),
        }

        def make(target: Path) -> None:
            copy_model(source, target)
            manifest["model_crc32"] = model_sums(target)

        with locked(location):
            _check_free(location)  # another process may have been faster
            location.publish(MODEL, make)
            write_manifest(location, manifest)  # last: from here on it is an index
        return cls(Path(path), manifest, source=source, write=True, runtime=runtime)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        model: Model | str | Path | None = None,
        write: bool = False,
        runtime: str = "auto",
        share: Share | None = None,
    ) -> Index:
        """An existing index; another model than its own must have the same fingerprint.

        A `share` is read by one of several engines that divide the passages among them.
        """
        check_name(runtime)
        location = location_of(path)
        manifest = read_manifest(path)
        if model is None:
            source: Model | Path = location.fetch(MODEL)
        else:
            source = source_of(model)
            check_model(location, manifest, source)
        index = cls(Path(path), manifest, source=source, write=write, runtime=runtime, share=share)
        index._proven = model is not None
        return index

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        made = f"{self.manifest['codec']}, {self.manifest['model']}"
        return f"Index({self.location.name!r}, {len(self)} passages, {made})"

    def __len__(self) -> int:
        """Passages, each counted once however many windows it has."""
        return self.store.snapshot.passages if self.store else 0

    @property
    def runtime(self) -> Runtime:
        """The loaded model; opened on first use."""
        if self._runtime is None:
            if not self._proven and isinstance(self.source, Path):
                check_own_model(self.location, self.manifest, self.source)
                self._proven = True
            self._runtime = open_runtime(self.source, self.codec, name=self._runtime_name)
        return self._runtime

    def add(
        self,
        passages: Iterable[Passage],
        *,
        progress: Progress | None = None,
        workers: Workers | None = None,
    ) -> Added:
        """Encode and store passages, in bounded memory, one commit per part.

        A passage whose id and content are already there is passed over, so that running the same build
        again after an interruption goes on where it stopped. An id with other content is replaced.
        `workers` encode and write in other processes (`decoupled.serve.cluster`); what is stored is the same.
        """
        self._writable()
        tally = Tally()
        stream = building.checked(passages)
        if self.store is None:
            stream = self._begin(stream)
        if self.store is not None and workers is not None:
            self._add_with(workers, stream, tally, progress)
        elif self.store is not None:
            self._add_parts(stream, self.store, tally, progress)
        return tally.done()

    def stage(self, passages: Sequence[Passage]) -> Staged:
        """Encode one part and write it without making it visible; it takes no right to write.

        The one process that has it calls `store.commit` with what this returns.
        """
        store, records = self._staging(), self._encode(passages)
        return store.stage(records, part=part_name(records))

    def delete(self, ids: Sequence[str]) -> int:
        """Remove passages; returns how many were there."""
        self._writable()
        return self.store.delete(ids) if self.store else 0

    def compact(self, *, older_than: timedelta = KEEP) -> None:
        """Reclaim the space of deleted and replaced passages, and merge the search indexes."""
        self._writable()
        if self.store:
            self.store.compact(older_than=older_than)

    def reopen(self, *, write: bool = False) -> Index:
        """The index that is at this path now, with the model that is loaded already if it is the same."""
        given = None if isinstance(self.source, Path) else self.source
        name, share = self._runtime_name, self._share
        opened = Index.open(self.path, model=given, write=write, runtime=name, share=share)
        if opened.manifest == self.manifest and same_codec(opened.codec, self.codec):
            opened._runtime = self._runtime
        return opened

    def info(self) -> dict[str, Any]:
        """What `info --json` prints."""
        snapshot = self.store.snapshot if self.store else None
        return {
            "kind": "index",
            "passages": snapshot.passages if snapshot is not None else 0,
            "records": len(snapshot) if snapshot is not None else 0,
            "bytes": self.location.total(),
            "state_bytes_per_token": self.codec.bytes_per_token if self.codec else None,
            "model": self.manifest["model"],
            "codec": self.manifest["codec"],
            "fingerprint": self.manifest["fingerprint"],
            "version": snapshot.version if snapshot is not None else 0,
        }

    def refresh(self) -> Snapshot | None:
        """The newest version; None while nothing was ever added."""
        if self.codec is None:
            self.codec = load_codec(self.location, self.manifest["codec"], self.spec)
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
        """Settle the codec, make the store, and give the passages back."""
        name = self.manifest["codec"]
        first = list(itertools.islice(stream, SAMPLE if needs_fit(name) else 1))
        if not first:
            return iter(())
        with locked(self.location):
            # Another writer may have begun since this one was opened: what it stored needs its codec.
            self.codec = load_codec(self.location, name, self.spec)
            if self.codec is None:
                self.codec = self._fitted(name, first)
                save_codec(self.location, self.codec)
        self._runtime = None  # it must know the codec
        self.store = self._open_store()
        return itertools.chain(first, stream)

    def _fitted(self, name: str, first: Sequence[Passage]) -> Codec:
        """The codec, fitted on these passages where it must be: else no model need be loaded for it."""
        if not needs_fit(name):
            return build_codec(name, width=self.spec.state_width("passage"), tensors={})
        split = self.runtime.tokenizer.windows([p.text for p in first])
        sample = encode_texts(self.runtime, "passage", [w.ids for group in split for w in group])
        return fit_codec(name, sample.states)

    def _add_parts(
        self, stream: Iterator[Passage], store: Store, tally: Tally, progress: Progress | None
    ) -> None:
        """Encode one part while the one before it is being written."""
        with ThreadPoolExecutor(1) as writer:
            sieve = Sieve(store, tally)
            pending: tuple[Future[int], list[Passage]] | None = None
            for number in itertools.count():
                part = list(itertools.islice(stream, PART))
                if part:
                    fresh = sieve.fresh(part)
                    records = self._encode(fresh) if fresh else []
                if pending is not None:
                    tally.replaced += pending[0].result()
                    tally.added += len(pending[1])
                    sieve.landed(pending[1])
                    pending = None
                if progress is not None:
                    progress(tally.done())
                if not part:
                    break
                if fresh:
                    pending = writer.submit(_commit, store, records, number), fresh
        store.optimise()

    def _add_with(
        self, workers: Workers, stream: Iterator[Passage], tally: Tally, progress: Progress | None
    ) -> None:
        """Let workers encode and write the parts, and commit them in their order."""
        store = self._staging()
        sieve = Sieve(store, tally)
        sent: deque[list[Passage]] = deque()

        def parts() -> Iterator[list[Passage]]:
            while part := list(itertools.islice(stream, PART)):
                if fresh := sieve.fresh(part):
                    sent.append(fresh)
                    yield fresh

        waiting = 0
        for staged in workers.stage(parts()):
            tally.replaced += store.commit(staged)
            for _ in staged:
                tally.added += len(sent[0])
                sieve.landed(sent.popleft())
            waiting += len(staged)
            if waiting >= UPKEEP:
                store.optimise()
                waiting = 0
            if progress is not None:
                progress(tally.done())
        store.optimise()

    def _staging(self) -> LanceStore:
        """The store of a build that has begun, where parts can be staged."""
        from decoupled.index.store.lance import LanceStore

        if self.store is None:
            self.refresh()
        if not isinstance(self.store, LanceStore):
            raise DecoupledError(
                f"{self.location.name} is empty; a part can be staged once it has begun"
            )
        return self.store

    def _encode(self, passages: Sequence[Passage]) -> list[Record]:
        assert self.codec is not None
        return building.encode(self.runtime, self.codec, passages)

    def _writable(self) -> None:
        if not self._write:
            raise DecoupledError(
                f"{self.location.name} was opened for reading; open it with write=True"
            )

    def _open_store(self) -> Store | None:
        if self.codec is None:
            return None
        # Here and not above: an engine without an index must start where Lance is not installed.
        from decoupled.index.store.lance import LanceStore

        if LanceStore.exists(self.path):
            return LanceStore.open(self.path, write=self._write, share=self._share)
        if not self._write:
            return None
        return LanceStore.create(
            self.path,
            token_bytes=self.codec.bytes_per_token,
            width=self.spec.vector_width,
        )


def _check_free(location: Location) -> None:
    if location.load(MANIFEST) is not None:
        raise InputError(f"{location.name} already holds an index; open it, or choose another path")
    if not is_free(location):
        raise InputError(f"{location.name} exists and is not an index; choose another path")


def _commit(store: Store, records: list[Record], number: int) -> int:
    replaced = store.append(records, part=part_name(records))
    if number % UPKEEP == UPKEEP - 1:
        store.optimise()
    return replaced
