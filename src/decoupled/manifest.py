"""What ties an index to its model: the manifest, the model's copy, and the codec as it was fitted."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from decoupled import codec as codecs
from decoupled import folder
from decoupled.errors import DecoupledError, InputError, MissingDependency, SpecError
from decoupled.spec import ModelSpec

if TYPE_CHECKING:
    from decoupled.codec import Codec
    from decoupled.model import Model

FORMAT = 1
MANIFEST, MODEL, CODEC = "manifest.json", "model", "codec.safetensors"


def is_index(path: str | Path) -> bool:
    """Is there an index at this path?"""
    return (Path(path) / MANIFEST).is_file()


def is_unfinished(place: Path) -> bool:
    """An empty folder, or one where `create` was cut off before its manifest."""
    if not place.is_dir():
        return False
    return all(f.name == MODEL or f.name.startswith(f".{MODEL}.") for f in place.iterdir())


def read_manifest(place: Path) -> dict[str, Any]:
    """The manifest of an index, checked."""
    if not is_index(place):
        why = "does not exist" if not place.exists() else f"has no {MANIFEST}"
        raise InputError(
            f"{place} {why}, so it is not an index; make one with: decoupled index CORPUS -o {place}"
        )
    try:
        manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        version = manifest["format"]
    except (ValueError, KeyError, TypeError):
        raise DecoupledError(f"{place / MANIFEST} is damaged; index again") from None
    if version != FORMAT:
        raise DecoupledError(
            f"{place} has format {version!r}, and this version reads {FORMAT}; "
            "update decoupled or index again"
        )
    return dict(manifest)


def write_manifest(place: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest in one step, durably."""
    fresh = place / f".{MANIFEST}.new"
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(place / MANIFEST)


def save_codec(place: Path, codec: Codec) -> None:
    """Write what a codec was fitted to in one step, durably."""
    fresh = place / f".{CODEC}.new"
    save_file(codec.tensors(), fresh)
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    fresh.replace(place / CODEC)


def source_of(model: Model | str | Path) -> Model | Path:
    """A model folder stays a path, so that no torch is needed; anything else is loaded."""
    if isinstance(model, str | Path):
        if folder.is_model(model):
            return Path(model)
        if find_spec("torch") is None:
            raise MissingDependency("torch", "torch")
        from decoupled.model import Model

        return Model.open(model)
    return model


def fingerprint_of(source: Model | Path) -> str:
    """The fingerprint of a model or a model folder."""
    if not isinstance(source, Path):
        return source.fingerprint
    spec = folder.read_spec(source)
    json_text = folder.read_tokenizer(source, spec).json
    return folder.fingerprint(spec, folder.read_tensors(source, spec.is_input), json_text)


def describe(spec: ModelSpec) -> str:
    """A model in a few words, for people."""
    learned = f", projection {spec.projection.width}" if spec.projection else ""
    return f"{spec.family} width {spec.encoder.width}, split {spec.split} of {len(spec.layers)}{learned}"


def check_storable(spec: ModelSpec) -> None:
    """Raise `SpecError` for a model whose passages depend on the query."""
    if spec.positions == "joint" and spec.encoder.embedding.positions:
        raise SpecError(
            "a joint model (split 0) reads passages only together with a query, so there is nothing to "
            f"store; split it first: decoupled split MODEL -o OUT --at 1..{len(spec.layers)}"
        )


def codec_name(name: str, spec: ModelSpec) -> str:
    """The codec of an index; a projection that the model has learnt itself is not applied twice."""
    stages = codecs.parse(name)
    learned = spec.projection.width if spec.projection else None
    if stages[0].kind == "project" and stages[0].argument == learned:
        stages = stages[1:]
    return "+".join(map(str, stages))


def load_codec(place: Path, name: str, spec: ModelSpec) -> Codec | None:
    """The codec of an index; None before it was fitted."""
    file = place / CODEC
    if not file.is_file():
        return None
    try:
        tensors = load_file(file)
    except SafetensorError as error:
        raise DecoupledError(f"{file} is damaged ({error}); index again") from None
    return codecs.load(name, width=spec.state_width("passage"), tensors=tensors)


def same_codec(one: Codec | None, other: Codec | None) -> bool:
    """Were both fitted to the same numbers, so that either decodes what the other encoded?"""
    if one is None or other is None:
        return one is other
    a, b = one.tensors(), other.tensors()
    return one.name == other.name and a.keys() == b.keys() and all((a[n] == b[n]).all() for n in a)
