"""Passages as trees (Nguyen et al., 2020): phrases, sentences and headings as rows of their own."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from decoupled.errors import SpecError
from decoupled.methods import tensors as linear
from decoupled.methods.method import Method, Weights, with_layers
from decoupled.methods.tree.part import TreeAttention
from decoupled.methods.tree.text import HEADING, OTHER, PASSAGE, SENTENCE, TreeText
from decoupled.model.parts.attention import SelfAttention
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.table.base import TOKENS
from decoupled.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class ReadTrees(Method):
    """Sentences, headings and phrases of passages become rows that gather what is under them."""

    name: ClassVar[str] = "tree"

    labels: tuple[str, ...] = ("S", "NP", "VP", "PP", "SBAR")
    """Labels of phrases, beside those of headings and sentences; any other becomes `other`."""

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """The layers below the split, and a row of the token table for each label."""
        linear.need_floats(spec, self.name)
        embedding = spec.encoder.embedding
        if not spec.split or spec.cross_embed != "none" or spec.text.structure is not None:
            raise SpecError(
                f"tree reads passages alone and leaves cross layers as they are; split={spec.split}, "
                f"cross_embed={spec.cross_embed!r}, trees already: {spec.text.structure is not None}; split "
                "first, without cross embeddings, and add it once"
            )
        if embedding.table is not None or embedding.bits is not None:
            raise SpecError(
                "tree adds rows to a plain token table; add it before the table is shrunk"
            )
        below = tuple(map(self._over_trees, spec.layers[: spec.split]))
        if any(layer.attention.kind != "tree" for layer in below):
            kinds = ", ".join(sorted({layer.attention.kind for layer in below}))
            raise SpecError(
                "tree replaces ordinary attention over a whole text, and the layers below the split have "
                f"{kinds} attention; leave it out"
            )
        labels = tuple(dict.fromkeys((PASSAGE, HEADING, SENTENCE, *self.labels, OTHER)))
        vocab = embedding.vocab + len(labels)
        encoder = replace(spec.encoder, embedding=replace(embedding, vocab=vocab))
        text = replace(spec.text, structure=TreeText(labels=labels, first=vocab))
        layers = (*below, *spec.layers[spec.split :])
        return with_layers(replace(spec, encoder=encoder, text=text), layers)

    def _over_trees(self, layer: LayerSpec) -> LayerSpec:
        old = layer.attention
        if not isinstance(old, SelfAttention) or old.window is not None:
            return layer
        kind = TreeAttention(
            heads=old.heads, head_width=old.head_width, bias=old.bias, rotary=old.rotary
        )
        return replace(layer, attention=kind)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """Start rows of node labels as the mean of all tokens, nodes as the mean of what they hold."""
        moved, name = dict(weights), f"{TOKENS}.weight"
        more = after.encoder.embedding.vocab - before.encoder.embedding.vocab
        table = moved[name]
        moved[name] = torch.cat([table, table.mean(0, keepdim=True).expand(more, -1)])
        for block in after.encoder.blocks:
            if isinstance(block.part, TreeAttention):
                for own, (shape, _) in block.tensors(after.encoder.width).items():
                    start = 1.0 if own.endswith("weigh.bias") else 0.0
                    moved.setdefault(own, torch.full(shape, start))
        return moved
