"""Llama, Qwen2, Qwen3 and Gemma: causal decoders, and Llama made bidirectional, that score a prompt."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.model.hf.family import Config, Family, by_head, numbered, one
from decoupled.model.jsonable import JsonObject
from decoupled.model.parts.attention import Grouped, RotaryScaling
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.feed_forward import FeedForwardSpec
from decoupled.model.parts.head import HeadKind, HeadSpec
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.norm import NormSpec
from decoupled.model.spec import DropoutSpec, EncoderSpec

TOKENS, LOGITS = "model.embed_tokens.weight", "lm_head.weight"


def read_decoder(config: Config) -> EncoderSpec:
    """The layers of a Llama config; the other families of this module start from it."""
    width, heads = config.size("hidden_size"), config.size("num_attention_heads")
    norm = NormSpec(eps=config.number("rms_norm_eps"), bias=False, kind="rms")
    attention = Grouped(
        heads=heads,
        head_width=config.size("head_dim") if config.get("head_dim") else width // heads,
        groups=config.size("num_key_value_heads") if config.get("num_key_value_heads") else heads,
        bias=bool(config["attention_bias"]),
        out_bias=bool(config["output_bias"] and config["attention_bias"]),
        norm=norm if config["head_norms"] else None,
        causal=bool(config["causal"]),
        **_rotary(config),
    )
    if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
        raise config.refused("use_sliding_window", "false")
    ffn = FeedForwardSpec(
        width=config.size("intermediate_size"),
        activation=config.activation("hidden_act"),
        gated=True,
        bias=bool(config["mlp_bias"]),
    )
    layer = LayerSpec(
        attention=attention, ffn=ffn, attention_slot=0, ffn_slot=0, norm=norm, order="pre"
    )
    return EncoderSpec(
        width=width,
        embedding=EmbeddingSpec(vocab=config.size("vocab_size"), width=width, norm=None),
        layers=tuple(layer.in_slot(i) for i in range(config.size("num_hidden_layers"))),
        final_norm=norm,
        dropout=DropoutSpec(hidden=0.0, attention=config.number("attention_dropout")),
        max_tokens=config.size("max_position_embeddings"),
    )


def _rotary(config: Config) -> JsonObject:
    """Base and scaling of the rotary angles, from a new config or an old one."""
    rope = Config(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    base = rope if rope.get("rope_theta") is not None else config
    if kind not in ("default", "llama3"):
        raise config.refused("rope_parameters", "rope_type 'default' or 'llama3'")
    scaling = (
        RotaryScaling(
            factor=rope.number("factor"),
            low=rope.number("low_freq_factor"),
            high=rope.number("high_freq_factor"),
            tokens=rope.size("original_max_position_embeddings"),
        )
        if kind == "llama3"
        else None
    )
    return {"rotary": base.number("rope_theta"), "scaling": scaling}


def decoder_head(config: Config, kind: HeadKind) -> HeadSpec:
    """A value read off the last token, or off the mean of all in a bidirectional model."""
    return HeadSpec(kind=kind, pooling="last" if config["causal"] else "mean")


def with_score(
    config: Config, weights: dict[str, Tensor], tokens: tuple[int, ...]
) -> dict[str, Tensor]:
    """The tensors with a value head: the rows of the score's tokens in the output matrix, or its own."""
    weights = dict(weights)
    # A tied model has no output matrix of its own.
    logits = weights.pop(LOGITS, None)
    logits = weights[TOKENS] if logits is None else logits
    if tokens:
        if max(tokens) >= len(logits):
            raise SpecError(f"score token {max(tokens)}, but the model has {len(logits)} tokens")
        rows = logits[list(tokens)]
        weights["score.weight"] = rows[:1] - rows[1:] if len(tokens) == 2 else rows.clone()
    if (score := weights.get("score.weight")) is not None:
        weights["score.weight"] = score / float(config.get("temperature") or 1.0)
        weights.setdefault("score.bias", torch.zeros(len(score)))
    return weights


def with_gemma_norms(
    config: Config, weights: dict[str, Tensor], tokens: tuple[int, ...]
) -> dict[str, Tensor]:
    """Gemma's tensors as Llama's: norms that multiply by 1 + w, tokens times the root of the width."""
    weights = with_score(config, weights, tokens)
    for name in (name for name in weights if name.endswith("norm.weight")):
        weights[name] = weights[name] + 1
    weights[TOKENS] = weights[TOKENS] * math.sqrt(config.size("hidden_size"))
    return weights


LLAMA = Family(
    name="llama",
    title="Llama",
    prefix="model",
    modules=one(embedding__tokens="embed_tokens", stack__norm="norm"),
    layers=numbered("layers"),
    blocks={
        "attention": one(
            attention__query="self_attn.q_proj",
            attention__key="self_attn.k_proj",
            attention__value="self_attn.v_proj",
            attention__out="self_attn.o_proj",
            attention__query_norm="self_attn.q_norm",
            attention__key_norm="self_attn.k_norm",
            norm="input_layernorm",
        ),
        # Ours applies the activation to `up`, theirs to the gate.
        "ffn": one(
            up="mlp.gate_proj",
            gate="mlp.up_proj",
            down="mlp.down_proj",
            norm="post_attention_layernorm",
        ),
    },
    heads=by_head(one(out="score")),
    ignored=(r".*rotary_emb\.inv_freq", r"lm_head\..*", r"score\..*"),
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "attention_bias": False,
        "output_bias": True,
        "head_norms": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "causal": True,
    },
    read=read_decoder,
    read_head=decoder_head,
    scored=with_score,
)
QWEN2 = replace(
    LLAMA,
    name="qwen2",
    title="Qwen2",
    defaults={**LLAMA.defaults, "attention_bias": True, "output_bias": False},
)
QWEN3 = replace(
    LLAMA,
    name="qwen3",
    title="Qwen3",
    defaults={**LLAMA.defaults, "head_norms": True, "head_dim": 128},
)
GEMMA = replace(
    LLAMA,
    name="gemma",
    title="Gemma",
    defaults={**LLAMA.defaults, "hidden_act": "gelu_pytorch_tanh", "head_dim": 256},
    scored=with_gemma_norms,
)
BIDIRECTIONAL = replace(
    LLAMA,
    name="llama_bidirec",
    title="LlamaBidirectional",
    defaults={**LLAMA.defaults, "causal": False},
)

FAMILIES = (LLAMA, QWEN2, QWEN3, GEMMA, BIDIRECTIONAL)
