"""DeBERTa v2 and v3: post-norm layers whose attention reads a table of relative positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from decoupled.errors import SpecError
from decoupled.model.hf.options import (
    ACTIVATION_NAMES,
    Config,
    activation,
    head_width,
    refused,
    size,
)
from decoupled.model.hf.postnorm import post_norm, write_bert
from decoupled.model.parts.attention import Attention, Disentangled, RelativeSpec, SelfAttention
from decoupled.model.parts.head import HeadDense, HeadKind, HeadSpec
from decoupled.model.spec import EncoderSpec, ModelSpec

_TERMS: tuple[Literal["c2p", "p2c"], ...] = ("c2p", "p2c")


def read_deberta(config: Config) -> EncoderSpec:
    """The encoder of a DeBERTa v2 or v3 config."""
    if (config["conv_kernel_size"] or 0) > 0:
        raise refused(config, "conv_kernel_size", "0")
    encoder = post_norm(config, _read_attention(config))
    narrow = config.get("embedding_size")
    embedding = replace(encoder.embedding, width=encoder.width if narrow is None else narrow)
    if embedding.width != encoder.width:
        embedding = replace(embedding, project="before_norm", project_bias=False)
    if not config["position_biased_input"]:
        embedding = replace(embedding, positions=0)
    return replace(encoder, embedding=embedding, relative=_read_relative(config, encoder))


def _read_attention(config: Config) -> Attention:
    width, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    head, terms = head_width(config, width, heads), _read_terms(config)
    if config.get("attention_head_size") not in (None, head):
        raise refused(config, "attention_head_size", str(head))
    if not config["relative_attention"]:
        if terms:
            raise SpecError(
                f"config.json has relative_attention=false and pos_att_type={list(terms)}, "
                "which scales scores for terms that are not there; expected both or neither: "
                "use another checkpoint"
            )
        return SelfAttention(heads=heads, head_width=head)
    if not terms:
        raise refused(
            config, "pos_att_type", "'c2p', 'p2c' or both where relative_attention is true"
        )
    buckets, distance = size(config, "position_buckets", least=-1), _max_distance(config)
    return Disentangled(
        heads=heads,
        head_width=head,
        terms=terms,
        buckets=buckets if buckets > 0 else distance,
        max_distance=distance if buckets > 0 else 0,
        shared=bool(config["share_att_key"]),
    )


def _read_terms(config: Config) -> tuple[Literal["c2p", "p2c"], ...]:
    given = config["pos_att_type"] or ()
    names = given.lower().split("|") if isinstance(given, str) else given
    names = [name.strip() for name in names if name.strip()]
    if not set(names) <= set(_TERMS):
        raise refused(config, "pos_att_type", "'c2p', 'p2c' or both")
    return tuple(term for term in _TERMS if term in names)


def _max_distance(config: Config) -> int:
    longest = size(config, "max_relative_positions", least=-1)
    return longest if longest >= 1 else size(config, "max_position_embeddings")


def _read_relative(config: Config, encoder: EncoderSpec) -> RelativeSpec | None:
    first = encoder.layers[0]
    if not isinstance(first.attention, Disentangled):
        return None
    named = [part.strip() for part in str(config["norm_rel_ebd"]).lower().split("|")]
    norm = first.norm if "layer_norm" in named else None
    return RelativeSpec(rows=2 * first.attention.buckets, norm=norm)


def write_deberta(spec: ModelSpec) -> dict[str, Any]:
    """The options of a DeBERTa v2 config."""
    encoder, attention = spec.encoder, spec.encoder.layers[0].attention
    config = {
        **write_bert(spec),
        "embedding_size": encoder.embedding.width,
        "position_biased_input": encoder.embedding.positions > 0,
        "relative_attention": isinstance(attention, Disentangled),
        "norm_rel_ebd": "layer_norm" if encoder.relative and encoder.relative.norm else "none",
    }
    if isinstance(attention, Disentangled):
        config["pos_att_type"] = list(attention.terms)
        config["share_att_key"] = attention.shared
        config["position_buckets"] = attention.buckets if attention.max_distance else -1
        config["max_relative_positions"] = attention.max_distance or attention.buckets
    for head in spec.heads:
        if head.dense is not None:
            config["pooler_hidden_act"] = ACTIVATION_NAMES[head.dense.activation]
            config["pooler_hidden_size"] = encoder.width
    return config


def deberta_head(config: Config, kind: HeadKind) -> HeadSpec:
    """The first token through the map of its pooler; spans read every token as it is."""
    if kind == "span":
        return HeadSpec(kind=kind)
    return HeadSpec(kind=kind, dense=HeadDense(activation=activation(config, "pooler_hidden_act")))
