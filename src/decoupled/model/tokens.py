"""Texts to tokens: queries, passages, windows of long documents, and character offsets.

Each side is tokenised on its own, so a passage's tokens depend on the passage alone. What a tokenizer
file does between the two texts of a pair is read off once, in `text_spec`.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from json import loads
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from decoupled.errors import InputError, panics
from decoupled.model.parts.prompt import SIDES, Body, Side, body_of
from decoupled.model.spec import TextSpec

Ids = npt.NDArray[np.int32]

LOOK, LOOK_LEAST = 16, 256
"""Characters looked at first when a text is cut: so many per token to keep, and at least so many."""
_GROWTH = 10_000
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class Passage:
    """One unit of a corpus, as the user gives it."""

    id: str
    text: str
    title: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def structure(self) -> str:
        """A bracketed parse of its text, which models that read trees take from its metadata."""
        parse = self.meta.get("structure", "")
        if not isinstance(parse, str):
            raise InputError(
                f"passage {self.id!r:.60} has structure {parse!r:.60}; expected brackets as text, such as "
                "(S (NP the cat) (VP sat))"
            )
        return parse


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """A stretch of a passage that fits the model, with its tokens."""

    ids: Ids
    """Token ids, special tokens included."""
    offsets: npt.NDArray[np.int32]
    """`[T,2]` start and end of each token in `text`; (0, 0) for special tokens and those of the title."""
    text: str
    start: int
    """Where `text` begins in the passage."""


class Tokenizer:
    """The tokenizer of a model folder, with the segment layout of its spec."""

    def __init__(self, json: str, spec: TextSpec, vocab: int | None = None) -> None:
        self.json = json
        self.spec = spec
        self._vocab = vocab
        self._tokenizer = parse_tokenizer(json)
        self._around: dict[Side, tuple[list[int], list[int]]] = {}
        """Tokens of the words of a prompt that are tokenised with a text, were they alone."""
        if spec.prompt is not None:
            for side in SIDES:
                before, after = self.encode(spec.prompt.around(side))
                self._around[side] = before.ids, after.ids

    def query(self, text: str) -> Ids:
        """Token ids of a query, cut to the model's limit."""
        return self.queries([text])[0]

    def queries(self, texts: Sequence[str]) -> list[Ids]:
        """Token ids of many queries."""
        spec, room = self.spec, self.query_room
        if spec.prompt is not None:
            bodies = [body.first(room) for body in self._bodies("query", texts)]
        else:
            bodies = [e.ids[:room] for e in self.encode(texts, offsets=False)]
        return [self._ids(spec.query_prefix, ids, spec.query_suffix) for ids in bodies]

    @property
    def query_room(self) -> int:
        """Tokens of a query that are read, special ones aside."""
        special = len(self.spec.query_prefix) + len(self.spec.query_suffix)
        return self.spec.query_tokens - special - sum(map(len, self._around.get("query", ())))

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has, special ones aside."""
        return [len(encoding) for encoding in self.encode(texts, offsets=False)]

    def has_unknown(self, texts: Sequence[str]) -> bool:
        """Whether a text has characters that are not in the vocabulary."""
        unknown = {self._tokenizer.token_to_id(name) for name in ("[UNK]", "<unk>")}
        return any(not unknown.isdisjoint(encoding.ids) for encoding in self.encode(texts))

    def too_long(self, queries: Sequence[str]) -> str | None:
        """A warning about queries that are too long to be read whole; None where there are none."""
        longest = max(self.lengths(queries), default=0)
        if longest <= self.query_room:
            return None
        return f"a query of {longest} tokens is read up to its first {self.query_room}; shorten it"

    @property
    def vocab(self) -> int:
        """How many tokens there are."""
        return self._tokenizer.get_vocab_size()

    @property
    def passage_room(self) -> int:
        """Tokens of a passage that are read at once, special ones aside."""
        special = len(self.spec.passage_prefix) + len(self.spec.passage_suffix)
        return self.spec.passage_tokens - special - sum(map(len, self._around.get("passage", ())))

    def stretches(self, text: str, tokens: int, chars: int) -> list[str]:
        """The text in pieces of at most so many tokens and characters."""
        pieces, start, count = [], 0, 0
        for first, last in self.encode([text])[0].offsets:
            while last - start > chars:  # a token may be as long as it likes
                pieces.append(text[start : start + chars])
                start, count = start + chars, 0
            if count == tokens:
                pieces.append(text[start:first])
                start, count = first, 0
            count += 1
        return [*pieces, *(text[i : i + chars] for i in range(start, len(text), chars))]

    @property
    def title_room(self) -> int:
        """Tokens of a title that are read before each window of its passage."""
        # A title repeats before every window, so it may take an eighth of the room at most.
        return min(20, self.passage_room // 8)

    def windows(
        self,
        texts: Sequence[str],
        titles: Sequence[str] | None = None,
        structures: Sequence[str] | None = None,
    ) -> list[list[Window]]:
        """The windows of each passage: one for most, several for long ones, never none.

        A title stands before every window of its passage, as a sentence; of a long one the end is read. A
        model whose passages have more rows than tokens takes them from `structures`, or from the texts.
        """
        # One empty list for all texts is safe: titles are read and never changed.
        before = self._titles(titles) if titles is not None else [[]] * len(texts)
        split = [
            self._windows(text, body, title)
            for text, body, title in zip(texts, self._bodies("passage", texts), before, strict=True)
        ]
        structure, first = self.spec.structure, len(self.spec.passage_prefix)
        if structure is None:
            return split
        for windows, text, parse, title in zip(
            split, texts, structures or [""] * len(texts), before, strict=True
        ):
            read, ahead = structure.read(text, parse), slice(first, first + len(title))
            for n, w in enumerate(windows):
                ids, offsets = structure.add(read, w.ids, w.offsets, start=w.start, title=ahead)
                windows[n] = replace(w, ids=ids, offsets=offsets)
        return split

    def _titles(self, titles: Sequence[str]) -> list[list[int]]:
        shown = [as_sentence(title) for title in titles]
        return [
            encoding.ids[-self.title_room :] if title.strip() else []
            for title, encoding in zip(titles, self.encode(shown), strict=True)
        ]

    def cut(self, texts: Sequence[str], tokens: int, *, keep_end: bool = False) -> list[str]:
        """Each text without what lies after its first `tokens` tokens, or before its last ones."""
        # A token is at least one character, so most texts need no look.
        long = [n for n, text in enumerate(texts) if len(text) > tokens]
        cut, look = list(texts), LOOK * tokens + LOOK_LEAST
        while long:
            # Of a text of a million characters, a few words may be all that is kept.
            parts = [texts[n][-look:] if keep_end else texts[n][:look] for n in long]
            again = []
            for n, part, encoding in zip(long, parts, self.encode(parts), strict=True):
                offsets, kept, rest = encoding.offsets, part, ""
                if len(offsets) > tokens and keep_end:
                    kept, rest = part[offsets[-tokens][0] :], part[: offsets[-tokens][0]]
                elif len(offsets) > tokens:
                    kept, rest = part[: offsets[tokens - 1][1]], part[offsets[tokens - 1][1] :]
                # The word at the edge of a part is not whole, and its tokens are others.
                if len(part) == len(texts[n]) or len(rest.split()) > 1:
                    cut[n] = kept
                else:
                    again.append(n)
            long, look = again, 4 * look
        return cut

    def encode(self, texts: Sequence[str], *, offsets: bool = True) -> list[tokenizers.Encoding]:
        """Each text without special tokens, as the library gives it."""
        tokenizer, clean = self._tokenizer, [mend(text) for text in texts]
        encode = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
        with panics(_unreadable):
            return encode(clean, add_special_tokens=False)

    def _bodies(self, side: Side, texts: Sequence[str]) -> list[Body]:
        """The tokens of each text within the words of the prompt, where there is one."""
        if self.spec.prompt is None:
            return [Body(e.ids, e.offsets) for e in self.encode(texts)]
        before, after = self.spec.prompt.around(side)
        whole = self.encode([f"{before}{text}{after}" for text in texts])
        # A window that is not the last of its text ends with the tokens that the words have alone.
        alone = self._around[side][1]
        return [
            body_of(e, len(before), len(text), alone) for e, text in zip(whole, texts, strict=True)
        ]

    def _windows(self, text: str, body: Body, title: list[int]) -> list[Window]:
        ids, offsets, tokens = body.ids, body.offsets, len(body.ids)
        title = [*body.before, *title]
        room = self.passage_room - (len(title) - len(body.before))
        spans = list(window_spans(tokens, room, min(self.spec.stride, room)))
        if len(spans) == 1:
            return [self._window(text, 0, title, ids, offsets, body.after)]
        windows = []
        for number, (first, last) in enumerate(spans):
            # Offsets need not ascend, so the bounds are taken over all tokens.
            start = min(o[0] for o in offsets[first:last]) if number else 0
            end = max(o[1] for o in offsets[first:last])
            # The slices of all windows together must hold every character of the passage.
            end = len(text) if last == tokens else max(end, offsets[spans[number + 1][0]][0])
            own = ids[first:last], offsets[first:last]
            trail = body.after if last == tokens else body.alone
            windows.append(self._window(text[start:end], start, title, *own, trail))
        return windows

    def _window(
        self,
        text: str,
        start: int,
        title: list[int],
        ids: list[int],
        offsets: list[tuple[int, int]],
        trail: Sequence[int],
    ) -> Window:
        prefix = (*self.spec.passage_prefix, *title)
        suffix = (*trail, *self.spec.passage_suffix)
        before, after = len(prefix), len(suffix)
        table = np.zeros((before + len(ids) + after, 2), np.int32)
        if ids:
            table[before : before + len(ids)] = np.asarray(offsets, np.int32) - start
        return Window(ids=self._ids(prefix, ids, suffix), offsets=table, text=text, start=start)

    def _ids(self, prefix: tuple[int, ...], ids: list[int], suffix: tuple[int, ...]) -> Ids:
        # In int64 first: ids are unsigned 32-bit numbers, which int32 does not hold.
        whole = np.asarray([*prefix, *ids, *suffix], np.int64)
        if self._vocab is not None and len(whole) and whole.max() >= self._vocab:
            raise InputError(
                f"tokenizer.json makes a token of id {whole.max()}, and the model has {self._vocab} tokens; "
                "use the tokenizer of the model"
            )
        return whole.astype(np.int32)


def _growths(part: Any) -> Iterable[int]:
    """How many characters each step of a tokenizer that replaces text may write for one."""
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    if isinstance(part, dict) and part.get("type") == "Replace":
        yield max(1, len(str(part.get("content"))))
    for one in inner:
        yield from _growths(one)


def _unreadable(why: object) -> InputError:
    return InputError(f"tokenizer.json cannot be read ({why}); save the tokenizer again")


def as_sentence(title: str) -> str:
    """A title as it stands before its passage."""
    return title if title.endswith((".", "?", "!", ":")) else f"{title}."


def mend(text: str) -> str:
    """The text with lone surrogates replaced, which no tokenizer takes; every offset stays."""
    if not isinstance(text, str):
        raise InputError(f"a text must be a string, not {type(text).__name__} ({text!r:.60})")
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


def window_spans(tokens: int, room: int, stride: int) -> Iterable[tuple[int, int]]:
    """Token spans of at most `room`, `stride` apart, until one reaches the end (DeFormer)."""
    start = 0
    while True:
        yield start, min(start + room, tokens)
        if start + room >= tokens:
            return
        start += stride


def parse_tokenizer(json: str) -> tokenizers.Tokenizer:
    """The tokenizer of a `tokenizer.json`, without the padding and cutting that it may ask for."""
    # Each such step may write many characters for one, so that a few of them fill the memory.
    try:
        growth = math.prod(_growths(loads(json))) if "Replace" in json else 1
        if growth > _GROWTH:
            raise _unreadable(f"its Replace steps make {growth:.0e} characters of one")
        with panics(_unreadable):
            tokenizer = tokenizers.Tokenizer.from_str(json)
    except InputError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise _unreadable(error) from None
    tokenizer.no_padding()
    # Windows are cut and padded by us, whatever the file was saved with.
    tokenizer.no_truncation()
    return tokenizer


def text_spec(json: str, *, max_tokens: int, types: int, pad: int = 0) -> TextSpec:
    """How this tokenizer packs a pair, and windows that suit a model of `max_tokens`.

    A quarter of the room, at most 64 tokens, goes to the query; windows stay within 512 tokens even where
    the model would take more.
    """
    encoding = parse_tokenizer(json).encode("a", "b")
    sides = encoding.sequence_ids
    if 0 not in sides or 1 not in sides:
        raise InputError("tokenizer.json makes no tokens of 'a' and 'b'; is it the model's own?")
    first, second = sides.index(0), sides.index(1)
    after_first = len(sides) - 1 - sides[::-1].index(0) + 1
    after_second = len(sides) - sides[::-1].index(1)
    # RoBERTa puts two separators between the texts: the first ends the query, the rest open the
    # passage.
    between = encoding.ids[after_first:second]
    if not between:
        raise InputError(
            "tokenizer.json puts no special tokens around a pair ([CLS] a [SEP] b [SEP]); save it with "
            "the post-processor of its model"
        )
    kinds = encoding.type_ids
    longest = min(max_tokens, 512)
    query_tokens = min(64, longest // 4)
    passage_tokens = longest - query_tokens
    special = len(between) - 1 + len(encoding.ids[after_second:])
    return TextSpec(
        query_prefix=tuple(encoding.ids[:first]),
        query_suffix=tuple(between[:1]),
        passage_prefix=tuple(between[1:]),
        passage_suffix=tuple(encoding.ids[after_second:]),
        # A tokenizer may give type 1 where the model has a table of one row.
        query_type=min(kinds[first], max(types - 1, 0)),
        passage_type=min(kinds[second], max(types - 1, 0)),
        pad=pad,
        query_tokens=query_tokens,
        passage_tokens=passage_tokens,
        stride=max(1, min(128, passage_tokens - special)),
    )
