"""Tiny random checkpoints of every family and tiny real tokenizers, made in memory, no network.

`save_tiny` writes what `transformers` writes for a random model, and returns that model as the
reference; `tiny_tokenizer` puts a tokenizer beside it. All ids of a tiny tokenizer are below VOCAB,
the default vocabulary of a tiny model, and its padding id is the family's.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

Task = Literal["rank", "classes", "span", "choice", "bare", "mlm"]
TokenizerKind = Literal["wordpiece", "bpe", "unigram", "last"]

VOCAB = 1000
LABELS = ("contradiction", "entailment", "neutral")

FAMILIES: dict[str, str] = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "electra": "Electra",
    "distilbert": "DistilBert",
    "albert": "Albert",
    "modernbert": "ModernBert",
    "deberta-v2": "DebertaV2",
    "xlnet": "XLNet",
    "mpnet": "MPNet",
}
"""Model type to the prefix of its classes in `transformers`."""
TORCH_ONLY = ("mpnet", "xlnet")
"""Families whose attention the other runtimes decline by name."""

CLASSES: dict[Task, str] = {
    "rank": "ForSequenceClassification",
    "classes": "ForSequenceClassification",
    "span": "ForQuestionAnswering",
    "choice": "ForMultipleChoice",
    "bare": "Model",
    "mlm": "ForMaskedLM",
}

XLNET_CLASSES: dict[Task, str] = {"span": "ForQuestionAnsweringSimple", "mlm": "LMHeadModel"}
"""XLNet's reader of answers is otherwise a search with a beam."""

TOKENIZER_OF: dict[str, TokenizerKind] = {
    "bert": "wordpiece",
    "electra": "wordpiece",
    "distilbert": "wordpiece",
    "albert": "wordpiece",
    "modernbert": "wordpiece",
    "deberta-v2": "wordpiece",
    "roberta": "bpe",
    "xlm-roberta": "unigram",
    "mpnet": "bpe",
    "xlnet": "last",
}
"""A tokenizer whose special ids and pair template suit the family's tiny config."""

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 96,
    "initializer_range": 0.25,
}

_FAMILY: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"max_position_embeddings": 98, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "xlm-roberta": {"max_position_embeddings": 98, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "electra": {"embedding_size": 16},
    "distilbert": {},
    "albert": {"embedding_size": 16, "num_hidden_layers": 4},
    "modernbert": {
        "num_hidden_layers": 4,
        "local_attention": 8,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    },
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
        "max_relative_positions": -1,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
    },
    "xlnet": {"pad_token_id": 1},
    "mpnet": {"max_position_embeddings": 98},
}


def tiny_config(family: str, **overrides: Any) -> transformers.PretrainedConfig:
    """A config of that family small enough for a test; any of its fields can be overridden."""
    fields = {**_COMMON, **_FAMILY[family], **overrides}
    if family == "distilbert":
        names = {
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
        }
        fields = {names.get(name, name): value for name, value in fields.items()}
    if family == "xlnet":
        names = {
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "d_inner",
            "hidden_dropout_prob": "dropout",
        }
        fields = {names.get(name, name): value for name, value in fields.items()}
        fields.pop("max_position_embeddings")
    return getattr(transformers, FAMILIES[family] + "Config")(**fields)


def save_tiny(
    folder: Path | str,
    family: str,
    task: Task = "rank",
    seed: int = 0,
    *,
    tokenizer: bool = False,
    **overrides: Any,
) -> transformers.PreTrainedModel:
    """Write a random checkpoint with `save_pretrained` and return the model, in eval mode, fp32.

    Biases and norms are random too: those of a fresh model are 0 and 1, and would hide a mix-up.
    """
    overrides.setdefault("num_labels", {"rank": 1, "classes": len(LABELS)}.get(task, 2))
    if task == "classes" and overrides["num_labels"] == len(LABELS):
        del overrides["num_labels"]
        overrides["id2label"] = dict(enumerate(LABELS))
        overrides["label2id"] = {label: i for i, label in enumerate(LABELS)}
    config = tiny_config(family, **overrides)
    own = XLNET_CLASSES.get(task, CLASSES[task]) if family == "xlnet" else CLASSES[task]
    model = getattr(transformers, FAMILIES[family] + own)(config).eval()
    randomise(model, seed)
    model.save_pretrained(folder)
    if tokenizer:
        tiny_tokenizer(folder, TOKENIZER_OF[family])
    return model


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int) -> None:
    """Every parameter drawn anew, norm weights around 1."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.named_parameters():
        noise = torch.randn(tensor.shape, generator=generator) * 0.25
        is_norm = "norm" in name.lower() and name.endswith("weight")
        tensor.copy_(1 + noise if is_norm else noise)


def edit_config(folder: Path, **options: Any) -> None:
    """Set options of a config.json; an ellipsis removes one."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **options}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def edit_weights(
    folder: Path,
    *,
    rename: Callable[[str], str] = str,
    drop: Iterable[str] = (),
    add: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Rewrite model.safetensors with tensors renamed, dropped and added."""
    path, gone = folder / "model.safetensors", set(drop)
    tensors = {rename(n): t.clone() for n, t in load_file(path).items() if n not in gone}
    save_file({**tensors, **(add or {})}, path, metadata={"format": "pt"})


_TEXT = """
a about after against all also an and any are as at be because been before between book both
bridge build built but by called can capital castle century church city coast count country
cross daughter death did during each east empire end england engine europe family famous father
field film first for forest found founded france french from game german ghost gold government
great had has have he her high hill his history horror house how hundred in into invented irish
is island it its journey king known lake land language large later letters life light london
long made many map may metal moon most mountain music name named near new night north novel
number of old on one opened or other out over paper paris people place planet play poem prince
published queen rain red river road scientist sea second see ship since small song south star
state station steam stone story sun than that the their them then there these they this three
through time to tower town train tree two under university up used vampire village wall war was
water were west what when where which white who whose wind winter with without woman word world
write writer written wrote year years young
"""
WORDS = tuple(_TEXT.split())


def tiny_tokenizer(folder: Path | str, kind: TokenizerKind = "wordpiece") -> Tokenizer:
    """Write tokenizer.json and tokenizer_config.json, as `AutoTokenizer` of transformers reads."""
    builders = {"wordpiece": _wordpiece, "bpe": _byte_bpe, "unigram": _unigram}
    build = {**builders, "last": _unigram_last}[kind]
    tokenizer = build()
    bert = kind == "wordpiece"
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]" if bert else "<pad>",
        unk_token="[UNK]" if bert else "<unk>",
        cls_token="[CLS]" if bert else "<s>",
        sep_token="[SEP]" if bert else "</s>",
        mask_token="[MASK]" if bert else "<mask>",
        model_input_names=["input_ids", "attention_mask"] + (["token_type_ids"] if bert else []),
        model_max_length=96,
    )
    wrapped.save_pretrained(folder)
    return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


def _wordpiece() -> Tokenizer:
    """BERT: lower-casing, `[CLS] a [SEP] b [SEP]`, types 0 and 1, padding id 0."""
    characters = string.ascii_lowercase + string.digits + string.punctuation
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [*characters, *(f"##{c}" for c in characters if c.isalnum())]
    pieces += [*WORDS, *(f"##{end}" for end in ("s", "ed", "ing", "er", "ly", "tion", "al", "en"))]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


def _byte_bpe() -> Tokenizer:
    """RoBERTa: byte-level BPE, `<s> a </s></s> b </s>`, padding id 1."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([" " + " ".join(WORDS)] * 2, trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return tokenizer


def _unigram_last() -> Tokenizer:
    """XLNet: `a </s> b </s> <s>`, the token that is classified at the end."""
    tokenizer = _unigram()
    names = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s> <s>:2", pair="$A </s> $B:1 </s>:1 <s>:2", special_tokens=names
    )
    return tokenizer


def _unigram() -> Tokenizer:
    """XLM-RoBERTa: sentence pieces, `<s> a </s></s> b </s>`, padding id 1."""
    letters = string.ascii_letters + string.digits + string.punctuation
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0)]
    pieces += [(letter, -8.0) for letter in letters]
    pieces += [(f"▁{word}", -5.0 - i / len(WORDS)) for i, word in enumerate(WORDS)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer
