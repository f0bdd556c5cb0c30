"""The prompt of a decoder as data: what is read around query and passage, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from decoupled.errors import SpecError

if TYPE_CHECKING:
    import tokenizers

    from decoupled.model.spec import ModelSpec

Side = Literal["query", "passage"]
SIDES: tuple[Side, Side] = ("query", "passage")
QUERY, PASSAGE = "{query}", "{passage}"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Which text comes first, and what is tokenised together with each: `<Query>: {query}`."""

    first: Side
    query: str
    passage: str

    def around(self, side: Side) -> tuple[str, str]:
        """The words before and after a text that are tokenised with it."""
        before, _, after = (
            self.query.partition(QUERY) if side == "query" else self.passage.partition(PASSAGE)
        )
        return before, after


def check_prompt(spec: ModelSpec) -> None:
    """Raise where a prompt, its order or its window does not fit the model."""
    text, last = spec.text, any(head.pooling == "last" for head in spec.heads)
    if text.prompt is None:
        # XLNet's last token is one of its own, at the end of the passage.
        ends = all(layer.attention.kind == "segmented" for layer in spec.layers)
        if (last and not ends) or spec.store != "state":
            raise SpecError("pooling='last' and store='kv' need a decoder; choose store='state'")
        if last and spec.one_way:
            raise SpecError(
                "the head reads the last row of the passage, which cannot stay as it was stored; choose "
                "one_way=()"
            )
        return
    if (need := text.query_tokens + text.passage_tokens) > spec.encoder.max_tokens:
        raise SpecError(
            f"query_tokens={text.query_tokens} and passage_tokens={text.passage_tokens} need {need} "
            f"positions, but the model has {spec.encoder.max_tokens}; lower passage_tokens"
        )
    if text.passage_first and spec.positions == "offset":
        raise SpecError("a passage before its query does not take positions='offset'")
    if last and spec.one_way and not text.passage_first:
        raise SpecError(
            "this prompt ends with the passage, whose last row is read and cannot stay as it was stored; "
            "choose one_way=()"
        )
    layers = spec.layers[: spec.split]
    cached = text.passage_first and all(layer.attention.cached_width for layer in layers)
    if spec.store == "kv" and (not cached or spec.projection is not None):
        raise SpecError(
            "store='kv' needs a causal model that reads the passage first, without a projection; choose "
            "store='state'"
        )


class Body(NamedTuple):
    """The tokens of a text, and of the words of a prompt that were tokenised with it."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    before: Sequence[int] = ()
    after: Sequence[int] = ()
    alone: Sequence[int] = ()
    """The tokens after a part of the text that is not its end."""

    def first(self, tokens: int) -> list[int]:
        """The text up to so many tokens, within its words."""
        after = self.after if len(self.ids) <= tokens else self.alone
        return [*self.before, *self.ids[:tokens], *after]


def body_of(encoding: tokenizers.Encoding, start: int, length: int, alone: list[int]) -> Body:
    """The tokens of the `length` characters from `start` on; one that reaches into them is theirs."""
    ids, offsets, end = encoding.ids, encoding.offsets, start + length
    # Offsets may leave out spaces, so that a space between words has none.
    inside = [n for n, (a, b) in enumerate(offsets) if b > start and a < end and length]
    before = sum(b <= start for _, b in offsets)
    first, last = (inside[0], inside[-1] + 1) if inside else (before, before)
    own = [(max(a - start, 0), min(b - start, length)) for a, b in offsets[first:last]]
    return Body(ids[first:last], own, ids[:first], ids[last:], alone)
