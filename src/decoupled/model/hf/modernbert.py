"""ModernBERT: pre-norm, rotary angles, windows in most layers, a gated feed-forward block."""

from __future__ import annotations

from dataclasses import replace

from decoupled.model.hf.family import (
    BUFFERS,
    Config,
    Family,
    activation_name,
    by_head,
    numbered,
    one,
)
from decoupled.model.jsonable import JsonObject, to_json
from decoupled.model.parts.attention import SelfAttention
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.feed_forward import FeedForwardSpec
from decoupled.model.parts.head import HeadDense, HeadKind, HeadSpec
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.norm import NormSpec
from decoupled.model.spec import DropoutSpec, EncoderSpec, ModelSpec

GLOBAL_THETA = 160_000.0
LOCAL_THETA = 10_000.0


def read_modernbert(config: Config) -> EncoderSpec:
    """The encoder of a ModernBERT config."""
    width = config.size("hidden_size")
    norm = NormSpec(eps=config.number("norm_eps"), bias=bool(config["norm_bias"]))
    full = SelfAttention(
        **config.heads(),
        bias=bool(config["attention_bias"]),
        rotary=_theta(config, "full_attention"),
    )
    # Their window counts both sides together; ours counts the positions to each side.
    window = config.size("local_attention", least=2) // 2
    local = replace(full, window=window, rotary=_theta(config, "sliding_attention"))
    ffn = FeedForwardSpec(
        width=config.size("intermediate_size"),
        activation=config.activation("hidden_activation"),
        gated=True,
        bias=bool(config["mlp_bias"]),
    )
    layer = LayerSpec(attention=full, ffn=ffn, attention_slot=0, ffn_slot=0, norm=norm, order="pre")
    # The embedding is normalised already, so the first attention has no norm of its own.
    layers = [
        replace(layer.in_slot(i), attention=full if whole else local, attention_norm=i > 0)
        for i, whole in enumerate(_reads_all(config))
    ]
    return EncoderSpec(
        width=width,
        embedding=EmbeddingSpec(vocab=config.size("vocab_size"), width=width, norm=norm),
        layers=tuple(layers),
        final_norm=norm,
        dropout=DropoutSpec(
            hidden=config.number("mlp_dropout"), attention=config.number("attention_dropout")
        ),
        max_tokens=config.size("max_position_embeddings"),
    )


def _reads_all(config: Config) -> list[bool]:
    """Whether each layer sees all tokens (has no window); older configs give a period instead of a list."""
    count, kinds = config.size("num_hidden_layers"), config.get("layer_types")
    if kinds is None:
        every = config.size("global_attn_every_n_layers")
        return [i % every == 0 for i in range(count)]
    if len(kinds) != count or not set(kinds) <= {"full_attention", "sliding_attention"}:
        expected = f"{count} of 'full_attention' or 'sliding_attention'"
        raise config.refused("layer_types", expected)
    return [kind == "full_attention" for kind in kinds]


def _theta(config: Config, kind: str) -> float:
    """Base of the rotary angles of a kind of layers, from a new config or an old one."""
    options = (config.get("rope_parameters") or {}).get(kind) or {}
    ropes = {"rope_parameters": options, "rope_scaling": config.get("rope_scaling") or {}}
    for key, rope in ropes.items():
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise config.refused(key, "rope_type 'default'")
    if options.get("rope_theta") is not None:
        return Config(options).number("rope_theta")
    local = kind == "sliding_attention" and config["local_rope_theta"] is not None
    return config.number("local_rope_theta" if local else "global_rope_theta")


def write_modernbert(spec: ModelSpec) -> JsonObject:
    """The options of a ModernBERT config, for transformers 5 and for releases before it."""
    encoder, first = spec.encoder, spec.encoder.layers[0]
    config: JsonObject = {
        "hidden_size": encoder.width,
        "num_hidden_layers": len(encoder.layers),
        "num_attention_heads": first.attention.heads,
        "intermediate_size": first.ffn.width,
        "hidden_activation": activation_name(first.ffn.activation),
        "max_position_embeddings": encoder.max_tokens,
        "norm_eps": first.norm.eps,
        "norm_bias": first.norm.bias,
        "attention_bias": to_json(first.attention).get("bias", False),
        "attention_dropout": encoder.dropout.attention,
        "embedding_dropout": encoder.dropout.hidden,
        "mlp_dropout": encoder.dropout.hidden,
        "mlp_bias": first.ffn.bias,
        **_write_layers(encoder),
    }
    if spec.text.query_prefix:
        config["bos_token_id"] = config["cls_token_id"] = spec.text.query_prefix[0]
    if spec.text.query_suffix:
        config["eos_token_id"] = config["sep_token_id"] = spec.text.query_suffix[-1]
    for head in spec.heads:
        config["classifier_pooling"] = "mean" if head.pooling == "mean" else "cls"
        if head.dense is not None:
            config["classifier_bias"] = head.dense.bias
            config["classifier_activation"] = activation_name(head.dense.activation)
    return config


def _write_layers(encoder: EncoderSpec) -> JsonObject:
    """Which layers have a window, how wide, and the rotary bases."""
    attention = [to_json(layer.attention) for layer in encoder.layers]
    local = [a for a in attention if a.get("window") is not None]
    full = [a for a in attention if a.get("window") is None]
    bases = {
        "full_attention": (full[0].get("rotary") if full else None) or GLOBAL_THETA,
        "sliding_attention": (local[0].get("rotary") if local else None) or LOCAL_THETA,
    }
    config: JsonObject = {
        "local_attention": 2 * (local[0]["window"] or 1) if local else 128,
        "layer_types": ["full_attention" if a in full else "sliding_attention" for a in attention],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()
        },
        # Releases before 5 know these names only, and a period in place of `layer_types`.
        "global_rope_theta": bases["full_attention"],
        "local_rope_theta": bases["sliding_attention"],
    }
    # From the largest period down, so that the smallest one that fits is kept.
    for every in range(len(attention), 0, -1):
        if all((a in full) == (i % every == 0) for i, a in enumerate(attention)):
            config["global_attn_every_n_layers"] = every
    return config


def modernbert_head(config: Config, kind: HeadKind) -> HeadSpec:
    """A head of a linear layer and a norm, for spans too; pooled by the first token or the mean of all."""
    bias = bool(config.get("classifier_norm_bias", config["norm_bias"]))
    dense = HeadDense(
        activation=config.activation("classifier_activation"),
        bias=bool(config["classifier_bias"]),
        norm=NormSpec(eps=config.number("norm_eps"), bias=bias),
    )
    mean = kind != "span" and config["classifier_pooling"] == "mean"
    return HeadSpec(kind=kind, dense=dense, pooling="mean" if mean else "first")


_HEAD = one(dense="head.dense", norm="head.norm", out="classifier")

MODERNBERT = Family(
    name="modernbert",
    title="ModernBert",
    prefix="model",
    modules=one(
        embedding__tokens="embeddings.tok_embeddings",
        embedding__norm="embeddings.norm",
        stack__norm="final_norm",
    ),
    layers=numbered("layers"),
    blocks={
        "attention": {
            "attn.Wqkv": ("attention.query", "attention.key", "attention.value"),
            **one(attention__out="attn.Wo", norm="attn_norm"),
        },
        "ffn": {"mlp.Wi": ("up", "gate"), **one(down="mlp.Wo", norm="mlp_norm")},
    },
    heads=by_head(_HEAD, span=_HEAD),
    ignored=(*BUFFERS, r"head\..*", r"decoder\..*"),
    defaults={
        "hidden_activation": "gelu",
        "norm_eps": 1e-5,
        "norm_bias": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": GLOBAL_THETA,
        "local_rope_theta": LOCAL_THETA,
        "classifier_pooling": "cls",
        "classifier_bias": False,
        "classifier_activation": "gelu",
    },
    read=read_modernbert,
    read_head=modernbert_head,
    write=write_modernbert,
)
