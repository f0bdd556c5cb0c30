"""Multi30k as tokens: lines of files, a joint vocabulary of byte pairs, batches that stay on the device."""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from translator import END, MOST, PAD, START

from decoupled.errors import InputError
from decoupled.model.states import Ragged
from decoupled.train.data.batches import Batch, Batches
from decoupled.train.data.examples import Examples

WAYS = 8
"""Segmentations of the training pairs under BPE-dropout; more take longer to make and differ less."""
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


def read_lines(folder: Path, name: str, language: str) -> list[str]:
    """The lines of `name.language`, perhaps compressed with xz."""
    plain = folder / f"{name}.{language}"
    packed = plain.with_name(plain.name + ".xz")
    if not plain.is_file() and not packed.is_file():
        raise InputError(
            f"{plain} is missing (also as .xz); give the folder of the data with --data"
        )
    if plain.is_file():
        text = plain.read_text(encoding="utf-8")
    else:
        with lzma.open(packed, "rt", encoding="utf-8") as file:
            text = file.read()
    return [line.strip() for line in text.rstrip("\n").split("\n")]


def read_pairs(folder: Path, name: str, languages: tuple[str, str]) -> list[tuple[str, str]]:
    """Sentences and their translations; a file of other length is refused."""
    source, target = (read_lines(folder, name, language) for language in languages)
    if len(source) != len(target):
        raise InputError(
            f"{name} has {len(source)} lines in {languages[0]} and {len(target)} in {languages[1]}; they "
            "must be translations line by line"
        )
    return list(zip(source, target, strict=True))


def learn_tokenizer(lines: Sequence[str], vocab: int) -> Tokenizer:
    """Byte-pair encoding of words with the space before them; punctuation stands alone."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=SPECIAL, show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str], *, target: bool) -> Ragged:
    """Ids with an end, and for a target with a start; a longer text is cut."""
    before = [START] if target else []
    found = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    rows = [np.array([*before, *one.ids[: MOST - 2], END], np.int32) for one in found]
    return Ragged.stack(rows)


def examples(sources: Ragged, targets: Ragged) -> Examples:
    """Sources as queries and targets as passages, so that the package's own batches serve."""
    number = np.arange(len(sources), dtype=np.int32)
    return Examples(
        queries=sources,
        passages=targets,
        query_of=number,
        passage_of=number,
        label=np.zeros((len(number), 2), np.int32),
        score=np.zeros(len(number), np.float32),
        question=number,
        part=number,
    )


def segmented(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], dropout: float, kept: Path
) -> list[Examples]:
    """The pairs cut into pieces in several ways (BPE-dropout), or without dropout in the one way.

    The tokenizer draws without a seed, so they are kept for a run that goes on.
    """
    if not kept.is_file():
        tokenizer.model.dropout = dropout or None
        arrays = {}
        for way in range(WAYS if dropout else 1):
            for side, texts in enumerate(zip(*pairs, strict=True)):
                ragged = encode(tokenizer, texts, target=bool(side))
                arrays |= {f"{way} {side} ids": ragged.values, f"{way} {side}": ragged.lengths}
        tokenizer.model.dropout = None
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **arrays)
    with np.load(kept, allow_pickle=False) as file:
        ragged = [
            [Ragged(file[f"{way} {side} ids"], file[f"{way} {side}"]) for side in range(2)]
            for way in range(len(file.files) // 4)
        ]
    return [examples(*sides) for sides in ragged]


class Segmentations:
    """Batches of the same pairs, cut into pieces in another way in each epoch."""

    def __init__(self, ways: Sequence[Examples], device: torch.device) -> None:
        self.device = device
        self._ways = [Batches(one, device, pad=PAD) for one in ways]

    def epoch(self, seed: int, number: int, *, size: int, tokens: int | None) -> list[Any]:
        """What `walk` makes the batches of an epoch from, with the way in which its texts are cut."""
        way = number % len(self._ways)
        made = self._ways[way].epoch(seed, number, size=size, tokens=tokens)
        return [(way, groups) for groups in made]

    def walk(self, batches: list[Any], first: int = 0) -> Iterator[Batch]:
        """The batches as tensors."""
        return self._ways[batches[0][0]].walk([groups for _, groups in batches], first)

    def tokens(self, groups: Any) -> int:
        """Real tokens of a batch."""
        return self._ways[groups[0]].tokens(groups[1])
