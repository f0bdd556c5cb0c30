"""A file of examples, which all runs on the same data read, so that they are tokenised once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from decoupled.model.states import Ragged
from decoupled.train.data.examples import ARRAYS, Examples, Truth


def save_examples(examples: Examples, path: Path) -> None:
    """Write one `.npz` without pickled objects; it appears whole or not at all."""
    truth = examples.truth
    texts = {"texts": truth.texts, "golds": truth.golds} if truth else None
    arrays = {name: getattr(examples, name) for name in ARRAYS}
    for side, held in (("query", examples.queries), ("passage", examples.passages)):
        arrays |= {f"{side}_values": held.values, f"{side}_lengths": held.lengths}
    for name, plain in (("truth", texts), ("kind", [examples.per_group, examples.share])):
        arrays[name] = np.frombuffer(json.dumps(plain).encode(), np.uint8)
    if examples.links is not None:
        arrays["links"] = examples.links
    if truth:
        arrays |= {"offsets": truth.offsets.values, "text_of": truth.text_of}
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft.npz")
    np.savez_compressed(draft, **arrays)
    draft.replace(path)


def load_examples(path: Path) -> Examples:
    """What `save_examples` wrote."""
    with np.load(path, allow_pickle=False) as file:
        data = {name: file[name] for name in file.files}
    texts = json.loads(data["truth"].tobytes())
    per_group, share = json.loads(data["kind"].tobytes())
    passages = Ragged(data["passage_values"], data["passage_lengths"])
    truth = None
    if texts:
        truth = Truth(
            offsets=Ragged(data["offsets"], passages.lengths),
            texts=tuple(texts["texts"]),
            text_of=data["text_of"],
            golds=tuple(tuple(g) for g in texts["golds"]),
        )
    return Examples(
        queries=Ragged(data["query_values"], data["query_lengths"]),
        passages=passages,
        per_group=per_group,
        share=share,
        links=data.get("links"),
        truth=truth,
        **{name: data[name] for name in ARRAYS},
    )
