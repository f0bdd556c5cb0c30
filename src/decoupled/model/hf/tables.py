"""The names of tensors, one table per family: a module of theirs ↔ the modules of ours it holds.

Where several of ours stand behind one of theirs (ModernBERT's `Wqkv`), theirs is ours joined along
the rows, in that order. Weights and biases carry the same suffix on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from decoupled.model.parts.head import HeadKind

Modules: TypeAlias = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Names:
    """Where a family keeps its tensors."""

    prefix: str
    """Name of the encoder inside a model with a head; a bare encoder has none."""
    encoder: Modules
    layer: str
    """Name of a layer inside the encoder, with `{layer}`, or `{group}` and `{inner}`."""
    attention: Modules
    """Inside a layer: the modules of ours in its attention slot."""
    ffn: Modules
    """Inside a layer: the modules of ours in its feed-forward slot."""
    heads: Mapping[HeadKind, Modules]
    ignored: tuple[str, ...]
    """Patterns of tensors that no head of ours reads: objectives of pre-training, poolers."""


def _one(**modules: str) -> Modules:
    """Ours by keyword (dots as double underscores), theirs by value."""
    return {theirs: (ours.replace("__", "."),) for ours, theirs in modules.items()}


def _every(
    pooled: Modules, span: Modules, choice: Modules | None = None
) -> Mapping[HeadKind, Modules]:
    return {"rank": pooled, "classes": pooled, "choice": choice or pooled, "span": span}


_BUFFERS = (r"(.*\.)?position_ids", r"(.*\.)?token_type_ids")
_POOLER = r"(.*\.)?pooler\..*"
_QA = _one(out="qa_outputs")

_BERT_EMBEDDING = _one(
    embedding__tokens="embeddings.word_embeddings",
    embedding__positions="embeddings.position_embeddings",
    embedding__types="embeddings.token_type_embeddings",
    embedding__norm="embeddings.LayerNorm",
)
_BERT_ATTENTION = _one(
    attention__query="attention.self.query",
    attention__key="attention.self.key",
    attention__value="attention.self.value",
    attention__out="attention.output.dense",
    norm="attention.output.LayerNorm",
)
_BERT_FFN = _one(up="intermediate.dense", down="output.dense", norm="output.LayerNorm")

BERT = Names(
    prefix="bert",
    encoder=_BERT_EMBEDDING,
    layer="encoder.layer.{layer}",
    attention=_BERT_ATTENTION,
    ffn=_BERT_FFN,
    heads=_every(_one(dense="bert.pooler.dense", out="classifier"), _QA),
    ignored=(*_BUFFERS, _POOLER, r"cls\..*"),
)

ROBERTA = Names(
    prefix="roberta",
    encoder=_BERT_EMBEDDING,
    layer="encoder.layer.{layer}",
    attention=_BERT_ATTENTION,
    ffn=_BERT_FFN,
    heads=_every(
        _one(dense="classifier.dense", out="classifier.out_proj"),
        _QA,
        _one(dense="roberta.pooler.dense", out="classifier"),
    ),
    ignored=(*_BUFFERS, _POOLER, r"lm_head\..*"),
)

ELECTRA = Names(
    prefix="electra",
    encoder={**_BERT_EMBEDDING, **_one(embedding__project="embeddings_project")},
    layer="encoder.layer.{layer}",
    attention=_BERT_ATTENTION,
    ffn=_BERT_FFN,
    heads=_every(
        _one(dense="classifier.dense", out="classifier.out_proj"),
        _QA,
        _one(dense="sequence_summary.summary", out="classifier"),
    ),
    ignored=(*_BUFFERS, r"(discriminator|generator)_predictions\..*", r"generator_lm_head\..*"),
)

DISTILBERT = Names(
    prefix="distilbert",
    encoder=_BERT_EMBEDDING,
    layer="transformer.layer.{layer}",
    attention=_one(
        attention__query="attention.q_lin",
        attention__key="attention.k_lin",
        attention__value="attention.v_lin",
        attention__out="attention.out_lin",
        norm="sa_layer_norm",
    ),
    ffn=_one(up="ffn.lin1", down="ffn.lin2", norm="output_layer_norm"),
    heads=_every(_one(dense="pre_classifier", out="classifier"), _QA),
    ignored=(*_BUFFERS, r"vocab_(transform|layer_norm|projector)\..*"),
)

ALBERT = Names(
    prefix="albert",
    encoder={**_BERT_EMBEDDING, **_one(embedding__project="encoder.embedding_hidden_mapping_in")},
    layer="encoder.albert_layer_groups.{group}.albert_layers.{inner}",
    attention=_one(
        attention__query="attention.query",
        attention__key="attention.key",
        attention__value="attention.value",
        attention__out="attention.dense",
        norm="attention.LayerNorm",
    ),
    ffn=_one(up="ffn", down="ffn_output", norm="full_layer_layer_norm"),
    heads=_every(_one(dense="albert.pooler", out="classifier"), _QA),
    ignored=(*_BUFFERS, _POOLER, r"predictions\..*", r"sop_classifier\..*"),
)

MODERNBERT = Names(
    prefix="model",
    encoder=_one(
        embedding__tokens="embeddings.tok_embeddings",
        embedding__norm="embeddings.norm",
        stack__norm="final_norm",
    ),
    layer="layers.{layer}",
    attention={
        "attn.Wqkv": ("attention.query", "attention.key", "attention.value"),
        **_one(attention__out="attn.Wo", norm="attn_norm"),
    },
    ffn={"mlp.Wi": ("up", "gate"), **_one(down="mlp.Wo", norm="mlp_norm")},
    heads=_every(
        _one(dense="head.dense", norm="head.norm", out="classifier"),
        _one(dense="head.dense", norm="head.norm", out="classifier"),
    ),
    ignored=(*_BUFFERS, r"head\..*", r"decoder\..*"),
)

DEBERTA = Names(
    prefix="deberta",
    encoder={
        **_BERT_EMBEDDING,
        **_one(
            embedding__project="embeddings.embed_proj",
            stack__relative__table="encoder.rel_embeddings",
            stack__relative__norm="encoder.LayerNorm",
        ),
    },
    layer="encoder.layer.{layer}",
    attention=_one(
        attention__query="attention.self.query_proj",
        attention__key="attention.self.key_proj",
        attention__value="attention.self.value_proj",
        attention__relative_key="attention.self.pos_key_proj",
        attention__relative_query="attention.self.pos_query_proj",
        attention__out="attention.output.dense",
        norm="attention.output.LayerNorm",
    ),
    ffn=_BERT_FFN,
    heads=_every(_one(dense="pooler.dense", out="classifier"), _QA),
    ignored=(
        *_BUFFERS,
        _POOLER,
        r"cls\..*",
        r"(lm|mask)_predictions\..*",
        # Version 3 keeps the table of its pre-training decoder, which its encoder does not read.
        r"(deberta\.)?embeddings\.position_embeddings\.weight",
    ),
)
