"""Vocabulary reduction: keep the tokens that a corpus needs, renumber them, and rewrite the tokenizer."""

import json as jsonlib
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np

from decoupled.index.documents import read_passages
from decoupled.methods.method import Method, check_count
from decoupled.methods.token_order import CHUNK, Ints, KeepTokens, closed, frequencies, special_ids
from decoupled.model.model import Model
from decoupled.train.data.prepare import Prepared


@dataclass(frozen=True, kw_only=True)
class ReduceVocabulary(Method):
    """Keep the most frequent tokens of a corpus or of the data; other texts may become longer."""

    name: ClassVar[str] = "reduce-vocabulary"

    size: int | None = None
    """Tokens to keep at most, before single characters and special tokens are added."""
    least: int = 1
    """The fewest occurrences of a token that stays."""
    corpus: str | None = None
    """File or folder of passages, as `index` reads it, whose tokens count too; pairs are not needed then."""

    def fit(self, model: Model, sample: Prepared | None) -> Method:
        """Count the tokens of the data."""
        vocab = model.spec.encoder.embedding.vocab
        if self.size is not None:
            problem = f"size={self.size}, but the vocabulary has {vocab} tokens"
            check_count(self.size, vocab, problem)
        counts = np.zeros(vocab, np.int64)
        if self.corpus is not None:
            counts += _passage_frequencies(self.corpus, model)
        if sample is not None or self.corpus is None:
            counts += frequencies(self.needed(sample).examples(model), vocab)
        ranked = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i] >= self.least]
        chosen = set(ranked[: self.size]) | set(special_ids(model))
        # Characters and parts of merges are added, so that every text can still be spelt.
        kept = closed(chosen, jsonlib.loads(model.tokenizer.json))
        return KeepTokens(order=tuple(i for i in sorted(kept) if i < vocab))


def _passage_frequencies(corpus: str, model: Model) -> Ints:
    """The number of occurrences of each token in the windows of these passages."""
    vocab, passages = model.spec.encoder.embedding.vocab, read_passages(corpus)
    counts = np.zeros(vocab, np.int64)
    while texts := [passage.text for passage in islice(passages, CHUNK)]:
        ids = [window.ids for windows in model.tokenizer.windows(texts) for window in windows]
        counts += np.bincount(np.concatenate(ids), minlength=vocab)[:vocab]
    return counts
