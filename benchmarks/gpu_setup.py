"""What the GPU benchmark measures: models of the usual shapes, texts, and the work that they cost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from decoupled.model.folder import starter_model
from decoupled.model.model import Model
from decoupled.model.spec import ModelSpec, with_one_way

QUERY_TOKENS, PASSAGE_TOKENS = 20, 150


@dataclass(frozen=True, kw_only=True)
class Shape:
    """An encoder's size, and where it is split."""

    layers: int
    width: int
    heads: int
    inner: int
    split: int

    @property
    def code_width(self) -> int:
        """A quarter of the width, as the learned projection of the paper has it."""
        return self.width // 4


SHAPES = {
    "MiniLM-L6": Shape(layers=6, width=384, heads=12, inner=1536, split=4),
    "MiniLM-L12": Shape(layers=12, width=384, heads=12, inner=1536, split=9),
    "BERT-base": Shape(layers=12, width=768, heads=12, inner=3072, split=9),
    "BERT-large": Shape(layers=24, width=1024, heads=16, inner=4096, split=18),
}
TINY = Shape(layers=4, width=64, heads=2, inner=128, split=2)
"""For a dry run on a CPU."""


def save_checkpoint(folder: Path, shape: Shape, *, head: str = "rank", seed: int = 0) -> Path:
    """A checkpoint of that shape as `transformers` writes it, with the vocabulary of the starter model."""
    import transformers

    tokenizer_file = str(starter_model() / "tokenizer.json")
    vocab = len(json.loads(Path(tokenizer_file).read_text(encoding="utf-8"))["model"]["vocab"])
    config = transformers.BertConfig(
        vocab_size=vocab,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        num_labels=1 if head == "rank" else 2,
    )
    kinds = {
        "rank": transformers.BertForSequenceClassification,
        "span": transformers.BertForQuestionAnswering,
    }
    model = kinds[head](config).eval()
    randomise(model, seed)
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=tokenizer_file,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        model_max_length=512,
    ).save_pretrained(folder)
    return folder


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights that let every layer change its input as a trained one does; fresh ones hardly do."""
    draw = torch.Generator().manual_seed(seed)
    for name, tensor in model.named_parameters():
        noise = torch.randn(tensor.shape, generator=draw)
        if "norm" in name.lower():
            tensor.copy_(1 + 0.1 * noise if name.endswith("weight") else 0.1 * noise)
        elif tensor.dim() == 1:
            tensor.copy_(0.1 * noise)
        elif "embeddings" in name:
            tensor.copy_(noise)
        else:
            tensor.copy_(noise * 1.2 / tensor.shape[1] ** 0.5)


def one_way(model: Model) -> Model:
    """The same weights with passages that stay as they are wherever the head allows it."""
    return model.rebuild(with_one_way(model.spec, "auto"), {"did": "freeze"})


class Texts:
    """Texts of words that are one token each, so that their lengths are known."""

    def __init__(self, seed: int = 0) -> None:
        tokenizer = json.loads((starter_model() / "tokenizer.json").read_text(encoding="utf-8"))
        words = [
            w for w in tokenizer["model"]["vocab"] if w.isascii() and w.isalpha() and len(w) > 2
        ]
        self.words = np.asarray([w for w in words if w == w.lower()])
        self.draw = np.random.default_rng(seed)

    def text(self, words: int) -> str:
        """That many random words."""
        return " ".join(self.draw.choice(self.words, words))

    def query(self, tokens: int = QUERY_TOKENS) -> str:
        """A query of so many tokens, the two special ones included."""
        return self.text(tokens - 2)

    def passages(self, count: int, tokens: int = PASSAGE_TOKENS) -> list[str]:
        """Passages of so many tokens, the special one at the end included."""
        return [self.text(tokens - 1) for _ in range(count)]


def joint_flops(spec: ModelSpec, tokens: int, pairs: int) -> float:
    """Of the joint model over `pairs` sequences of `tokens`: products and attention of every row."""
    total = 0.0
    for layer in spec.layers:
        width, inner = spec.encoder.width, layer.attention.heads * layer.attention.head_width
        each = 8 * width * inner + 4 * width * layer.ffn.width + 4 * inner * tokens
        total += each * tokens * pairs
    return total


def cross_flops(spec: ModelSpec, pairs: int, *, code_width: int | None) -> float:
    """Of the cross component with a `rank` head, counting what cannot be left out.

    Codes of `code_width` are restored by a matrix that is folded into the first maps; None is none.
    """
    width, q, p = spec.encoder.width, QUERY_TOKENS, PASSAGE_TOKENS
    total, asks, restored, moved = 0.0, 1, code_width is None, False
    upper = spec.layers[spec.split :]
    for number, layer in enumerate(upper):
        heads, inner = layer.attention.heads, layer.attention.heads * layer.attention.head_width
        last = number == len(upper) - 1
        moves = layer.passage != "frozen" and not last
        if (moves or last) and not restored:
            total += 2 * code_width * width * pairs * p
            restored = True
        if (
            last
        ):  # first rows attend to the rows themselves: three maps of one row, no keys, no values
            total += pairs * (6 * inner * width + 4 * heads * width * (q + p))
        else:
            source = width if code_width is None or moved else code_width
            maps = 3 if moves else 2
            total += 6 * inner * asks * q * width + 2 * maps * inner * pairs * p * source
            total += 4 * inner * pairs * (q + p * moves) * (q + p)
        moving = pairs * (1 if last else q + p * moves)
        total += (2 * inner * width + 4 * width * layer.ffn.width) * moving
        asks, moved = pairs, moved or moves
    return total


def cross_bytes(spec: ModelSpec, pairs: int, *, token_bytes: int) -> float:
    """The fewest bytes that must move: weights of the cross component and codes, each read once."""
    layers = spec.layers[spec.split :]
    width = spec.encoder.width
    each = [
        4 * width * layer.attention.heads * layer.attention.head_width + 2 * width * layer.ffn.width
        for layer in layers
    ]
    return 2.0 * sum(each) + pairs * PASSAGE_TOKENS * token_bytes
