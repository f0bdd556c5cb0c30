"""Questions with their own passage and some that a search confused it with: groups for the reader."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from decoupled.index.documents import Pair
from decoupled.model.states import Ragged
from decoupled.model.tokens import Tokenizer
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import answer_rows

Row = tuple[int, int, int, int, int]
"""Question, window, rows of start and end, and whether the window is the question's own."""


class Questions:
    """Answered questions and all passages, tokenised once; negatives are drawn anew for each epoch.

    `negatives[question]` are numbers of passages that a search found, -1 where there are no more; where they
    run out, any of the first `drawn_from` passages will do.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        texts: Sequence[str],
        negatives: npt.NDArray[np.int64],
        tokenizer: Tokenizer,
        *,
        drawn_from: int | None = None,
    ) -> None:
        self.pairs, self.texts, self.negatives = pairs, texts, negatives
        self.number = {text: n for n, text in enumerate(texts)}
        self.drawn_from = drawn_from or len(texts)
        self.windows = tokenizer.windows(texts)
        self.first = np.concatenate([[0], np.cumsum([len(w) for w in self.windows])[:-1]])
        self.passages = Ragged.stack([w.ids for windows in self.windows for w in windows])
        self.queries = Ragged.stack(tokenizer.queries([pair.query for pair in pairs]))

    def groups(self, epochs: int, negatives: int, *, first: int = 0, seed: int = 0) -> Examples:
        """Every question once in each of the epochs from `first` on, with other negatives each time."""
        rows: list[Row] = []
        for epoch in range(first, first + epochs):
            draw = np.random.default_rng([seed, epoch])
            for number, pair in enumerate(self.pairs):
                rows += self._group(number, pair, negatives, draw)
        table = np.asarray(rows, np.int32)
        return Examples(
            queries=self.queries,
            passages=self.passages,
            query_of=table[:, 0],
            passage_of=table[:, 1],
            label=table[:, 2:4],
            score=table[:, 4].astype(np.float32),
            question=table[:, 0],
            part=table[:, 0],
            per_group=1 + negatives,
            share="query",
        )

    def _group(
        self, number: int, pair: Pair, negatives: int, draw: np.random.Generator
    ) -> list[Row]:
        """The question's own window with its answer, then windows of passages without the answer."""
        gold = self.number[pair.passage]
        labels = ((n, answer_rows(pair, window)) for n, window in enumerate(self.windows[gold]))
        own = next(((n, label) for n, label in labels if label is not None), None)
        if own is None:
            return []
        rows = [(number, int(self.first[gold]) + own[0], *own[1], 1)]
        answer = pair.answers[0].text.lower()
        hard = [int(i) for i in draw.permutation(self.negatives[number]) if i >= 0 and i != gold]
        while len(rows) <= negatives:
            if not hard:
                # Nothing is left that a search confused with it: any other one to train on will do.
                other = int(draw.integers(self.drawn_from))
            elif answer in self.texts[other := hard.pop()].lower():
                continue
            if other == gold:
                continue
            shift = int(draw.integers(len(self.windows[other])))
            rows.append((number, int(self.first[other]) + shift, 0, 0, 0))
        return rows
