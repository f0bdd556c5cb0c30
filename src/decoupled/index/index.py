"""The write path: passages in, encoded records out; the manifest that ties an index to its model.

INDEX/manifest.json       format, fingerprint of the model, codec
INDEX/model/              the model folder that made it
INDEX/codec.safetensors   what the codec was fitted to
INDEX/passages.lance/, INDEX/states/   the store
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from decoupled.errors import DecoupledError, InputError
from decoupled.index import ingest
from decoupled.index.check import Checked, check
from decoupled.index.encode import encode_passages, encode_windows, windows_of
from decoupled.index.ingest import Added, Compacted, Ingest, Progress, Workers
from decoupled.index.manifest import (
    CODEC,
    MODEL,
    Manifest,
    Source,
    check_free,
    check_model,
    check_own_model,
    check_storable,
    initial_codec,
    is_index,
    load_codec,
    new_manifest,
    read_manifest,
    same_codec,
    save_codec,
    source_of,
    spec_of,
    tokenizer_of,
    write_index,
)
from decoupled.index.origins import Origins
from decoupled.index.record import Record, part_name
from decoupled.index.store.base import KEEP, Share, Snapshot, Staged, Store
from decoupled.index.store.location import location_of, locked
from decoupled.model import annex, folder
from decoupled.model.codec import fit_codec, needs_fit
from decoupled.model.jsonable import JsonObject
from decoupled.model.parts.exits import stopping
from decoupled.model.parts.head import HeadKind
from decoupled.model.parts.late import reading
from decoupled.model.progress import Progress as Count
from decoupled.model.tokens import Passage, Tokenizer
from decoupled.runtime.open import check_name, open_runtime

if TYPE_CHECKING:
    from datetime import timedelta

    from decoupled.model.codec import Codec
    from decoupled.model.model import Model
    from decoupled.runtime.base import Runtime


class Index:
    """Passages encoded by one model, in one folder or under an address such as `s3://bucket/docs.idx`.

    One process writes, any number read.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        *,
        source: Source,
        write: bool,
        runtime: str = "auto",
        share: Share | None = None,
    ) -> None:
        self.path = path
        self.location = location_of(path)
        self.manifest = manifest
        self.source = source
        self.spec = spec_of(source)
        self._write, self._share = write, share
        self._runtime_name = runtime
        self._runtime: Runtime | None = None
        self._proven = True
        fitted = load_codec(self.location, manifest.codec, self.spec)
        self._begun = fitted is not None
        self.codec: Codec = fitted or initial_codec(manifest.codec, self.spec)
        self._empty: Store | None = None
        self.store: Store = self._open_store()

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: Model | str | Path | None = None,
        *,
        codec: str | None = None,
        keep_tokens: float = 1.0,
        runtime: str = "auto",
        sources: Sequence[str] = (),
    ) -> Index:
        """A new, empty index, open for writing. The model, by default the bundled one, is copied into it.

        The codec is the model's own by default: `int8`, or `int4` where it was trained with that.
        `keep_tokens` is the share of each passage's tokens that are stored, those that no other can stand
        for: enough to rank by, in as much less room and time, but answers cannot be read from them.
        `sources` is noted in the manifest: what a command line builds the index from.
        """
        check_name(runtime)
        check_free(location_of(path))
        source = source_of(folder.starter_model() if model is None else model)
        spec = spec_of(source)
        check_storable(spec)
        if keep_tokens != 1:
            annex.load("keep_tokens.pruner").check_keep(spec, keep_tokens)
        manifest = new_manifest(source, codec or spec.codec, sources, keep_tokens)
        manifest = write_index(location_of(path), source, manifest)
        return cls(Path(path), manifest, source=source, write=True, runtime=runtime)

    @classmethod
    def open_or_create(
        cls, path: str | Path, model: Model | str | Path | None = None, *, runtime: str = "auto"
    ) -> Index:
        """The index at this path, open for writing; a new one where there is none.

        One that is there keeps the model that made it; another `model` is an error that names both.
        """
        if is_index(path):
            return cls.open(path, model=model, write=True, runtime=runtime)
        return cls.create(path, model, runtime=runtime)

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
        location, manifest = location_of(path), read_manifest(path)
        if model is None:
            source: Source = location.fetch(MODEL)
        else:
            source = source_of(model)
            check_model(location, manifest, source)
        index = cls(Path(path), manifest, source=source, write=write, runtime=runtime, share=share)
        # A given model was compared above; the index's own is compared when it is first loaded.
        index._proven = model is not None
        return index

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @cached_property
    def origins(self) -> Origins:
        """The files that its documents were read from."""
        return Origins.load(self.location)

    def __repr__(self) -> str:
        summary = f"{self.manifest.codec}, {self.manifest.model}"
        return f"Index({self.location.name!r}, {len(self)} passages, {summary})"

    def __len__(self) -> int:
        """Passages, each counted once however many windows it has."""
        return self.store.snapshot.passages

    @property
    def titles(self) -> bool:
        """Whether passages are encoded with their titles; in indexes of the first versions they are not."""
        return self.manifest.titles

    @property
    def keep_tokens(self) -> float:
        """The share of each passage's tokens that are stored; below 1 they are for ranking alone."""
        return self.manifest.keep_tokens

    def check_head(self, head: HeadKind) -> None:
        """Raise `InputError` where the stored records lack tokens that a head needs."""
        if head == "span" and self.keep_tokens < 1:
            raise InputError(
                f"{self.location.name} keeps {self.keep_tokens:g} of the tokens, to rank passages; to read "
                "answers in them, index without --keep-tokens"
            )

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
        `workers` encode and write in other processes (`index/workers.py`); what is stored is the same.
        """
        self._writable()
        stream = ingest.with_language_check(ingest.checked(passages), self._tokenizer)
        if not self._has_store:
            stream = self._begin(stream)
        run = Ingest(self.store, progress)
        if self._has_store and workers is not None:
            run.run_with(workers, stream)
        elif self._has_store:
            run.run(stream, self._encode)
        return run.done()

    def stage(self, passages: Sequence[Passage]) -> Staged:
        """Encode one part and write it without making it visible, which needs no lock.

        The process that holds the lock passes the result to `store.commit`.
        """
        if not self._has_store:
            self.refresh()
        if not self._has_store:
            raise DecoupledError(
                f"{self.location.name} is empty; a part can be staged once it has begun"
            )
        records = self._encode(passages)
        return self.store.stage(records, part=part_name(records))

    def delete(self, ids: Sequence[str]) -> int:
        """Remove passages; returns how many were there."""
        self._writable()
        return self.store.delete(ids)

    def compact(self, *, older_than: timedelta = KEEP) -> Compacted:
        """Free the space of deleted and replaced passages, and merge the search indexes.

        Versions that were superseded less than `older_than` ago stay for readers that still use them; with
        `timedelta(0)` no one may be reading or writing.
        """
        self._writable()
        before = self.location.total()
        self.store.compact(older_than=older_than)
        after, waiting = self.location.total(), self.store.superseded()
        return Compacted(index=self.location.name, before=before, after=after, waiting=waiting)

    def check(self, *, progress: Count | None = None) -> Checked:
        """Compare every byte of the index with its checksum; `decoupled.check` also repairs."""
        return check(self.path, progress=progress)

    def reopen(self, *, write: bool = False) -> Index:
        """The index that is at this path now, with the model that is loaded already if it is the same."""
        model = None if isinstance(self.source, Path) else self.source
        name, share = self._runtime_name, self._share
        opened = Index.open(self.path, model=model, write=write, runtime=name, share=share)
        # Loading a model takes long, so it is handed on where model and codec are the same.
        if opened.manifest == self.manifest and same_codec(opened.codec, self.codec):
            opened._runtime = self._runtime
        return opened

    def info(self) -> JsonObject:
        """Size, model and version of the index, as `info --json` prints them."""
        snapshot = self.store.snapshot
        return {
            "kind": "index",
            "passages": snapshot.passages,
            "records": len(snapshot),
            "bytes": self.location.total(),
            "state_bytes_per_token": self.codec.bytes_per_token if self._begun else None,
            "model": self.manifest.model,
            "codec": self.manifest.codec,
            "keep_tokens": self.keep_tokens,
            "reads": reading(self.spec.late),
            "exits": stopping(self.spec.exits),
            "fingerprint": self.manifest.fingerprint,
            "version": snapshot.version if self._has_store else 0,
        }

    def refresh(self) -> Snapshot:
        """Move to the newest version and return it; it is empty until something was added."""
        if not self._begun:
            self._settle(load_codec(self.location, self.manifest.codec, self.spec))
        if not self._has_store:
            self.store = self._open_store()
        return self.store.refresh()

    def close(self) -> None:
        """Release the lock, so that another process can write."""
        self.store.close()

    # Building -------------------------------------------------------------------------------------

    def _begin(self, stream: Iterator[Passage]) -> Iterator[Passage]:
        """Fit and save the codec, create the store, and return all passages of the stream."""
        name = self.manifest.codec
        first = list(itertools.islice(stream, ingest.SAMPLE if needs_fit(name) else 1))
        if not first:
            return iter(())
        with locked(self.location):
            # Another writer may have begun meanwhile, and what it stored needs its codec.
            fitted = load_codec(self.location, name, self.spec)
            if fitted is None:
                fitted = self._fit(first) if needs_fit(name) else self.codec
                save_codec(self.location, fitted)
        self._settle(fitted)
        self.store = self._open_store()
        return itertools.chain(first, stream)

    def _fit(self, first: Sequence[Passage]) -> Codec:
        split = windows_of(self.runtime, first, titles=self.titles)
        # Small batches: the sample itself is the most that a build ever holds.
        sample = encode_windows(self.runtime, split, vectors=False, budget=1 << 14)
        return fit_codec(self.manifest.codec, sample.states)

    def _settle(self, fitted: Codec | None) -> None:
        """Take over the codec that the index was begun with, if it was begun."""
        self._begun = fitted is not None
        if fitted is not None and not same_codec(fitted, self.codec):
            # A runtime is opened with its codec, so the loaded one cannot stay.
            self.codec, self._runtime = fitted, None

    def _tokenizer(self) -> Tokenizer:
        return tokenizer_of(self.source) if self._runtime is None else self._runtime.tokenizer

    def _encode(self, passages: Sequence[Passage]) -> list[Record]:
        return encode_passages(
            self.runtime, self.codec, passages, titles=self.titles, keep=self.keep_tokens
        )

    def _writable(self) -> None:
        if not self._write:
            raise DecoupledError(
                f"{self.location.name} was opened for reading; open it with write=True"
            )

    def _stores(self) -> type[Store]:
        """The class that stores records; another kind of store would be chosen here."""
        # Here and not above: an engine without an index must start where Lance is not installed.
        from decoupled.index.store.lance import LanceStore

        return LanceStore

    def _open_store(self) -> Store:
        """Open or create the store; an empty one of this process stands for it until there are records."""
        token_bytes, width = self.codec.bytes_per_token, self.spec.vector_width
        store: Store | None = None
        exists = self._stores().exists(self.path)
        if self._begun and exists:
            store = self._stores().open(self.path, write=self._write, share=self._share)
        elif exists and self.location.load(CODEC) is None:
            raise DecoupledError(
                f"{CODEC} of {self.location.name} is gone, and its passages cannot be read without it; "
                "restore it from a copy, or index again"
            )
        elif self._begun and self._write:
            store = self._stores().create(self.path, token_bytes=token_bytes, width=width)
        self._has_store = store is not None
        if store is None and self._empty is None:
            self._empty_folder = TemporaryDirectory(prefix="decoupled-")
            where = self._empty_folder.name
            self._empty = self._stores().create(where, token_bytes=token_bytes, width=width)
        return store or cast(Store, self._empty)
