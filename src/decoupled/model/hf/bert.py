"""BERT, RoBERTa, ELECTRA, DistilBERT and ALBERT: post-norm layers over learned positions."""

from collections.abc import Callable
from dataclasses import replace

from decoupled.model.hf.family import BUFFERS, POOLER, Config, Family, by_head, numbered, one
from decoupled.model.parts.attention import Attention, SelfAttention
from decoupled.model.parts.embedding import EmbeddingSpec
from decoupled.model.parts.feed_forward import Activation, FeedForwardSpec
from decoupled.model.parts.head import HeadDense, HeadKind, HeadSpec
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.norm import NormSpec
from decoupled.model.spec import DropoutSpec, EncoderSpec


def post_norm(config: Config, attention: Attention) -> EncoderSpec:
    """Post-norm layers with the given attention, over learned positions."""
    width, rows = config.size("hidden_size"), config.size("max_position_embeddings")
    norm = NormSpec(eps=config.number("layer_norm_eps"))
    ffn = FeedForwardSpec(
        width=config.size("intermediate_size"), activation=config.activation("hidden_act")
    )
    layer = LayerSpec(attention=attention, ffn=ffn, attention_slot=0, ffn_slot=0, norm=norm)
    return EncoderSpec(
        width=width,
        embedding=EmbeddingSpec(
            vocab=config.size("vocab_size"),
            width=width,
            positions=rows,
            types=config.size("type_vocab_size", least=0),
            norm=norm,
        ),
        layers=tuple(layer.in_slot(i) for i in range(config.size("num_hidden_layers"))),
        dropout=DropoutSpec(
            hidden=config.number("hidden_dropout_prob"),
            attention=config.number("attention_probs_dropout_prob"),
        ),
        max_tokens=rows,
    )


def dense_head(activation: Activation) -> Callable[[Config, HeadKind], HeadSpec]:
    """A head that reads the first token through a linear layer with that activation; spans have none."""
    dense = HeadDense(activation=activation)
    return lambda config, kind: HeadSpec(kind=kind, dense=None if kind == "span" else dense)


def read_bert(config: Config) -> EncoderSpec:
    """The encoder of a BERT config; the other families of this module start from it."""
    return post_norm(config, SelfAttention(**config.heads()))


BERT = Family(
    name="bert",
    title="Bert",
    prefix="bert",
    modules=one(
        embedding__tokens="embeddings.word_embeddings",
        embedding__positions="embeddings.position_embeddings",
        embedding__types="embeddings.token_type_embeddings",
        embedding__norm="embeddings.LayerNorm",
    ),
    layers=numbered("encoder.layer"),
    blocks={
        "attention": one(
            attention__query="attention.self.query",
            attention__key="attention.self.key",
            attention__value="attention.self.value",
            attention__out="attention.output.dense",
            norm="attention.output.LayerNorm",
        ),
        "ffn": one(up="intermediate.dense", down="output.dense", norm="output.LayerNorm"),
    },
    heads=by_head(one(dense="bert.pooler.dense", out="classifier")),
    ignored=(*BUFFERS, POOLER, r"cls\..*"),
    defaults={
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    },
    read=read_bert,
    read_head=dense_head("tanh"),
)


def read_roberta(config: Config) -> EncoderSpec:
    """The encoder of a RoBERTa config: BERT whose position rows start after the padding id."""
    encoder = read_bert(config)
    # Rows 0..pad of the position table are never read: position 0 is row pad + 1.
    start = config.size("pad_token_id", least=0) + 1
    embedding = replace(encoder.embedding, position_start=start)
    return replace(encoder, embedding=embedding, max_tokens=encoder.max_tokens - start)


ROBERTA = replace(
    BERT,
    name="roberta",
    title="Roberta",
    prefix="roberta",
    heads=by_head(
        one(dense="classifier.dense", out="classifier.out_proj"),
        choice=one(dense="roberta.pooler.dense", out="classifier"),
    ),
    ignored=(*BUFFERS, POOLER, r"lm_head\..*"),
    defaults={**BERT.defaults, "pad_token_id": 1},
    read=read_roberta,
)
XLM_ROBERTA = replace(ROBERTA, name="xlm-roberta", title="XLMRoberta")


def read_electra(config: Config) -> EncoderSpec:
    """The encoder of an ELECTRA config: BERT whose tables may be narrower than its layers."""
    encoder, narrow = read_bert(config), config.size("embedding_size")
    if narrow == encoder.width:
        return encoder
    embedding = replace(encoder.embedding, width=narrow, project="after_norm")
    return replace(encoder, embedding=embedding)


def electra_head(config: Config, kind: HeadKind) -> HeadSpec:
    """The head of an ELECTRA checkpoint: gelu, or for choices the activation that its config names."""
    if kind != "choice":
        return dense_head("gelu")(config, kind)
    if config["summary_type"] != "first":
        raise config.refused("summary_type", "'first'")
    if not config["summary_use_proj"]:
        raise config.refused("summary_use_proj", "true")
    return dense_head(config.activation("summary_activation"))(config, kind)


ELECTRA = replace(
    BERT,
    name="electra",
    title="Electra",
    prefix="electra",
    modules={**BERT.modules, **one(embedding__project="embeddings_project")},
    heads=by_head(
        one(dense="classifier.dense", out="classifier.out_proj"),
        choice=one(dense="sequence_summary.summary", out="classifier"),
    ),
    ignored=(*BUFFERS, r"(discriminator|generator)_predictions\..*", r"generator_lm_head\..*"),
    defaults={
        **BERT.defaults,
        "embedding_size": 128,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    },
    read=read_electra,
    read_head=electra_head,
)


_DISTILBERT_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}


def read_distilbert(config: Config) -> EncoderSpec:
    """The encoder of a DistilBERT config: BERT without token types, under other option names."""
    renamed = {ours: config.get(theirs) for theirs, ours in _DISTILBERT_NAMES.items()}
    # transformers writes this eps into DistilBERT's code and not into its config.
    return read_bert(Config({**config, **renamed, "type_vocab_size": 0, "layer_norm_eps": 1e-12}))


DISTILBERT = replace(
    BERT,
    name="distilbert",
    title="DistilBert",
    prefix="distilbert",
    layers=numbered("transformer.layer"),
    blocks={
        "attention": one(
            attention__query="attention.q_lin",
            attention__key="attention.k_lin",
            attention__value="attention.v_lin",
            attention__out="attention.out_lin",
            norm="sa_layer_norm",
        ),
        "ffn": one(up="ffn.lin1", down="ffn.lin2", norm="output_layer_norm"),
    },
    heads=by_head(one(dense="pre_classifier", out="classifier")),
    ignored=(*BUFFERS, r"vocab_(transform|layer_norm|projector)\..*"),
    defaults={"activation": "gelu", "dropout": 0.1, "attention_dropout": 0.1},
    read=read_distilbert,
    read_head=dense_head("relu"),
)


def albert_places(count: int, groups: int, inner: int) -> list[tuple[int, int]]:
    """Group, and layer within the group, of each of `count` layers."""
    rounds = count // inner
    # The float division is that of transformers' own ALBERT: uneven groups must round as it does.
    return [(int(i / (rounds / groups)), j) for i in range(rounds) for j in range(inner)]


def albert_layers(config: Config, count: int) -> list[str]:
    """Names of the modules that hold each of `count` layers; several layers may share one module."""
    places = albert_places(count, config["num_hidden_groups"], config["inner_group_num"])
    return [f"encoder.albert_layer_groups.{group}.albert_layers.{i}" for group, i in places]


def read_albert(config: Config) -> EncoderSpec:
    """The encoder of an ALBERT config: layers share slots, and narrow tables are always widened."""
    encoder, width = read_bert(config), config.size("embedding_size")
    inner, groups = config.size("inner_group_num"), config.size("num_hidden_groups")
    places = albert_places(len(encoder.layers) * inner, groups, inner)
    return replace(
        encoder,
        embedding=replace(encoder.embedding, width=width, project="after_norm"),
        layers=tuple(encoder.layers[0].in_slot(group * inner + i) for group, i in places),
    )


ALBERT = replace(
    BERT,
    name="albert",
    title="Albert",
    prefix="albert",
    modules={**BERT.modules, **one(embedding__project="encoder.embedding_hidden_mapping_in")},
    layers=albert_layers,
    blocks={
        "attention": one(
            attention__query="attention.query",
            attention__key="attention.key",
            attention__value="attention.value",
            attention__out="attention.dense",
            norm="attention.LayerNorm",
        ),
        "ffn": one(up="ffn", down="ffn_output", norm="full_layer_layer_norm"),
    },
    heads=by_head(one(dense="albert.pooler", out="classifier")),
    ignored=(*BUFFERS, POOLER, r"predictions\..*", r"sop_classifier\..*"),
    defaults={
        **BERT.defaults,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "embedding_size": 128,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
    },
    read=read_albert,
)

FAMILIES = (BERT, ROBERTA, XLM_ROBERTA, ELECTRA, DISTILBERT, ALBERT)
