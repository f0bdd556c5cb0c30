"""Tiny random decoders with a byte-level tokenizer that merges punctuation and newlines, as Qwen's does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from decoupled.model.prompts import TEMPLATES, Template
from tiny import WORDS, randomise

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<bos>", "<think>", "</think>")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma": "Gemma"}
PASSAGES = (
    "Dracula is a novel that the Irish writer Bram Stoker published in 1897.",
    "  The tower of Paris opened in 1889; it is 330 metres high\n",
    "rain?",
    "A long story of a king, a queen and their castle by the sea. " * 4,
)
QUERIES = ("who wrote Dracula?", "how high is the tower", "ghosts & kings!")
AFTER = Template(
    pieces=("<|im_start|>", "Document: {passage}\n", "Query: {query}\n", "Relevant:"),
    score=("yes", "no"),
)
"""A prompt of our own that reads the passage first."""
BEFORE = Template(pieces=("Query: {query}\n", "Document: {passage}\n", "Answer:"), score=("Yes",))
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3": (
        "llama",
        {
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen2": ("qwen2", {"tie_word_embeddings": True, "head_dim": ...}),
    "qwen3": ("qwen3", {"head_dim": 16, "rms_norm_eps": 1e-5}),
    "gemma": ("gemma", {"head_dim": 16, "num_key_value_heads": 1}),
}
"""Family and options, by what is special about them; an ellipsis leaves a default of the tests out."""
VOCAB = 1000


def decoder_tokenizer() -> Tokenizer:
    """Byte-level BPE over the words of the templates and of the samples."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    pieces = [piece for template in TEMPLATES.values() for piece in template.pieces]
    texts = ["yes no Yes No 0 1 .\n ?\n", *pieces, *PASSAGES, *QUERIES]
    ends = [f"{word}.\n{word}?\nyes" for word in WORDS]
    tokenizer.train_from_iterator([*texts, *ends] * 3, trainer)
    return tokenizer


def save_decoder(
    folder: Path, family: str, template: Template = AFTER, seed: int = 0, **options: Any
) -> transformers.PreTrainedModel:
    """Write a random decoder with tokenizer and template, and return it: in eval mode, fp32."""
    fields: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "max_position_embeddings": 1024,
        "num_labels": 1,
    }
    config = getattr(transformers, f"{CLASSES[family]}Config")(**{**fields, **options})
    task = "ForCausalLM" if template.score else "ForSequenceClassification"
    model = getattr(transformers, CLASSES[family] + task)(config).eval()
    randomise(model, seed)
    model.save_pretrained(folder)
    decoder_tokenizer().save(str(folder / "tokenizer.json"))
    written = {"pieces": template.pieces, "score": template.score}
    (folder / "template.json").write_text(json.dumps(written))
    return model


def save_variant(
    folder: Path, name: str, template: Template = AFTER
) -> transformers.PreTrainedModel:
    """Write a random decoder of that variant, and return it."""
    family, options = VARIANTS[name]
    kept = {key: value for key, value in options.items() if value is not ...}
    return save_decoder(folder, family, template, **kept)


def prompt_ids(tokenizer: Tokenizer, pieces: Sequence[str], query: str, passage: str) -> list[int]:
    """The ids of a prompt whose pieces are tokenised one by one, as published code does it."""
    filled = [p.replace("{query}", query).replace("{passage}", passage) for p in pieces]
    return [i for p in filled for i in tokenizer.encode(p, add_special_tokens=False).ids]


@torch.no_grad()
def reference_score(
    model: transformers.PreTrainedModel, tokenizer: Tokenizer, template: Template, ids: list[int]
) -> float:
    """What `transformers` says of a prompt: the logits of the score's tokens, or its value."""
    logits = model(torch.tensor([ids])).logits
    if not template.score:
        return float(logits[0, 0])
    tokens = [
        t if isinstance(t, int) else tokenizer.encode(t, add_special_tokens=False).ids[0]
        for t in template.score
    ]
    last = logits[0, -1, tokens]
    return float(last[0] - last[1] if len(tokens) == 2 else last[0])
