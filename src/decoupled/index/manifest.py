"""What ties an index to its model: the manifest, the model's copy, and the codec as it was fitted.

All of it lies in the location of the store, a folder or an address such as `s3://bucket/docs.idx`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Union

from decoupled.errors import DecoupledError, IndexMismatch, InputError, SpecError, WeightsError
from decoupled.index.store.location import LOCK, Location, location_of, locked
from decoupled.model import files, folder, sums
from decoupled.model.codec import build_codec, needs_fit, parse_codec
from decoupled.model.hf import hub
from decoupled.model.spec import ModelSpec
from decoupled.runtime.open import check_source, load_model

if TYPE_CHECKING:
    from decoupled.model.codec import Codec
    from decoupled.model.model import Model
    from decoupled.model.tokens import Tokenizer

FORMAT = 1
Source = Union["Model", Path]
"""A loaded model, or the folder of one, for which no torch is needed."""
MANIFEST, MODEL, CODEC, SUM = "manifest.json", "model", "codec.safetensors", "crc32"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What `manifest.json` says: which model made the bytes of an index, and how they are stored."""

    fingerprint: str
    """Hash of all that decides the stored states: weights below the split, tokenizer and spec."""
    codec: str
    model: str
    """Description of the model in a few words, for messages."""
    titles: bool = False
    """Whether titles are encoded with their passages; in indexes of the first versions they are not."""
    sources: tuple[str, ...] = ()
    """What a command line built the index from."""
    keep_tokens: float = 1.0
    """Share of each passage's tokens that is stored."""
    model_crc32: Mapping[str, int] | None = None
    """Sums of the files of the model's copy; None in indexes of the first versions."""

    def to_json(self) -> dict[str, object]:
        """The content of `manifest.json` without its checksum."""
        content: dict[str, object] = {"format": FORMAT, **vars(self), "sources": list(self.sources)}
        if self.keep_tokens == 1:
            del content["keep_tokens"]
        if self.model_crc32 is None:
            del content["model_crc32"]
        return content


def is_index(path: str | Path) -> bool:
    """Whether there is an index at this path."""
    return location_of(path).load(MANIFEST) is not None


def read_manifest(path: str | Path) -> Manifest:
    """The manifest of an index; raises where it is missing, damaged or of another format."""
    location = location_of(path)
    content = location.load(MANIFEST)
    if content is None:
        why, target = "does not exist", location.name
        if location.names():
            why, target = f"has no {MANIFEST}", "INDEX"
        elif Path(location.name).is_dir():
            why = "is an empty folder"
        raise InputError(
            f"{location.name} {why}, so it is not an index; "
            f"make one with: decoupled index CORPUS -o {target}"
        )
    try:
        manifest = json.loads(content)
        version, expected = manifest["format"], manifest.pop(SUM, None)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damaged(location.name) from None
    if version != FORMAT:
        raise DecoupledError(
            f"{location.name} has format {version!r}, and this version reads {FORMAT}; "
            "update decoupled or index again"
        )
    # Fields of later versions are passed over; what older ones must not read has another format.
    values = {
        field.name: manifest[field.name] for field in fields(Manifest) if field.name in manifest
    }
    if expected not in (None, _sum(manifest)) or not all(
        isinstance(values.get(name), str) for name in ("fingerprint", "codec", "model")
    ):
        raise damaged(location.name)
    return Manifest(**{**values, "sources": tuple(values.get("sources") or ())})


def damaged(name: str) -> DecoupledError:
    """The error of a manifest that is not what was written."""
    return DecoupledError(
        f"{MANIFEST} of {name} is damaged; restore it from a copy, or index again"
    )


def _sum(manifest: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def new_manifest(
    source: Source, codec: str, sources: Sequence[str], keep_tokens: float
) -> Manifest:
    """The manifest of an index that the model makes with a codec of that name."""
    spec = spec_of(source)
    return Manifest(
        fingerprint=fingerprint_of(source),
        codec=codec_name(codec, spec),
        model=describe(spec),
        titles=True,
        sources=tuple(sources),
        keep_tokens=keep_tokens,
    )


def write_index(location: Location, source: Source, manifest: Manifest) -> Manifest:
    """Copy the model to a location and write its manifest; returns the manifest with the copy's checksums."""
    with locked(location):
        check_free(location)  # another process may have been faster
        whole = _publish_model(location, source, manifest)
        write_manifest(location, whole)  # last: from here on it is an index
    return whole


def _publish_model(location: Location, source: Source, manifest: Manifest) -> Manifest:
    """Put a copy of the model into an index, and the sums of its files into the manifest."""
    crc32: dict[str, int] = {}

    def make(target: Path) -> None:
        copy_model(source, target)
        crc32.update(model_sums(target))

    location.publish(MODEL, make)
    return replace(manifest, model_crc32=crc32)


def exchange_model(path: str | Path, model: Model | str | Path) -> None:
    """Replace the model of an index by one that makes the same states and has another cross component.

    The index can be opened whenever this is interrupted: without checksums the fingerprint is compared.
    """
    location, manifest, source = location_of(path), read_manifest(path), source_of(model)
    check_model(location, manifest, source)
    with locked(location):
        # First without checksums: after a crash those of the old files would not fit the new ones.
        write_manifest(location, replace(manifest, model_crc32=None))
        write_manifest(location, _publish_model(location, source, manifest))


def check_free(location: Location) -> None:
    """Raise `InputError` unless nothing is there, or what `write_index` leaves when it is cut off."""
    names, parts = location.names(), (MODEL, f"{MANIFEST}.tmp", LOCK)
    if MANIFEST in names:
        raise InputError(
            f"{location.name} already holds an index; use Index.open_or_create, or choose another path"
        )
    if not all(n in parts or n.startswith(f".{MODEL}.") for n in names):
        raise InputError(f"{location.name} exists and is not an index; choose another path")


def write_manifest(location: Location, manifest: Manifest) -> None:
    """Write the manifest in one step, durably."""
    content = manifest.to_json()
    whole = {**content, SUM: _sum(content)}
    location.save(MANIFEST, json.dumps(whole, indent=1, ensure_ascii=False).encode())


def model_folder(path: str | Path) -> Path:
    """The model of an index, as a local folder."""
    return location_of(path).fetch(MODEL)


def save_codec(location: Location, codec: Codec) -> None:
    """Write what a codec was fitted to in one step, durably."""
    location.save(CODEC, sums.pack(codec.tensors()))


def spec_of(source: Source) -> ModelSpec:
    """The spec of a model or a model folder."""
    return folder.read_spec(source) if isinstance(source, Path) else source.spec


def tokenizer_of(source: Source) -> Tokenizer:
    """The tokenizer of a model or a model folder."""
    if not isinstance(source, Path):
        return source.tokenizer
    return folder.read_tokenizer(source, folder.read_spec(source))


def source_of(model: Model | str | Path) -> Source:
    """A model folder stays a path, so that no torch is needed; anything else is loaded."""
    if isinstance(model, str | Path):
        check_source(model)
        return hub.stored(model) or load_model(model)
    return model


def copy_model(source: Source, target: Path) -> None:
    """Write a model, or copy its folder, to a local path."""
    if not isinstance(source, Path):
        source.save(target)
        return
    with folder.replacing(target, folder.SPEC) as fresh:
        files.copy(source, fresh)


def fingerprint_of(source: Source) -> str:
    """The fingerprint of a model or a model folder."""
    if not isinstance(source, Path):
        return source.fingerprint
    spec = folder.read_spec(source)
    json_text = folder.read_tokenizer(source, spec).json
    return folder.fingerprint(spec, folder.read_tensors(source, spec.is_input), json_text)


def model_sums(path: Path) -> dict[str, int]:
    """The CRC-32 of each file of a model folder that decides scores."""
    files = (folder.SPEC, folder.WEIGHTS, folder.TOKENIZER)  # the ranges of int8 may come later
    return {
        name: zlib.crc32((path / name).read_bytes()) for name in files if (path / name).exists()
    }


def check_own_model(location: Location, manifest: Manifest, path: Path) -> None:
    """Raise `IndexMismatch` where the model of an index is not what `create` put there.

    Quicker than a fingerprint, and it sees the cross component too; indexes from before have no such sums.
    """
    expected = manifest.model_crc32
    if expected is None:
        check_model(location, manifest, path)
        return
    actual = model_sums(path)
    if wrong := [name for name in expected if actual.get(name) != expected[name]]:
        raise IndexMismatch(
            f"{', '.join(wrong)} in the model of {location.name} was damaged or replaced since the index was "
            "made; restore it from a copy, or index again (another cross component goes beside the index: "
            "Index.open(path, model=…))"
        )


def check_model(location: Location, manifest: Manifest, source: Source) -> None:
    """Raise `IndexMismatch` for a model that did not make the index."""
    fingerprint = fingerprint_of(source)
    if fingerprint != manifest.fingerprint:
        raise IndexMismatch(
            f"{location.name} was made by a model with fingerprint {manifest.fingerprint} "
            f"({manifest.model}), not by {fingerprint} ({describe(spec_of(source))}); "
            "open it with its own model, or index again"
        )


def describe(spec: ModelSpec) -> str:
    """A model in a few words, for people."""
    learned = f", projection {spec.projection.width}" if spec.projection else ""
    return f"{spec.family} width {spec.encoder.width}, split {spec.split} of {len(spec.layers)}{learned}"


def check_storable(spec: ModelSpec) -> None:
    """Raise `SpecError` for a model whose passages depend on the query, or that could not search them."""
    if not any(head.kind == "span" for head in spec.heads):
        spec.reads("rank")
    if spec.positions == "joint" and spec.encoder.embedding.positions:
        raise SpecError(
            "a joint model (split 0) reads passages only together with a query, so there is nothing to "
            f"store; split it first: decoupled split MODEL -o OUT --at 1..{len(spec.layers)}"
        )


def codec_name(name: str, spec: ModelSpec) -> str:
    """The codec of an index; a projection that the model has learnt itself is not applied twice."""
    stages = parse_codec(name)
    learned = spec.projection.width if spec.projection else None
    if stages[0].kind == "project" and stages[0].argument == learned:
        stages = stages[1:]
    return "+".join(map(str, stages))


def initial_codec(name: str, spec: ModelSpec) -> Codec:
    """The codec of an index that nothing was added to: states stay as they are while it must be fitted."""
    return build_codec(
        "fp32" if needs_fit(name) else name, width=spec.state_width("passage"), tensors={}
    )


def load_codec(location: Location, name: str, spec: ModelSpec) -> Codec | None:
    """The codec that an index encodes with; None before its first passage is added."""
    content = location.load(CODEC)
    if content is None:
        return None
    try:
        tensors = sums.unpack(content)
    except WeightsError as error:
        raise DecoupledError(
            f"{CODEC} of {location.name} is {error}; restore it from a copy, or index again"
        ) from None
    return build_codec(name, width=spec.state_width("passage"), tensors=tensors)


def same_codec(one: Codec, other: Codec) -> bool:
    """Whether two codecs have the same numbers, so that either decodes what the other encoded."""
    a, b = one.tensors(), other.tensors()
    return one.name == other.name and a.keys() == b.keys() and all((a[n] == b[n]).all() for n in a)
