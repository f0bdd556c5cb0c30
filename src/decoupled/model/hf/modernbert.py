"""ModernBERT: pre-norm, rotary angles, windows in most layers, a gated feed-forward block."""

from dataclasses import replace

from decoupled.model.hf.family import BUFFERS, Config, Family, by_head, numbered, one
from decoupled.model.parts.attention import SelfAttention
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.feed_forward import FeedForwardSpec
from decoupled.model.parts.head import HeadDense, HeadKind, HeadSpec
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.norm import NormSpec
from decoupled.model.spec import DropoutSpec, EncoderSpec

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
)
