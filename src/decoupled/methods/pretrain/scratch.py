"""Models that begin at random, from a description alone."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from decoupled.errors import InputError, SpecError
from decoupled.model.jsonable import from_json
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.attention import Attention, SelfAttention
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.feed_forward import Activation, FeedForwardSpec
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.norm import NormSpec
from decoupled.model.parts.table import Table
from decoupled.model.spec import FORMAT, EncoderSpec, ModelSpec
from decoupled.model.tokens import Tokenizer, text_spec

SPREAD = 0.02
"""Standard deviation of new weights, as in BERT."""
LONGEST = 512
"""Tokens of a pair where no position table limits them."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """An encoder like BERT in a few numbers, perhaps with a token table and attention of other kinds."""

    layers: int
    width: int
    heads: int
    ffn: int = 0
    """Width of the feed-forward layers; four times the width if 0."""
    activation: Activation = "gelu"
    embedding: int = 0
    """Width of the tables; that of the encoder if 0."""
    positions: int = 512
    """Rows of the position table; 0 where the token table or the attention knows positions."""
    table: Table | None = None
    """How the token table is held."""
    attention: tuple[Attention, ...] = ()
    """A kind for all layers, or one for each; ordinary heads if not given."""
    reversible: bool = False
    """Layers whose inputs are computed from their outputs, in training."""

    def encoder(self, vocab: int) -> EncoderSpec:
        """The encoder of this shape for a vocabulary of that size."""
        if min(self.layers, self.heads) < 1 or self.width < 1 or self.width % self.heads:
            raise SpecError(
                f"layers={self.layers}, width={self.width}, heads={self.heads}; choose a layer or more and a "
                "width that the heads divide"
            )
        table, count = self.embedding or self.width, len(self.attention)
        if count > 1 and count != self.layers:
            raise SpecError(
                f"{count} kinds of attention for {self.layers} layers; give one for all, or one for each"
            )
        plain = SelfAttention(heads=self.heads, head_width=self.width // self.heads)
        kinds = (self.attention or (plain,)) * (self.layers if count < 2 else 1)
        ffn = FeedForwardSpec(width=self.ffn or 4 * self.width, activation=self.activation)
        order: dict[str, Any] = {"order": "pre", "reversible": True} if self.reversible else {}
        return EncoderSpec(
            width=self.width,
            embedding=EmbeddingSpec(
                vocab=vocab,
                width=table,
                positions=self.positions,
                types=2,
                project="none" if table == self.width else "after_norm",
                table=self.table,
            ),
            layers=tuple(
                LayerSpec(attention=kind, ffn=ffn, attention_slot=n, ffn_slot=n, **order)
                for n, kind in enumerate(kinds)
            ),
            # Pre-norm layers leave their sum unnormalised, so a norm follows the last one.
            final_norm=NormSpec() if self.reversible else None,
            max_tokens=self.positions or LONGEST,
        )


def read_spec(path: str | Path, tokenizer: Tokenizer) -> ModelSpec:
    """The spec in a file: a model folder's `spec.json`, or the few numbers of a `ModelShape`."""
    try:
        data: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} is no spec ({error}); give the spec.json of a model folder, or JSON such as "
            '{"layers": 4, "width": 256, "heads": 4}'
        ) from None
    if isinstance(data, dict) and "encoder" in data:
        return from_json(ModelSpec, {n: v for n, v in data.items() if n != "format" or v != FORMAT})
    encoder = from_json(ModelShape, data).encoder(tokenizer.vocab)
    text = text_spec(tokenizer.json, max_tokens=encoder.max_tokens, types=encoder.embedding.types)
    return ModelSpec(family="bert", encoder=encoder, text=text)


def described(model: Model, path: str | Path, seed: int = 0) -> Model:
    """A model by the spec in a file, at random, with the tokens of `model`, and its heads if it has none."""
    spec = read_spec(path, model.tokenizer)
    spec = replace(spec, heads=spec.heads or model.spec.heads)
    return random_model(spec, model.tokenizer, seed=seed)


def random_model(spec: ModelSpec, tokenizer: Tokenizer, *, seed: int = 0) -> Model:
    """A model of that spec with random weights."""
    if spec.encoder.embedding.vocab < tokenizer.vocab:
        raise SpecError(
            f"the spec has {spec.encoder.embedding.vocab} tokens and the tokenizer {tokenizer.vocab}; use "
            "the tokenizer of the spec, or raise encoder.embedding.vocab"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = PairEncoder(spec)
        spread(net)
    did = {"did": "begin at random", "seed": seed}
    return Model(
        net.eval(), Tokenizer(tokenizer.json, spec.text, spec.encoder.embedding.vocab), [did]
    )


def spread(module: nn.Module) -> None:
    """Initialise weights as BERT does: small normal values, and zero biases."""
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.normal_(part.weight, std=SPREAD)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
