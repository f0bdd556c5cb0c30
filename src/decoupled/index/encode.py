"""Texts to states, passages to records: batches of like length, results in the caller's order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from decoupled.index.record import Record, digest
from decoupled.model.codec import Codec
from decoupled.model.spec import Side
from decoupled.model.states import Encoding, States, batches_by_length, rows_of
from decoupled.model.tokens import Ids, Passage, Window
from decoupled.runtime.base import Runtime


def encode_passages(
    runtime: Runtime, codec: Codec, passages: Sequence[Passage], *, titles: bool
) -> list[Record]:
    """Records of all windows of the passages, read with their titles or without, states by the codec."""
    split = windows_of(runtime, passages, titles=titles)
    encoding = encode_texts(runtime, "passage", [w.ids for group in split for w in group])
    encoded = codec.encode(encoding.states)
    records: list[Record] = []
    for passage, group in zip(passages, split, strict=True):
        content = digest(passage)
        for number, window in enumerate(group):
            row = len(records)
            states, vector = np.asarray(encoded[row], np.uint8), encoding.vectors[row]
            made = Record.of(passage, number, window, states=states, vector=vector, digest=content)
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
