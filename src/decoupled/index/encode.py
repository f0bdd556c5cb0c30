"""Encodes texts into states and passages into records: batches of like length, the caller's order."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoupled.index.record import Record, digest
from decoupled.model import annex
from decoupled.model.codec import Codec
from decoupled.model.spec import Side
from decoupled.model.states import Encoding, States, batches_by_length, rows_of
from decoupled.model.tokens import Ids, Passage, Window
from decoupled.runtime.base import Runtime

Numbers = npt.NDArray[np.int64]

HELD = 1 << 16
"""Tokens whose states are held as floats until the codec packs them; a part may have ten times as many."""


def encode_passages(
    runtime: Runtime, codec: Codec, passages: Sequence[Passage], *, titles: bool, keep: float = 1.0
) -> list[Record]:
    """Records of all windows of the passages, read with their titles or without, states by the codec.

    `keep` is the share of the tokens of each that are stored.
    """
    split = windows_of(runtime, passages, titles=titles)
    tokens = [sum(len(window.ids) for window in group) for group in split]
    bounds = _portions(tokens, max(HELD, runtime.token_budget))
    return [
        record
        for start, end in pairwise(bounds)
        for record in _records(runtime, codec, passages[start:end], split[start:end], keep)
    ]


def _portions(tokens: Sequence[int], most: int) -> list[int]:
    """Bounds that cut a list into portions of at most `most` tokens; a longer text is a portion alone."""
    bounds, held = [0], 0
    for number, count in enumerate(tokens):
        if held and held + count > most:
            bounds.append(number)
            held = 0
        held += count
    return [*bounds, len(tokens)]


def _records(
    runtime: Runtime,
    codec: Codec,
    passages: Sequence[Passage],
    split: Sequence[Sequence[Window]],
    keep: float,
) -> list[Record]:
    encoding = encode_windows(runtime, split)
    states = encoding.states
    if keep < 1:
        kept = annex.load("keep_tokens.pruner").TokenPruner(runtime, keep).rows(states)
        which = zip(states.starts.tolist(), kept, strict=True)
        rows, lengths = np.concatenate([start + own for start, own in which]), list(map(len, kept))
        states, own = States(states.values[rows], np.array(lengths)), iter(kept)
        # Offsets stay parallel to the states: one row for each token that is kept.
        split = [[replace(w, offsets=w.offsets[next(own)]) for w in group] for group in split]
    encoded = codec.encode(states)
    records: list[Record] = []
    for passage, group in zip(passages, split, strict=True):
        content = digest(passage)
        for number, window in enumerate(group):
            row = len(records)
            stored = {"states": np.asarray(encoded[row], np.uint8), "digest": content}
            record = Record.of(passage, number, window, vector=encoding.vectors[row], **stored)
            records.append(record)
    return records


def windows_of(
    runtime: Runtime, passages: Sequence[Passage], *, titles: bool
) -> list[list[Window]]:
    """The token windows of each passage, with its title in front of the text if `titles`."""
    named = [p.title for p in passages] if titles else None
    structured = runtime.spec.text.structure is not None
    structures = [p.structure for p in passages] if structured else None
    return runtime.tokenizer.windows([p.text for p in passages], named, structures)


def encode_windows(
    runtime: Runtime,
    split: Sequence[Sequence[Window]],
    *,
    query_length: int = 0,
    budget: int | None = None,
    vectors: bool = True,
) -> Encoding:
    """States and vectors of all windows; a model with memory reads those of a passage in order."""
    return encode_texts(
        runtime,
        "passage",
        [window.ids for group in split for window in group],
        query_length=query_length,
        budget=budget,
        vectors=vectors,
        windows=[len(group) for group in split] if runtime.spec.memory_windows else None,
    )


def encode_texts(
    runtime: Runtime,
    side: Side,
    ids: Sequence[Ids],
    *,
    query_length: int = 0,
    budget: int | None = None,
    vectors: bool = True,
    windows: Sequence[int] | None = None,
) -> Encoding:
    """States and, with `vectors`, the vector of each text, in order; they do not depend on other texts.

    With `windows`, so many texts each are the windows of one passage, and depend on those before them.
    """
    spec, budget = runtime.spec, budget or runtime.token_budget
    if len(ids) == 1:  # a query, which the next step waits for
        one = runtime.encode(side, ids, query_length=query_length, vectors=vectors)
        return Encoding(one.states, one.vectors[:, : spec.vector_width if vectors else 0])
    lengths = np.fromiter((len(i) for i in ids), np.int64, len(ids))
    # Each batch goes straight to its place: the states of a part are large, and once is enough.
    values_NW = np.empty((int(lengths.sum()), spec.state_width(side)), np.float32)
    pooled = np.empty((len(ids), spec.vector_width if vectors else 0), np.float32)
    states = States(values_NW, lengths)

    def fill(run: _EncodeRun) -> None:
        some = [ids[i] for i in run.texts]
        part = runtime.encode(
            side, some, query_length=query_length, vectors=vectors, before=run.before
        )
        batch, encoded, vector = run.texts, part.states, part.vectors
        if run.kept is not None:
            batch, encoded, vector = batch[run.kept], encoded.select(run.kept), vector[run.kept]
        values_NW[rows_of(states.starts[batch], lengths[batch])] = encoded.values
        pooled[batch] = vector[:, : pooled.shape[1]]

    runtime.each(fill, _runs(lengths, budget, windows, spec.memory_windows))
    return Encoding(states, pooled)


class _EncodeRun(NamedTuple):
    """One batch for the input component (the layers below the split), as numbers of texts."""

    texts: Numbers
    kept: Numbers | None = None
    """Which texts of the batch are stored; None for all. The others are only there to be remembered."""
    before: Numbers | None = None


def _runs(
    lengths: Numbers, budget: int, windows: Sequence[int] | None, memory: int
) -> list[_EncodeRun]:
    """Batches of texts of like length; windows of a passage come with those before that they remember."""
    if windows is None:
        return [_EncodeRun(batch) for batch in batches_by_length(lengths, budget)]
    pieces: list[tuple[int, int, int]] = []  # the first text, the first that is wanted, the end
    first = 0
    for count in windows:
        # So many windows of the passage fit a batch; a longer one is cut into pieces.
        most = max(1, budget // max(1, int(lengths[first])))
        pieces += [
            # A piece begins with windows that its own remember: computed twice, stored once.
            (max(first, start - memory), start, min(start + most, first + count))
            for start in range(first, first + count, most)
        ]
        first += count
    sizes = np.array([(end - start) * lengths[start] for start, _, end in pieces], np.int64)
    runs = []
    for batch in batches_by_length(sizes, budget):
        chosen = [pieces[i] for i in batch]
        texts = np.concatenate([np.arange(start, end) for start, _, end in chosen])
        fresh = [np.arange(start, end) >= own for start, own, end in chosen]
        begins = np.concatenate([np.arange(start, end) == start for start, _, end in chosen])
        # The number in this batch of the window before each; -1 where there is nothing to remember.
        before = np.where(begins, -1, np.arange(len(texts)) - 1)
        runs.append(_EncodeRun(texts, np.flatnonzero(np.concatenate(fresh)), before))
    return runs
