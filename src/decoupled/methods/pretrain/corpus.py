"""Texts to pre-train on: all tokens in one row, and where words, sentences and documents begin."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.stale import document_of
from decoupled.model.sentences import sentences
from decoupled.model.tokens import Passage, Tokenizer, as_sentence
from decoupled.train.data.examples import Ints

LONGEST = 256
"""The most tokens of a sentence; text without full stops is cut so."""
TOGETHER = 256
"""The number of documents that are tokenised at once."""

Places = npt.NDArray[np.int64]
NO_MENTIONS = np.zeros((0, 3), np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Documents, in sentences, in words, in tokens. A stretch of tokens is a start and a length."""

    ids: Ints
    begins: npt.NDArray[np.bool_]
    """`[N]`, true for tokens that begin a word."""
    sentences: Places
    """First token of each sentence, and the end of the last one."""
    documents: Places
    """First sentence of each document, and the number of sentences."""
    mentions: Places = field(default_factory=NO_MENTIONS.copy)
    """`[K,3]` start, end and label (1 replaced, 0 not) of the names in it, where they were looked for."""

    def __len__(self) -> int:
        """The number of documents."""
        return len(self.documents) - 1

    @classmethod
    def read(
        cls,
        passages: Iterable[Passage],
        tokenizer: Tokenizer,
        progress: Callable[[int], None] = lambda documents: None,
    ) -> Corpus:
        """Passages one after the other; those that follow one another in a document are one text.

        `told` is called now and then with the number of documents read.
        """
        ids: list[npt.NDArray[np.int32]] = []
        begins, lengths, counts = list[npt.NDArray[np.bool_]](), list[int](), list[int]()
        documents = _documents(passages)
        while batch := list(islice(documents, TOGETHER)):
            flat = [sentence for document in batch for sentence in document]
            pieces = pieces_of(tokenizer, flat)
            for document in batch:
                parts = [part for piece in islice(pieces, len(document)) for part in _cut(*piece)]
                if parts:
                    ids += [np.asarray(part[0], np.int32) for part in parts]
                    begins += [np.asarray(part[1], np.bool_) for part in parts]
                    lengths += [len(part[0]) for part in parts]
                    counts.append(len(parts))
            progress(len(counts))
        if not counts:
            raise InputError(
                "the corpus holds no text to learn from; give documents with sentences"
            )
        return cls(
            ids=np.concatenate(ids),
            begins=np.concatenate(begins),
            sentences=np.cumsum([0, *lengths]),
            documents=np.cumsum([0, *counts]),
        )

    def take(self, which: Sequence[int] | Places) -> Corpus:
        """Some of the documents, in that order."""
        firsts, lasts = self.documents[which], self.documents[np.asarray(which) + 1]
        numbers = ranges(firsts, lasts)
        lengths = np.diff(self.sentences)[numbers]
        tokens = ranges(self.sentences[numbers], self.sentences[numbers] + lengths)
        return Corpus(
            ids=self.ids[tokens],
            begins=self.begins[tokens],
            sentences=np.cumsum([0, *lengths]),
            documents=np.cumsum([0, *(lasts - firsts)]),
        )

    def divide(self, share: float, most: int, seed: int) -> tuple[Corpus, Corpus]:
        """(learnt from, held out): about that share of the documents, at least one and at most `most`."""
        if len(self) < 2:
            raise InputError(
                "the corpus is one document, of which none can be held out; give two or more"
            )
        order = np.random.default_rng(seed).permutation(len(self))
        # At least one document on either side.
        held = min(max(1, round(share * len(self))), most, len(self) - 1)
        return self.take(np.sort(order[held:])), self.take(np.sort(order[:held]))

    def digest(self) -> str:
        """A digest of all tokens and of where texts begin."""
        digest = hashlib.sha256()
        for array in (self.ids, self.sentences, self.documents):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]


def ranges(firsts: Places, lasts: Places) -> Places:
    """The numbers of all ranges, one after the other."""
    lengths = lasts - firsts
    # The output position of each range is the sum of the lengths before it.
    before = np.cumsum(lengths) - lengths
    return np.repeat(firsts - before, lengths) + np.arange(int(lengths.sum()))


def _documents(passages: Iterable[Passage]) -> Iterator[list[str]]:
    """The sentences of each document, its title first."""
    for _, group in groupby(passages, lambda one: document_of(one.id, one.meta)):
        title, texts = "", list[str]()
        for passage in group:
            if passage.title and passage.title != title:
                title = passage.title
                texts.append(as_sentence(title))
            texts += sentences(passage.text)
        yield texts


def _cut(ids: list[int], begins: list[bool]) -> Iterator[tuple[list[int], list[bool]]]:
    for start in range(0, len(ids), LONGEST):
        yield ids[start : start + LONGEST], begins[start : start + LONGEST]


def pieces_of(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[tuple[list[int], list[bool]]]:
    """Token ids of each text without special tokens, and which of them begin a word."""
    for encoding in tokenizer.encode(texts):
        words = encoding.word_ids
        yield encoding.ids, [n == 0 or word != words[n - 1] for n, word in enumerate(words)]
