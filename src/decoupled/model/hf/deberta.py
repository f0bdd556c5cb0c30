"""DeBERTa v2 and v3: post-norm layers whose attention reads a table of relative positions."""

from dataclasses import replace
from typing import Literal

from decoupled.errors import SpecError
from decoupled.model.hf.bert import BERT, dense_head, post_norm
from decoupled.model.hf.family import Config, by_head, one
from decoupled.model.jsonable import to_json
from decoupled.model.parts.attention import Attention, Disentangled, RelativeSpec, SelfAttention
from decoupled.model.parts.head import HeadKind, HeadSpec
from decoupled.model.spec import EncoderSpec

_TERMS: tuple[Literal["c2p", "p2c"], ...] = ("c2p", "p2c")


def read_deberta(config: Config) -> EncoderSpec:
    """The encoder of a DeBERTa v2 or v3 config."""
    if (config["conv_kernel_size"] or 0) > 0:
        raise config.refused("conv_kernel_size", "0")
    attention = _read_attention(config)
    encoder = post_norm(config, attention)
    narrow = config.get("embedding_size")
    # Unlike ELECTRA, DeBERTa widens narrow tables before the norm and without a bias.
    embedding = replace(encoder.embedding, width=encoder.width if narrow is None else narrow)
    if embedding.width != encoder.width:
        embedding = replace(embedding, project="before_norm", project_bias=False)
    if not config["position_biased_input"]:
        embedding = replace(embedding, positions=0)
    relative = None
    if attention.relative:
        named = [part.strip() for part in str(config["norm_rel_ebd"]).lower().split("|")]
        norm = encoder.layers[0].norm if "layer_norm" in named else None
        # Distances run from -buckets to buckets - 1, hence two rows for each bucket.
        relative = RelativeSpec(rows=2 * to_json(attention)["buckets"], norm=norm)
    return replace(encoder, embedding=embedding, relative=relative)


def _read_attention(config: Config) -> Attention:
    shape, terms = config.heads(), _read_terms(config)
    if config.get("attention_head_size") not in (None, shape["head_width"]):
        raise config.refused("attention_head_size", str(shape["head_width"]))
    if not config["relative_attention"]:
        if terms:
            raise SpecError(
                f"config.json has relative_attention=false and pos_att_type={list(terms)}, "
                "which scales scores for terms that are not there; expected both or neither: "
                "use another checkpoint"
            )
        return SelfAttention(**shape)
    if not terms:
        both = "'c2p', 'p2c' or both where relative_attention is true"
        raise config.refused("pos_att_type", both)
    buckets = config.size("position_buckets", least=-1)
    distance = config.size("max_relative_positions", least=-1)
    # transformers writes -1 where the limit is the longest sequence.
    if distance < 1:
        distance = config.size("max_position_embeddings")
    return Disentangled(
        **shape,
        terms=terms,
        # Without buckets every distance has a row of its own: max_distance=0 means linear.
        buckets=buckets if buckets > 0 else distance,
        max_distance=distance if buckets > 0 else 0,
        shared=bool(config["share_att_key"]),
    )


def _read_terms(config: Config) -> tuple[Literal["c2p", "p2c"], ...]:
    kinds = config["pos_att_type"] or ()
    names = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    names = [name.strip() for name in names if name.strip()]
    if not set(names) <= set(_TERMS):
        raise config.refused("pos_att_type", "'c2p', 'p2c' or both")
    # In the canonical order, whatever the config's: the spec must not depend on spelling.
    return tuple(term for term in _TERMS if term in names)


def deberta_head(config: Config, kind: HeadKind) -> HeadSpec:
    """A head that reads the first token through the pooler; a span head reads every token as it is."""
    if kind == "span":
        return HeadSpec(kind=kind)
    return dense_head(config.activation("pooler_hidden_act"))(config, kind)


DEBERTA = replace(
    BERT,
    name="deberta-v2",
    title="DebertaV2",
    prefix="deberta",
    modules={
        **BERT.modules,
        **one(
            embedding__project="embeddings.embed_proj",
            stack__relative__table="encoder.rel_embeddings",
            stack__relative__norm="encoder.LayerNorm",
        ),
    },
    blocks={
        **BERT.blocks,
        "attention": one(
            attention__query="attention.self.query_proj",
            attention__key="attention.self.key_proj",
            attention__value="attention.self.value_proj",
            attention__relative_key="attention.self.pos_key_proj",
            attention__relative_query="attention.self.pos_query_proj",
            attention__out="attention.output.dense",
            norm="attention.output.LayerNorm",
        ),
    },
    heads=by_head(one(dense="pooler.dense", out="classifier")),
    ignored=(
        *BERT.ignored,
        r"(lm|mask)_predictions\..*",
        # Version 3 keeps the table of its pre-training decoder, which its encoder does not read.
        r"(deberta\.)?embeddings\.position_embeddings\.weight",
    ),
    defaults={
        **BERT.defaults,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": False,
        "max_relative_positions": -1,
        "position_buckets": -1,
        "position_biased_input": True,
        "pos_att_type": (),
        "share_att_key": False,
        "norm_rel_ebd": "none",
        "conv_kernel_size": 0,
        "pooler_hidden_act": "gelu",
    },
    read=read_deberta,
    read_head=deberta_head,
)
