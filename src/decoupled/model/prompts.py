"""Published prompts by name, templates from files, and how a template is tokenised."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoupled.errors import InputError
from decoupled.model.parts.prompt import PASSAGE, QUERY, SIDES, Prompt
from decoupled.model.spec import TextSpec
from decoupled.model.tokens import parse_tokenizer


@dataclass(frozen=True, kw_only=True)
class Template:
    """A prompt as its model was trained on it: pieces, each tokenised on its own, and what is read off.

    `score` is one token whose logit is the score, two tokens whose difference is, or none for a model with
    a value head. A token is a word or an id.
    """

    pieces: tuple[str, ...]
    score: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        for name in (QUERY, PASSAGE):
            if (times := sum(piece.count(name) for piece in self.pieces)) != 1:
                raise InputError(f"a template has {name} {times} times; expected it once")
        if any(QUERY in piece and PASSAGE in piece for piece in self.pieces):
            raise InputError(
                f"a piece of a template has {QUERY} and {PASSAGE}; cut it between them"
            )
        if len(self.score) > 2:
            raise InputError(f"a template scores by {len(self.score)} tokens; expected two at most")

    def place(self, name: str) -> int:
        """The number of the piece that has the text of that name."""
        return next(n for n, piece in enumerate(self.pieces) if name in piece)


_PUBLISHED = json.loads(Path(__file__).with_name("templates.json").read_text(encoding="utf-8"))
TEMPLATES = {
    name: Template(pieces=tuple(one["pieces"]), score=tuple(one["score"]))
    for name, one in _PUBLISHED.items()
}
"""Published formats, by the name that `split --template` takes."""


def template_of(name: str | None, checkpoint: str | Path, folder: Path) -> Template:
    """The template of that name or file; without one `template.json` of the checkpoint, or by its name."""
    own = folder / "template.json"
    if name is None and own.is_file():
        name = str(own)
    if name is None:
        called = str(checkpoint).lower()
        name = next(
            (key for key, one in _PUBLISHED.items() if re.search(one["named"], called)), None
        )
    if name in TEMPLATES:
        return TEMPLATES[name]
    if name is None or not Path(name).is_file():
        what = (
            f"{checkpoint} is a decoder of no known prompt"
            if name is None
            else f"no template {name!r}"
        )
        raise InputError(
            f"{what}; name one of {', '.join(TEMPLATES)}, or a JSON file of pieces and score tokens, which "
            "may lie in its folder as template.json"
        )
    return read_template(Path(name))


def read_template(path: Path) -> Template:
    """A template from a JSON file: `{"pieces": ["Query: {query}", …], "score": ["yes", "no"]}`."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); write an object with pieces") from error
    pieces: Any = data.get("pieces") if isinstance(data, Mapping) else None
    score = data.get("score", []) if isinstance(data, Mapping) else []
    if not _all(pieces, str) or not _all(score, str | int) or set(data) - {"pieces", "score"}:
        raise InputError(
            f"{path} is no template; expected pieces, a list of texts, and score, a list of tokens"
        )
    return Template(pieces=tuple(pieces), score=tuple(score))


def _all(values: object, kind: Any) -> bool:
    own = isinstance(values, Sequence) and not isinstance(values, str)
    return own and all(isinstance(value, kind) for value in values)  # type: ignore[attr-defined]


def prompt_spec(tokenizer_json: str, template: Template, *, max_tokens: int) -> TextSpec:
    """How a template is tokenised, and windows of 64 and 448 tokens of text within so many positions."""
    tokenizer = parse_tokenizer(tokenizer_json)

    def ids(texts: Iterable[str]) -> tuple[int, ...]:
        for special in re.findall(r"<\|\w+\|>|<bos>", "".join(texts := list(texts))):
            if tokenizer.token_to_id(special) is None:
                raise InputError(
                    f"the template has {special}, which tokenizer.json does not know; use the template of "
                    "this model"
                )
        encoded = (tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
        return tuple(token for piece in encoded for token in piece)

    query, passage = template.place(QUERY), template.place(PASSAGE)
    low, high = sorted((query, passage))
    pieces = template.pieces
    lead, between, tail = ids(pieces[:low]), ids(pieces[low + 1 : high]), ids(pieces[high + 1 :])
    prompt = Prompt(
        first="query" if query < passage else "passage",
        query=pieces[query],
        passage=pieces[passage],
    )
    first = prompt.first == "query"
    # What stands between the texts is the query's: a passage is stored, and its query is not.
    frame = (lead, between, (), tail) if first else (between, tail, lead, ())
    fixed = [len(ids(prompt.around(side))) for side in SIDES]
    queries = fixed[0] + len(frame[0] + frame[1]) + min(64, max_tokens // 4)
    special = fixed[1] + len(frame[2] + frame[3])
    room = min(448, max_tokens - queries - special)
    if room < 1:
        raise InputError(
            f"the template and a query need {queries + special} positions, and the model has {max_tokens}; "
            "use the template of this model"
        )
    return TextSpec(
        query_prefix=frame[0],
        query_suffix=frame[1],
        passage_prefix=frame[2],
        passage_suffix=frame[3],
        query_tokens=queries,
        passage_tokens=special + room,
        stride=min(128, room),
        prompt=prompt,
    )


def score_tokens(tokenizer_json: str, template: Template) -> tuple[int, ...]:
    """The ids of the tokens whose logits are the score; each must be one token."""
    tokenizer, chosen = parse_tokenizer(tokenizer_json), []
    for token in template.score:
        ids = tokenizer.encode(str(token), add_special_tokens=False).ids
        ids = [token] if isinstance(token, int) else ids
        if len(ids) != 1:
            raise InputError(
                f"the template scores by {token!r}, which is {len(ids)} tokens of tokenizer.json; choose a "
                "word that is one"
            )
        chosen += ids
    return tuple(chosen)
