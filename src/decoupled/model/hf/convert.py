"""A Hugging Face checkpoint → (spec, weights), and a model at split 0 → a Hugging Face checkpoint.

Strict both ways: every tensor is accounted for, and a spec is written only where reading it back
gives the same spec.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import save_file
from torch import Tensor

from decoupled.errors import SpecError, WeightsError
from decoupled.model.hf.checkpoint import SAFETENSORS, read_config, read_weights, resolve
from decoupled.model.hf.families import family_of
from decoupled.model.hf.family import Config, Family
from decoupled.model.jsonable import to_json
from decoupled.model.parts.head import HeadSpec
from decoupled.model.spec import EncoderSpec, ModelSpec

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """What a checkpoint holds, in our words."""

    family: str
    encoder: EncoderSpec
    heads: tuple[HeadSpec, ...]
    weights: dict[str, Tensor]
    """By our names, fp32."""
    folder: Path


def load(source: str | Path) -> Checkpoint:
    """Read a checkpoint from a folder or the hub; its tokenizer stays in the folder."""
    folder = resolve(source)
    config = read_config(folder)
    family = family_of(config.get("model_type"))
    encoder = family.encoder(config)
    architecture = next(iter(config.get("architectures") or []), "")
    head = family.head(config, architecture)
    heads = (head,) if head else ()
    theirs = {_modern(name): tensor for name, tensor in read_weights(folder).items()}
    bare = not any(name.startswith(f"{family.names.prefix}.") for name in theirs)
    links = _links(family, config, encoder, heads, bare=bare)
    shapes = _shapes(encoder, heads)
    _check(
        theirs, _their_shapes(links, shapes), family, f"{folder} ({architecture or family.name})"
    )
    weights: dict[str, Tensor] = {}
    for name, ours in links.items():
        if len(ours) == 1:
            weights[ours[0]] = theirs[name]
        else:
            parts = torch.split(theirs[name], [shapes[one][0] for one in ours])
            weights.update({one: part.clone() for one, part in zip(ours, parts, strict=True)})
    return Checkpoint(
        family=family.name, encoder=encoder, heads=heads, weights=weights, folder=folder
    )


def save(spec: ModelSpec, weights: Mapping[str, Tensor], folder: str | Path) -> None:
    """Write config.json and model.safetensors as `transformers` reads them; not the tokenizer.

    A slot that several layers share is written once for each, unless the family shares layers too.
    """
    family = family_of(spec.family)
    config = _express(family, spec)
    links = _links(family, config, spec.encoder, spec.heads, bare=not spec.heads)
    shapes = _shapes(spec.encoder, spec.heads)
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if problems := _compare(found, shapes):
        raise WeightsError(f"the weights do not fit the spec: {problems}; load them together")
    tensors = {
        name: torch.cat([weights[one].detach().float().cpu() for one in ours]).clone()
        for name, ours in links.items()
    }
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    unfinished = target / f"{SAFETENSORS}.tmp"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    unfinished.replace(target / SAFETENSORS)
    (target / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _links(
    family: Family, config: Config, encoder: EncoderSpec, heads: Sequence[HeadSpec], *, bare: bool
) -> dict[str, tuple[str, ...]]:
    """Each tensor of theirs, with the tensors of ours that it holds."""
    names, shapes = family.names, _shapes(encoder, heads)
    prefix = "" if bare else f"{names.prefix}."
    modules = {prefix + theirs: ours for theirs, ours in names.encoder.items()}
    places = family.layer_names(config, len(encoder.layers))
    for place, layer in zip(places, encoder.layers, strict=True):
        for block in layer.blocks:
            for theirs, ours in names.blocks[block.name].items():
                modules[f"{prefix}{place}.{theirs}"] = tuple(block.prefix + one for one in ours)
    for head in heads:
        for theirs, ours in names.heads[head.kind].items():
            modules[theirs] = tuple(f"heads.{head.kind}.{one}" for one in ours)
    return {
        f"{theirs}.{suffix}": tuple(f"{one}.{suffix}" for one in ours)
        for theirs, ours in modules.items()
        for suffix in ("weight", "bias")
        if f"{ours[0]}.{suffix}" in shapes
    }


def _shapes(encoder: EncoderSpec, heads: Sequence[HeadSpec]) -> dict[str, Shape]:
    """Name and shape of every tensor of the joint model."""
    tensors = dict(encoder.tensors())
    for head in heads:
        tensors |= head.tensors(encoder.width)
    return {name: tensor.shape for name, tensor in tensors.items()}


def _their_shapes(
    links: Mapping[str, Sequence[str]], shapes: Mapping[str, Shape]
) -> dict[str, Shape]:
    """Shapes of theirs: those of ours, joined along the rows."""
    return {
        name: (sum(shapes[one][0] for one in ours), *shapes[ours[0]][1:])
        for name, ours in links.items()
    }


def _modern(name: str) -> str:
    """The name that today's releases give to a tensor of the first BERT checkpoints."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def _check(
    theirs: Mapping[str, Tensor], wanted: Mapping[str, Shape], family: Family, where: str
) -> None:
    """Refuse a checkpoint in which any tensor is missing, surplus or misshapen."""
    ignored = [re.compile(pattern) for pattern in family.names.ignored]
    found = {
        name: tuple(tensor.shape)
        for name, tensor in theirs.items()
        if name in wanted or not any(pattern.fullmatch(name) for pattern in ignored)
    }
    if problems := _compare(found, wanted):
        raise WeightsError(
            f"{where} does not fit its config.json: {problems}; "
            "use the config and the weights of one and the same model"
        )


def _compare(found: Mapping[str, Shape], wanted: Mapping[str, Shape]) -> str:
    """What is missing, surplus or misshapen, in words; empty when nothing is."""
    misshapen = [
        f"{name} (expected {list(wanted[name])}, found {list(shape)})"
        for name, shape in found.items()
        if name in wanted and wanted[name] != shape
    ]
    problems = (
        ("missing", [name for name in wanted if name not in found]),
        ("surplus", [name for name in found if name not in wanted]),
        ("misshapen", misshapen),
    )
    return "; ".join(f"{len(names)} {what}: {_first(names)}" for what, names in problems if names)


def _first(names: Sequence[str], count: int = 5) -> str:
    return ", ".join(names[:count]) + (", …" if len(names) > count else "")


def _express(family: Family, spec: ModelSpec) -> dict[str, Any]:
    """The config of a spec, proved by reading it back."""
    if spec.split or spec.positions != "joint" or spec.cross_embed != "none":
        raise SpecError(
            f"split={spec.split}, positions={spec.positions!r}, cross_embed={spec.cross_embed!r}: "
            "a Hugging Face checkpoint is a joint model; expected split=0 with positions='joint' "
            "and cross_embed='none': save a split model in its own format"
        )
    if len(spec.heads) > 1:
        kinds = ", ".join(head.kind for head in spec.heads)
        raise SpecError(
            f"heads {kinds}: a Hugging Face checkpoint has one head or none; drop all but one"
        )
    if not spec.layers:
        raise SpecError(f"0 layers: a {family.name} checkpoint has at least 1; save a deeper model")
    config = family.config(spec)
    head = family.head(config, family.architecture(spec.heads))
    differences = [
        *_differences(_plain(spec.encoder), _plain(family.encoder(config)), "encoder"),
        *_differences(_plain(spec.heads), _plain((head,) if head else ()), "heads"),
    ]
    if differences:
        raise SpecError(
            f"{family.name} cannot express this model: {_first(differences)}; "
            "save it in its own format"
        )
    return config


def _plain(value: EncoderSpec | tuple[HeadSpec, ...]) -> object:
    """A spec as JSON, without what a checkpoint does not hold: slots and the length limit."""
    if isinstance(value, EncoderSpec):
        layers = tuple(layer.in_slot(0) for layer in value.layers)
        value = replace(value, layers=layers, max_tokens=0)
    return to_json(value)


def _differences(ours: object, theirs: object, path: str) -> list[str]:
    """Where two JSON values differ, as `path=ours (would be theirs)`."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys: Iterable[str] = dict.fromkeys([*ours, *theirs])
        nested = [_differences(ours.get(k), theirs.get(k), f"{path}.{k}") for k in keys]
        return [one for several in nested for one in several]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [one for i, (a, b) in pairs for one in _differences(a, b, f"{path}[{i}]")]
    return [] if ours == theirs else [f"{path}={ours!r} (would be {theirs!r})"]
