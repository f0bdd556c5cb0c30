"""A Hugging Face checkpoint → (spec, weights). Strict: every tensor is accounted for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from decoupled.errors import SpecError, WeightsError
from decoupled.model.hf import bert, decoder, relative
from decoupled.model.hf.checkpoint import (
    read_config,
    read_weights,
    readable,
    resolve,
    tokenizer_file,
)
from decoupled.model.hf.deberta import DEBERTA
from decoupled.model.hf.family import Family
from decoupled.model.hf.modernbert import MODERNBERT
from decoupled.model.hf.modules import with_head
from decoupled.model.parts.head import HeadSpec
from decoupled.model.prompts import Template, score_tokens, template_of
from decoupled.model.spec import EncoderSpec

FAMILIES: dict[str, Family] = {
    f.name: f for f in (*bert.FAMILIES, MODERNBERT, DEBERTA, *relative.FAMILIES, *decoder.FAMILIES)
}
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """The contents of a checkpoint, with our spec and our names of tensors."""

    family: str
    encoder: EncoderSpec
    heads: tuple[HeadSpec, ...]
    weights: dict[str, Tensor]
    """The tensors by our names, in fp32."""
    folder: Path
    template: Template | None = None
    """The prompt that a decoder was trained on."""


def family_of(model_type: object) -> Family:
    """The family of that `model_type`, or an error that lists those there are."""
    family = FAMILIES.get(str(model_type))
    if family is None:
        raise SpecError(
            f"config.json has model_type={model_type!r}, which is no known family; "
            f"expected one of {', '.join(FAMILIES)}: use a checkpoint of one of them"
        )
    return family


def load(source: str | Path, template: str | None = None) -> Checkpoint:
    """Read a checkpoint from a folder or the hub; its tokenizer stays in the folder.

    A decoder needs a `template`: a name or a file, by default what its own name says.
    """
    folder = resolve(source)
    with readable(folder):
        return _load(folder, source, template)


def _load(folder: Path, source: str | Path, named: str | None) -> Checkpoint:
    config = read_config(folder)
    # Before the weights, which may be large, or of no use.
    family = family_of(config.get("model_type"))
    if named is not None and family.scored is None:
        raise SpecError(f"template {named!r}, but {family.name} reads no prompt; leave it out")
    template = template_of(named, source, folder) if family.scored else None
    config, read = with_head(folder, config, read_weights(folder))
    architecture = next(iter(config.get("architectures") or []), "")
    if template is not None and family.scored is not None:
        tokens = score_tokens(tokenizer_file(folder).read_text(encoding="utf-8"), template)
        causal = architecture.endswith("ForCausalLM")
        if causal != bool(tokens):
            have = "no value head" if causal else "a value head"
            raise SpecError(
                f"the template scores by {len(tokens)} tokens, and {architecture} has {have}; use the "
                "template of this model"
            )
        read = family.scored(family.complete(config), read, tokens)
    encoder, heads = family.encoder(config), family.head(config, architecture)
    read = read if family.plain is None else family.plain(read)
    theirs = {_modern(name): tensor for name, tensor in read.items()}
    # A bare encoder was saved without a head, so its names lack the family's prefix.
    bare = not any(name.startswith(f"{family.prefix}.") for name in theirs)
    shapes = _shapes(encoder, heads)
    joined = links(family, config, encoder, heads, bare=bare)
    # Several of our matrices may be rows of one of theirs, such as Wqkv.
    expected = {
        name: (sum(shapes[one][0] for one in ours), *shapes[ours[0]][1:])
        for name, ours in joined.items()
    }
    ignored = re.compile("|".join(f"(?:{pattern})" for pattern in family.ignored))
    used = {
        name: t for name, t in theirs.items() if name in expected or not ignored.fullmatch(name)
    }
    if problems := _misfits(used, expected):
        raise WeightsError(
            f"{folder} ({architecture or family.name}) does not fit its config.json: {problems}; "
            "use the config and the weights of one and the same model"
        )
    weights: dict[str, Tensor] = {}
    for name, ours in joined.items():
        parts = torch.split(theirs[name], [shapes[one][0] for one in ours])
        # Views of one fused tensor would keep all of it in memory, and safetensors refuses shared
        # storage.
        copied = parts if len(parts) == 1 else [part.clone() for part in parts]
        weights.update(zip(ours, copied, strict=True))
    return Checkpoint(
        family=family.name,
        encoder=encoder,
        heads=heads,
        weights=weights,
        folder=folder,
        template=template,
    )


def links(
    family: Family,
    config: Mapping[str, Any],
    encoder: EncoderSpec,
    heads: Sequence[HeadSpec],
    *,
    bare: bool,
) -> dict[str, tuple[str, ...]]:
    """For each of their tensors, the names of our tensors that it holds, in the order of its rows."""
    prefix, shapes = "" if bare else f"{family.prefix}.", _shapes(encoder, heads)
    modules = {prefix + theirs: ours for theirs, ours in family.modules.items()}
    places = family.layers(family.complete(config), len(encoder.layers))
    # Layers that share a slot give several of their names for the same tensors of ours.
    for place, layer in zip(places, encoder.layers, strict=True):
        for block in layer.blocks:
            for theirs, ours in family.blocks[block.name].items():
                modules[f"{prefix}{place}.{theirs}"] = tuple(block.prefix + one for one in ours)
    for head in heads:
        for theirs, ours in family.heads[head.kind].items():
            modules[theirs] = tuple(f"heads.{head.kind}.{one}" for one in ours)
    return {
        f"{theirs}{suffix}": tuple(f"{one}{suffix}" for one in ours)
        for theirs, ours in modules.items()
        for suffix in (".weight", ".bias", "")
        if f"{ours[0]}{suffix}" in shapes
    }


def _shapes(encoder: EncoderSpec, heads: Sequence[HeadSpec]) -> dict[str, Shape]:
    """Name and shape of every tensor of the joint model."""
    tensors = dict(encoder.tensors())
    for head in heads:
        tensors |= head.tensors(encoder.width)
    return {name: tensor.shape for name, tensor in tensors.items()}


def _modern(name: str) -> str:
    """The name that today's releases give to a tensor of the first BERT checkpoints."""
    return name.replace("Norm.gamma", "Norm.weight").replace("Norm.beta", "Norm.bias")


def _misfits(tensors: Mapping[str, Tensor], expected: Mapping[str, Shape]) -> str:
    """Describe the missing, surplus and misshapen tensors; empty where there are none."""
    misshapen = [
        f"{name} (expected {list(expected[name])}, found {list(tensor.shape)})"
        for name, tensor in tensors.items()
        if name in expected and expected[name] != tuple(tensor.shape)
    ]
    problems = {
        "missing": [name for name in expected if name not in tensors],
        "surplus": [name for name in tensors if name not in expected],
        "misshapen": misshapen,
    }
    return "; ".join(f"{len(n)} {what}: {_first(n)}" for what, n in problems.items() if n)


def _first(names: Sequence[str], count: int = 5) -> str:
    return ", ".join(names[:count]) + (", …" if len(names) > count else "")
