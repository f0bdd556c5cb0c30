"""Bytes of a document as text: by its byte order mark, by what it says, as UTF-8, or by a guess."""

import codecs
import io
import re
from collections.abc import Callable

from decoupled.index.documents.files import UnreadableError

# Bytes at the beginning that decide the encoding.
_HEAD = 1 << 16
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Characters of a file that is read as a whole.
_LARGEST = 64 << 20
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")

Declared = Callable[[bytes], str | None]


def text_stream(stream: io.BufferedReader, declared: Declared | None = None) -> io.TextIOWrapper:
    """The text of a file as a stream; a binary file is an `UnreadableError`."""
    head = stream.peek(_HEAD)[:_HEAD]
    encoding = _encoding(head, declared)
    text = head.decode(encoding, "replace")
    # Text has hardly any control characters; more than 2 % of them are binary data.
    if len(_CONTROL.findall(text)) > len(text) // 50:
        raise UnreadableError("is binary, not text")
    return io.TextIOWrapper(stream, encoding, "replace", newline=None)


def read_text(stream: io.BufferedReader, declared: Declared | None = None) -> str:
    """The whole text of a file; one of more than 64 million characters is an `UnreadableError`."""
    text = text_stream(stream, declared).read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise UnreadableError(f"is longer than {_LARGEST >> 20} million characters; cut it up")
    return text


def _encoding(head: bytes, declared: Declared | None) -> str:
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    if b"\0" in head:
        return _without_mark(head)
    declaration = declared(head) if declared is not None else None
    if declaration is not None and _is_codec(declaration) and _decodes(head, declaration):
        return declaration
    if _decodes(head, "utf-8"):
        return "utf-8"
    # Here and not above: most corpora never need it.
    from charset_normalizer import from_bytes

    best = from_bytes(head).best()
    return best.encoding if best is not None else "cp1252"


def _without_mark(head: bytes) -> str:
    """The kind of UTF-16 of a file without byte order mark: in most scripts one byte of two is often zero."""
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if max(even, odd) > 0.4 * len(head) / 2 and min(even, odd) < 0.05 * max(even, odd) + 1:
        return "utf-16-be" if even > odd else "utf-16-le"
    raise UnreadableError("holds NUL bytes, so it is binary, not text")


def _is_codec(name: str) -> bool:
    """Whether a name is a text encoding; Python also calls some compressions encodings."""
    try:
        b" ".decode(name, "ignore")
    except (LookupError, ValueError):
        return False
    return True


def _decodes(head: bytes, name: str) -> bool:
    """Whether the beginning of a file is valid in this encoding, even if cut within a character."""
    try:
        # An incremental decoder accepts that the head ends within a character.
        codecs.getincrementaldecoder(name)().decode(head)
    except (ValueError, LookupError):
        return False
    return True
