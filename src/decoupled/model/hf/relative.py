"""MPNet and XLNet: post-norm layers whose attention knows relative positions."""

import re
from dataclasses import replace

from torch import Tensor

from decoupled.model.hf.bert import BERT, post_norm, read_roberta
from decoupled.model.hf.family import BUFFERS, POOLER, Config, Family, by_head, numbered, one
from decoupled.model.parts.attention import Bucketed, RelativeSpec, Segmented
from decoupled.model.parts.head import HeadDense, HeadKind, HeadSpec
from decoupled.model.spec import EncoderSpec


def read_mpnet(config: Config) -> EncoderSpec:
    """The encoder of an MPNet config: RoBERTa with T5's buckets of distances, and without types."""
    encoder, shape = read_roberta(config), config.heads()
    relative = RelativeSpec(
        rows=config.size("relative_attention_num_buckets"), width=shape["heads"]
    )
    layers = tuple(replace(one, attention=Bucketed(**shape)) for one in encoder.layers)
    return replace(encoder, layers=layers, relative=relative)


MPNET = replace(
    BERT,
    name="mpnet",
    title="MPNet",
    prefix="mpnet",
    modules={
        **{k: v for k, v in BERT.modules.items() if "token_type" not in k},
        **one(stack__relative__table="encoder.relative_attention_bias"),
    },
    blocks={
        **BERT.blocks,
        "attention": one(
            attention__query="attention.attn.q",
            attention__key="attention.attn.k",
            attention__value="attention.attn.v",
            attention__out="attention.attn.o",
            norm="attention.LayerNorm",
        ),
    },
    heads=by_head(
        one(dense="classifier.dense", out="classifier.out_proj"),
        choice=one(dense="mpnet.pooler.dense", out="classifier"),
    ),
    ignored=(*BUFFERS, POOLER, r"lm_head\..*"),
    defaults={
        **BERT.defaults,
        "pad_token_id": 1,
        "type_vocab_size": 0,
        "relative_attention_num_buckets": 32,
    },
    read=read_mpnet,
)

LONGEST = 512
"""Tokens of a pair: XLNet has no table that would bound them, and learnt with so many."""
_XLNET_NAMES = {
    "d_model": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "d_inner": "intermediate_size",
    "ff_activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
}


def read_xlnet(config: Config) -> EncoderSpec:
    """The encoder of an XLNet config: one stream, every token seeing every other."""
    if config["attn_type"] != "bi":
        raise config.refused("attn_type", "'bi'")
    if config["bi_data"]:
        raise config.refused("bi_data", "false")
    renamed = {ours: config.get(theirs) for theirs, ours in _XLNET_NAMES.items()}
    dropout = renamed["hidden_dropout_prob"]
    renamed |= {"attention_probs_dropout_prob": dropout, "max_position_embeddings": LONGEST}
    options = Config({**config, **renamed, "type_vocab_size": 0})
    clamp = config.size("clamp_len", least=-1)
    encoder = post_norm(options, Segmented(**options.heads(), clamp=max(clamp, 0)))
    return replace(encoder, embedding=replace(encoder.embedding, positions=0, norm=None))


def xlnet_head(config: Config, kind: HeadKind) -> HeadSpec:
    """A head that reads the last token, the classification token, through a layer of its own."""
    if kind == "span":
        return HeadSpec(kind=kind)
    if config["summary_type"] != "last" or not config["summary_use_proj"]:
        raise config.refused("summary_type", "'last' with summary_use_proj")
    dense = HeadDense(activation=config.activation("summary_activation"))
    return HeadSpec(kind=kind, dense=dense, pooling="last")


def plain_matrices(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """XLNet's attention with matrices: its own have an axis for heads, and no suffix."""
    plain = {}
    for name, tensor in tensors.items():
        if re.fullmatch(r".*rel_attn\.[qkvor]", name):
            matrix = tensor.flatten(1)
            plain[f"{name}.weight"] = matrix if name.endswith("o") else matrix.T.contiguous()
        else:
            plain[name] = tensor
    return plain


_SUMMARY = one(dense="sequence_summary.summary", out="logits_proj")
XLNET = Family(
    name="xlnet",
    title="XLNet",
    prefix="transformer",
    modules=one(embedding__tokens="word_embedding"),
    layers=numbered("layer"),
    blocks={
        "attention": one(
            attention__query="rel_attn.q",
            attention__key="rel_attn.k",
            attention__value="rel_attn.v",
            attention__out="rel_attn.o",
            attention__distance="rel_attn.r",
            attention__content="rel_attn.r_w_bias",
            attention__place="rel_attn.r_r_bias",
            attention__segment="rel_attn.r_s_bias",
            attention__segments="rel_attn.seg_embed",
            norm="rel_attn.layer_norm",
        ),
        "ffn": one(up="ff.layer_1", down="ff.layer_2", norm="ff.layer_norm"),
    },
    heads=by_head(_SUMMARY),
    ignored=(*BUFFERS, r"(transformer\.)?mask_emb", r"lm_loss\..*"),
    defaults={
        "ff_activation": "gelu",
        "dropout": 0.1,
        "layer_norm_eps": 1e-12,
        "attn_type": "bi",
        "bi_data": False,
        "clamp_len": -1,
        "pad_token_id": 5,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
    },
    read=read_xlnet,
    read_head=xlnet_head,
    plain=plain_matrices,
)
FAMILIES = (XLNET, MPNET)
