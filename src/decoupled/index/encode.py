"""Texts to states, passages to records: batches of like length, results in the caller's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from decoupled.index.keep import Keeper
from decoupled.index.record import Record, digest
from decoupled.model.codec import Codec
from decoupled.model.spec import Side
from decoupled.model.states import Encoding, States, batches_by_length, rows_of
from decoupled.model.tokens import Ids, Passage, Window
from decoupled.runtime.base import Runtime


def encode_passages(
    runtime: Runtime, codec: Codec, passages: Sequence[Passage], *, titles: bool, keep: float = 1.0
) -> list[Record]:
    """Records of all windows of the passages, read with their titles or without, states by the codec.

    `keep` is the share of the tokens of each that are stored.
    """
    split = windows_of(runtime, passages, titles=titles)
    encoding = encode_texts(runtime, "passage", [w.ids for group in split for w in group])
    states = encoding.states
    if keep < 1:
        kept = Keeper(runtime, keep).rows(states)
        which = zip(states.starts.tolist(), kept, strict=True)
        rows, lengths = np.concatenate([start + own for start, own in which]), list(map(len, kept))
        states, own = States(states.values[rows], np.array(lengths)), iter(kept)
        split = [[replace(w, offsets=w.offsets[next(own)]) for w in group] for group in split]
    encoded = codec.encode(states)
    records: list[Record] = []
    for passage, group in zip(passages, split, strict=True):
        content = digest(passage)
        for number, window in enumerate(group):
            row = len(records)
            stored = {"states": np.asarray(encoded[row], np.uint8), "digest": content}
            made = Record.of(passage, number, window, vector=encoding.vectors[row], **stored)
            records.append(made)
    return records


def windows_of(
    runtime: Runtime, passages: Sequence[Passage], *, titles: bool
) -> list[list[Window]]:
    """The windows of passages, read with their titles or without."""
    named = [p.title for p in passages] if titles else None
    return runtime.tokenizer.windows([p.text for p in passages], named)


def encode_texts(
    runtime: Runtime,
    side: Side,
    ids: Sequence[Ids],
    *,
    query_length: int = 0,
    budget: int | None = None,
    vectors: bool = True,
) -> Encoding:
    """States and, with `vectors`, the vector of each text, in order; they do not depend on other texts."""
    lengths = np.fromiter((len(i) for i in ids), np.int64, len(ids))
    spec = runtime.spec
    # Each batch goes straight to its place: the states of a part are large, and once is enough.
    values_NW = np.empty((int(lengths.sum()), spec.state_width(side)), np.float32)
    pooled = np.empty((len(ids), spec.vector_width if vectors else 0), np.float32)
    states = States(values_NW, lengths)

    def fill(batch: npt.NDArray[np.int64]) -> None:
        some = [ids[i] for i in batch]
        part = runtime.encode(side, some, query_length=query_length, vectors=vectors)
        values_NW[rows_of(states.starts[batch], lengths[batch])] = part.states.values
        pooled[batch] = part.vectors[:, : pooled.shape[1]]

    runtime.each(fill, batches_by_length(lengths, budget or runtime.token_budget))
    return Encoding(states, pooled)
