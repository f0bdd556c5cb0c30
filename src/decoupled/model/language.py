"""Which language a text is in, and whether a model reads it: by scripts and the commonest words alone."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from decoupled.model.tokens import Tokenizer

_DATA = json.loads(Path(__file__).parents[1].joinpath("assets/languages.json").read_text("utf-8"))
WORDS: dict[str, str] = _DATA["words"]
"""Common words of languages that are written in Latin letters, question words among them."""
SCRIPTS: dict[str, tuple[str, str]] = _DATA["scripts"]
"""By the first word of the Unicode names of its letters: a language, and words that its models know."""
SAMPLE = 20_000
"""Characters that are looked at."""
PIECES = 1.3
"""Tokens for each common word of a language above which a tokenizer was not made for it."""


def language(text: str) -> str | None:
    """The English name of the language of a text, such as `German`; None if that is not clear."""
    text = text[:SAMPLE]
    scripts = Counter(_script(letter) for letter in text if letter.isalpha())
    if not scripts:
        return None
    script, count = scripts.most_common(1)[0]
    if script != "LATIN" and count > 0.5 * scripts.total():
        # Japanese is written with Chinese characters too, which may be most of them.
        kana = scripts["HIRAGANA"] + scripts["KATAKANA"]
        return (
            SCRIPTS["HIRAGANA" if kana > 0.1 * count else script][0] if script in SCRIPTS else None
        )
    words = Counter(re.findall(r"\w+", text.lower()))
    scores = {name: sum(words[w] for w in common.split()) for name, common in WORDS.items()}
    best, second = sorted(scores, key=lambda name: -scores[name])[:2]
    # A short question may have a single common word, if it is none of English.
    enough = 1 if words.total() <= 8 and not scores["English"] else max(2, 0.05 * words.total())
    clear = scores[best] >= enough and scores[best] > scores[second]
    return best if clear else None


def unread_language(tokenizer: Tokenizer, texts: Sequence[str]) -> str | None:
    """The language of these texts, if it is clear and the tokenizer was made for others."""
    name = language("\n".join(texts))
    if name is None or _knows(tokenizer, name):
        return None
    # A vocabulary of letters alone, say, was made for none of these, and tells nothing.
    return name if any(_knows(tokenizer, other) for other in WORDS) else None


@lru_cache(maxsize=64)  # it is asked with every query
def _knows(tokenizer: Tokenizer, name: str) -> bool:
    """Whether a tokenizer keeps the commonest words of a language in about one piece."""
    script = next((words for other, words in SCRIPTS.values() if other == name), None)
    words = WORDS[name].split() if script is None else script.split()
    # Characters of a script without spaces count as words, since some tokenizers know each alone.
    room = sum(len(word) if name in ("Chinese", "Japanese", "Thai") else 1 for word in words)
    return not tokenizer.has_unknown(words) and sum(tokenizer.lengths(words)) <= PIECES * room


def is_language(text: str) -> bool:
    """Whether a text might be language: not one letter again and again, nor a word that never ends."""
    letters = [letter for letter in text.lower() if letter.isalpha()]
    if len(letters) < 6:
        return True
    words = [word for word in re.findall(r"\w+", text) if _script(word[0]) == "LATIN"]
    return len(set(letters)) > 2 and max(map(len, words), default=0) <= 100


def query_note(tokenizer: Tokenizer, query: str) -> str | None:
    """What to say about a query that is no language, not one of the model's, or too long; else None."""
    if not is_language(query):
        return "the query does not look like words, so nothing can answer it"
    name = unread_language(tokenizer, [query])
    if name is None:
        return tokenizer.too_long([query])
    return (
        f"the query seems to be in {name}, which this model was not made for: expect poor results"
    )


def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]
