"""The families of encoders: a Hugging Face config ↔ our spec, beside the table of their tensors.

Reading refuses what the encoder cannot compute. Writing checks nothing: whoever writes a config
reads it back and compares, which finds everything that the family cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from decoupled.errors import SpecError
from decoupled.model.hf import deberta, modernbert, postnorm, tables
from decoupled.model.hf.options import Config, check_options, labels
from decoupled.model.hf.tables import Names
from decoupled.model.parts.head import HeadKind, HeadSpec
from decoupled.model.spec import EncoderSpec, ModelSpec

_CLASSES: dict[HeadKind, str] = {
    "rank": "ForSequenceClassification",
    "classes": "ForSequenceClassification",
    "span": "ForQuestionAnswering",
    "choice": "ForMultipleChoice",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type`: how its configs are read and written, and where its tensors are."""

    name: str
    title: str
    """First part of the names of its classes."""
    names: Names
    defaults: Config
    """What an option that config.json leaves out means."""
    read: Callable[[Config], EncoderSpec]
    read_head: Callable[[Config, HeadKind], HeadSpec]
    write: Callable[[ModelSpec], dict[str, Any]]

    def complete(self, config: Config) -> Config:
        """The config with the family's defaults for what it leaves out; a null is not left out."""
        return {**self.defaults, **config}

    def encoder(self, config: Config) -> EncoderSpec:
        """The encoder that a config describes."""
        check_options(config)
        return self.read(self.complete(config))

    def head(self, config: Config, architecture: str) -> HeadSpec | None:
        """The head of a class of models; None for one that has no head of ours."""
        found: HeadKind | None = next(
            (k for k, n in _CLASSES.items() if architecture.endswith(n)), None
        )
        if found is None:
            return None
        classes = labels(config)
        kind: HeadKind = "classes" if found == "rank" and len(classes) > 1 else found
        head = self.read_head(self.complete(config), kind)
        return replace(head, labels=classes) if kind == "classes" else head

    def architecture(self, heads: Sequence[HeadSpec]) -> str:
        """The class that loads a model with that head."""
        return self.title + (_CLASSES[heads[0].kind] if heads else "Model")

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        """The config.json of a model with at most one head."""
        config: dict[str, Any] = {
            "architectures": [self.architecture(spec.heads)],
            "model_type": self.name,
            "dtype": "float32",
            "vocab_size": spec.encoder.embedding.vocab,
            "pad_token_id": spec.text.pad,
            **self.write(spec),
        }
        for head in spec.heads:
            named = {"rank": ("LABEL_0",), "classes": head.labels}.get(
                head.kind, ("LABEL_0", "LABEL_1")
            )
            config["id2label"] = {str(i): label for i, label in enumerate(named)}
            config["label2id"] = {label: i for i, label in enumerate(named)}
        return config

    def layer_names(self, config: Config, count: int) -> list[str]:
        """Name of the module that holds each of `count` layers; ALBERT's layers share theirs."""
        if "{group}" not in self.names.layer:
            return [self.names.layer.format(layer=i) for i in range(count)]
        full = self.complete(config)
        places = postnorm.albert_places(count, full["num_hidden_groups"], full["inner_group_num"])
        return [self.names.layer.format(group=group, inner=inner) for group, inner in places]


_BERT_DEFAULTS: Config = {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}

BERT = Family(
    name="bert",
    title="Bert",
    names=tables.BERT,
    defaults=_BERT_DEFAULTS,
    read=postnorm.read_bert,
    read_head=postnorm.pooler_head,
    write=postnorm.write_bert,
)

ROBERTA = Family(
    name="roberta",
    title="Roberta",
    names=tables.ROBERTA,
    defaults={**_BERT_DEFAULTS, "pad_token_id": 1},
    read=postnorm.read_roberta,
    read_head=postnorm.pooler_head,
    write=postnorm.write_roberta,
)

XLM_ROBERTA = replace(ROBERTA, name="xlm-roberta", title="XLMRoberta")

ELECTRA = Family(
    name="electra",
    title="Electra",
    names=tables.ELECTRA,
    defaults={
        **_BERT_DEFAULTS,
        "embedding_size": 128,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    },
    read=postnorm.read_electra,
    read_head=postnorm.electra_head,
    write=postnorm.write_electra,
)

DISTILBERT = Family(
    name="distilbert",
    title="DistilBert",
    names=tables.DISTILBERT,
    defaults={"activation": "gelu", "dropout": 0.1, "attention_dropout": 0.1},
    read=postnorm.read_distilbert,
    read_head=postnorm.distilbert_head,
    write=postnorm.write_distilbert,
)

ALBERT = Family(
    name="albert",
    title="Albert",
    names=tables.ALBERT,
    defaults={
        **_BERT_DEFAULTS,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "embedding_size": 128,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
    },
    read=postnorm.read_albert,
    read_head=postnorm.pooler_head,
    write=postnorm.write_albert,
)

MODERNBERT = Family(
    name="modernbert",
    title="ModernBert",
    names=tables.MODERNBERT,
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
        "global_rope_theta": modernbert.GLOBAL_THETA,
        "classifier_pooling": "cls",
        "classifier_bias": False,
        "classifier_activation": "gelu",
    },
    read=modernbert.read_modernbert,
    read_head=modernbert.modernbert_head,
    write=modernbert.write_modernbert,
)

DEBERTA = Family(
    name="deberta-v2",
    title="DebertaV2",
    names=tables.DEBERTA,
    defaults={
        **_BERT_DEFAULTS,
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
    read=deberta.read_deberta,
    read_head=deberta.deberta_head,
    write=deberta.write_deberta,
)

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (BERT, ROBERTA, XLM_ROBERTA, ELECTRA, DISTILBERT, ALBERT, MODERNBERT, DEBERTA)
}


def family_of(model_type: object) -> Family:
    """The family of that `model_type`, or an error that lists those there are."""
    family = FAMILIES.get(str(model_type))
    if family is None:
        raise SpecError(
            f"config.json has model_type={model_type!r}, which is no known family; "
            f"expected one of {', '.join(FAMILIES)}: use a checkpoint of one of them"
        )
    return family
