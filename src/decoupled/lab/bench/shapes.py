"""What is raced: encoders of well-known shapes with random weights, and texts of a fixed number of tokens.

Speed does not depend on what the weights say, so nothing needs to be downloaded. A checkpoint is written as
Hugging Face writes one, and every contender reads that folder.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from decoupled.errors import InputError
from decoupled.model.spec import EncoderSpec, ModelSpec

VOCABULARY = 30522
QUERY_TOKENS, PASSAGE_TOKENS = 20, 150
DISTINCT = 32
"""Different passages; a longer list repeats them under other ids, which no contender makes use of."""
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """An encoder by its sizes, and where it is split."""

    name: str
    layers: int
    width: int
    heads: int
    ffn: int
    split: int = 0
    """0: a peer's own model, raced on speed alone."""
    family: str = "bert"

    def encoder(self) -> EncoderSpec:
        """The encoder, from which FLOPs are counted."""
        from decoupled.model.hf.convert import family_of

        return family_of(self.family).encoder(self.config())

    def config(self) -> dict[str, Any]:
        """The `config.json` of a ranking model of this shape."""
        common = {
            "vocab_size": VOCABULARY,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.ffn,
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "pad_token_id": 0,
        }
        if self.family == "modernbert":
            specials = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
            return {
                **common,
                **specials,
                "model_type": "modernbert",
                "architectures": ["ModernBertForSequenceClassification"],
                "max_position_embeddings": 8192,
                "classifier_pooling": "cls",
            }
        return {
            **common,
            "model_type": "bert",
            "architectures": ["BertForSequenceClassification"],
            "max_position_embeddings": 512,
            "type_vocab_size": 2,
        }


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(name="MiniLM-L6", layers=6, width=384, heads=12, ffn=1536, split=4),
        Shape(name="MiniLM-L12", layers=12, width=384, heads=12, ffn=1536, split=9),
        Shape(name="BERT-base", layers=12, width=768, heads=12, ffn=3072, split=9),
        Shape(name="BERT-large", layers=24, width=1024, heads=16, ffn=4096, split=18),
        Shape(name="TinyBERT-L2", layers=2, width=128, heads=2, ffn=512),
        Shape(name="ModernBERT-17M", layers=7, width=256, heads=4, ffn=384, family="modernbert"),
        Shape(name="tiny", layers=3, width=32, heads=4, ffn=64, split=2),
    )
}
"""`tiny` is for trying the command out; the two before it are the shapes of other products' small models."""


def shape_named(name: str) -> Shape:
    """The shape of that name, or an error that lists them."""
    if name not in SHAPES:
        raise InputError(f"shape {name!r} is unknown; choose one of {', '.join(SHAPES)}")
    return SHAPES[name]


def write_checkpoint(shape: Shape, folder: Path, seed: int = 0) -> Path:
    """A checkpoint of that shape with random weights; one that is there is left as it is."""
    if (folder / "model.safetensors").exists():
        return folder
    import torch
    from safetensors.torch import save_file

    from decoupled.model.hf.convert import family_of, links
    from decoupled.model.nn.encoder import PairEncoder
    from decoupled.model.tokens import text_spec

    folder.mkdir(parents=True, exist_ok=True)
    config, tokenizer_json = shape.config(), _tokenizer()
    family = family_of(config["model_type"])
    encoder = family.encoder(config)
    heads = family.head(config, config["architectures"][0])
    text = text_spec(tokenizer_json, max_tokens=512, types=encoder.embedding.types)
    spec = ModelSpec(family=family.name, encoder=encoder, heads=heads, text=text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        weights = PairEncoder(spec).state_dict()
    theirs = links(family, config, encoder, heads, bare=False)
    tensors = {name: torch.cat([weights[one] for one in ours]) for name, ours in theirs.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,
        **{f"{name[1:-1].lower()}_token": name for name in _SPECIAL},
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]
        if shape.family == "bert"
        else ["input_ids", "attention_mask"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def _tokenizer() -> str:
    """A tokenizer in which `w0`, `w1`… are one token each."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = [f"w{n}" for n in range(VOCABULARY - len(_SPECIAL))]
    vocab = {piece: number for number, piece in enumerate((*_SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    tokenizer.add_special_tokens(list(_SPECIAL))
    return str(tokenizer.to_str())


@dataclass(frozen=True, kw_only=True)
class Texts:
    """A passage list and queries, the same for every contender."""

    passages: tuple[str, ...]
    queries: tuple[str, ...]

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Names of the passages."""
        return tuple(f"p{n}" for n in range(len(self.passages)))


def texts(count: int, queries: int = 64, seed: int = 0) -> Texts:
    """`count` passages and some queries, of exactly as many tokens as the race has."""
    draw = np.random.default_rng(seed)

    def text(tokens: int) -> str:
        return " ".join(f"w{n}" for n in draw.integers(0, 20_000, tokens))

    distinct = [text(PASSAGE_TOKENS - 1) for _ in range(min(DISTINCT, count))]
    return Texts(
        passages=tuple(distinct[n % len(distinct)] for n in range(count)),
        queries=tuple(text(QUERY_TOKENS - 2) for _ in range(queries)),
    )
