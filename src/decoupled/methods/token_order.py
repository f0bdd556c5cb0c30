"""Another order of the vocabulary: tensors, ids and the tokenizer are renumbered."""

import json as jsonlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from decoupled.errors import SpecError
from decoupled.methods.method import Method, Weights
from decoupled.model.model import Model
from decoupled.model.spec import ModelSpec
from decoupled.train.data.examples import Examples

Ints = npt.NDArray[np.int64]

FRAME = ("query_prefix", "query_suffix", "passage_prefix", "passage_suffix")
"""Fields of a `TextSpec` with the tokens that frame every text."""
CHUNK = 1024
"""The number of passages that are tokenised at a time."""


@dataclass(frozen=True, kw_only=True)
class KeepTokens(Method):
    """The vocabulary in a new order, perhaps with fewer tokens: new id i is the old `order[i]`."""

    order: tuple[int, ...]

    def rewrite(self, spec: ModelSpec) -> ModelSpec:
        """Fewer rows, and special tokens under their new numbers."""
        embedding, text = spec.encoder.embedding, spec.text
        if text.structure is not None:
            raise SpecError(
                f"the last rows of the token table are those of a {text.structure.kind}; reduce or reorder "
                "it before passages have one"
            )
        place = {old: new for new, old in enumerate(self.order)}

        def moved(ids: tuple[int, ...]) -> tuple[int, ...]:
            if lost := [i for i in ids if i not in place]:
                raise SpecError(f"tokens {lost} frame every text and cannot be dropped; keep them")
            return tuple(place[i] for i in ids)

        table = embedding.table and embedding.table.keep(self.order)
        embedding = replace(embedding, vocab=len(self.order), table=table)
        frame: dict[str, Any] = {name: moved(getattr(text, name)) for name in FRAME}
        text = replace(text, **frame, pad=moved((text.pad,))[0])
        return replace(spec, encoder=replace(spec.encoder, embedding=embedding), text=text)

    def transfer(self, weights: Weights, before: ModelSpec, after: ModelSpec) -> Weights:
        """The rows of the kept tokens, in whatever form the table is held."""
        order, first = torch.tensor(self.order), 0
        tables = [spec.encoder.embedding for spec in (before, after)]
        old, new = (table.tokens.bands(table.vocab, table.width) for table in tables)
        own = tuple(f"{name}." for band in old for name in (band.rows, band.widen) if name)
        moved = {n: t for n, t in weights.items() if not n.startswith(own)}
        left = iter(new)
        for band in old:
            # Ids of the new order that lie in this band, counted from its start.
            inside = order[(order >= first) & (order < first + band.ids)] - first
            first += band.ids
            if len(inside):
                kept = next(left)
                moved |= _rows(weights, f"{band.rows}.", f"{kept.rows}.", inside)
                if band.widen is not None:
                    moved[f"{kept.widen}.weight"] = weights[f"{band.widen}.weight"]
        return moved

    def retokenise(self, json: str) -> str:
        """The tokenizer with the kept pieces alone, renumbered."""
        return renumbered(json, self.order)

    def summary(self) -> dict[str, object]:
        """The number of tokens; the tokenizer itself says which."""
        return {"method": "keep-tokens", "tokens": len(self.order)}


def _rows(weights: Weights, old: str, new: str, order: torch.Tensor) -> dict[str, torch.Tensor]:
    rows = {new + n[len(old) :]: t for n, t in weights.items() if n.startswith(old)}
    return {name: tensor[order.to(tensor.device)] for name, tensor in rows.items()}


def frequencies(examples: Examples, vocab: int) -> Ints:
    """How often each token occurs in the texts of some examples, every text counted once."""
    counts = np.zeros(vocab, np.int64)
    for texts in (examples.queries, examples.passages):
        counts += np.bincount(texts.values.astype(np.int64), minlength=vocab)[:vocab]
    return counts


def by_frequency(model: Model, counts: Ints) -> tuple[int, ...]:
    """All ids: special tokens, which are in every text, then by count, then ids that stand for no piece.

    Equal counts keep the order they had.
    """
    pieces = set(_pieces(jsonlib.loads(model.tokenizer.json)).values())
    first = [i for i in special_ids(model) if i in pieces]
    rest = [int(i) for i in np.argsort(-counts, kind="stable") if int(i) not in set(first)]
    return (*first, *(i for i in rest if i in pieces), *(i for i in rest if i not in pieces))


def special_ids(model: Model) -> list[int]:
    """The ids that are never dropped: padding, unknown, what frames a text, and added tokens."""
    text, data = model.spec.text, jsonlib.loads(model.tokenizer.json)
    ids = {text.pad, *(i for name in FRAME for i in getattr(text, name))}
    ids |= {int(token["id"]) for token in data.get("added_tokens", ())}
    unknown = _pieces(data).get(data["model"].get("unk_token")), data["model"].get("unk_id")
    ids |= {i for i in unknown if isinstance(i, int)}
    return sorted(i for i in ids if i < model.spec.encoder.embedding.vocab)


def _pieces(data: dict[str, Any]) -> dict[str, int]:
    """Piece to id of a WordPiece, BPE or Unigram model."""
    model = data["model"]
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        return {piece: int(number) for piece, number in vocab.items()}
    if isinstance(vocab, list):
        return {piece: number for number, (piece, _) in enumerate(vocab)}
    raise SpecError(
        f"a tokenizer of type {model.get('type')!r} has no list of pieces; expected WordPiece, BPE or Unigram"
    )


def _merges(model: dict[str, Any]) -> list[tuple[str, str]]:
    split = (m.split(" ", 1) if isinstance(m, str) else m for m in model.get("merges") or ())
    return [(left, right) for left, right in split]


def closed(chosen: set[int], data: dict[str, Any]) -> set[int]:
    """The chosen ids, all single characters, and the parts that a chosen piece is merged from."""
    prefix, pieces = data["model"].get("continuing_subword_prefix") or "", _pieces(data)
    # Without single characters and bytes a text could not be spelt at all.
    kept = chosen | {i for p, i in pieces.items() if len(p.removeprefix(prefix)) == 1}
    kept |= {i for p, i in pieces.items() if p.startswith("<0x") and p.endswith(">")}
    parts: dict[str, list[str]] = {}
    for left, right in _merges(data["model"]):
        parts.setdefault(left + right.removeprefix(prefix), []).extend((left, right))
    names = {number: piece for piece, number in pieces.items()}
    open_ids = list(kept)
    # BPE builds a piece from its parts, so all of them must stay.
    while open_ids:
        for part in parts.get(names.get(open_ids.pop(), ""), ()):
            if part in pieces and pieces[part] not in kept:
                kept.add(pieces[part])
                open_ids.append(pieces[part])
    return kept


def renumbered(json: str, order: Sequence[int]) -> str:
    """A tokenizer file with the tokens of `order` alone, token `order[i]` under the number i."""
    data = jsonlib.loads(json)
    place = {old: new for new, old in enumerate(order)}
    model, pieces = data["model"], _pieces(data)
    kept = {piece: place[number] for piece, number in pieces.items() if number in place}
    if isinstance(model["vocab"], list):
        scores = dict(map(tuple, model["vocab"]))
        ranked = sorted(kept, key=kept.__getitem__)
        # Unigram ids are positions in the list, so there can be no gaps.
        if [kept[piece] for piece in ranked] != list(range(len(ranked))):
            raise SpecError("a Unigram tokenizer numbers its pieces first; keep added tokens last")
        model["vocab"] = [[piece, scores[piece]] for piece in ranked]
        if model.get("unk_id") is not None:
            model["unk_id"] = place[model["unk_id"]]
    else:
        model["vocab"] = dict(sorted(kept.items(), key=lambda item: item[1]))
    if "merges" in model:
        prefix = model.get("continuing_subword_prefix") or ""
        merged = [(a, b, a + b.removeprefix(prefix)) for a, b in _merges(model)]
        model["merges"] = [[a, b] for a, b, both in merged if {a, b, both} <= kept.keys()]
    # One that the table has no row for could not be embedded before either.
    added = [token for token in data.get("added_tokens", ()) if token["id"] in place]
    data["added_tokens"] = [{**token, "id": place[token["id"]]} for token in added]
    if data.get("padding"):
        data["padding"]["pad_id"] = place[data["padding"]["pad_id"]]
    data["post_processor"] = _moved(data.get("post_processor"), place)
    return jsonlib.dumps(data, ensure_ascii=False)


def _moved(processor: Any, place: dict[int, int]) -> Any:
    """A post-processor with the new numbers of its special tokens."""
    renumbered = dict(processor or {})
    if "processors" in renumbered:
        renumbered["processors"] = [_moved(one, place) for one in renumbered["processors"]]
    for name in {"cls", "sep"} & renumbered.keys():
        renumbered[name] = [renumbered[name][0], place[renumbered[name][1]]]
    if special := renumbered.get("special_tokens"):
        ids = {name: [place[i] for i in token["ids"]] for name, token in special.items()}
        renumbered["special_tokens"] = {n: {**token, "ids": ids[n]} for n, token in special.items()}
    return renumbered or processor
