"""Mail: each message a row, its subject the title; what is attached is named and not read."""

import email
import io
import re
from collections.abc import Iterator
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from email.policy import Compat32
from email.utils import parsedate_to_datetime

from decoupled.index.documents.files import Fields, File, Problems, UnreadableError
from decoupled.index.formats.blocks import one_line
from decoupled.index.formats.encodings import read_text
from decoupled.index.formats.html import html_blocks
from decoupled.index.formats.streams import LARGEST, in_memory, lines_of, read_bytes

_HEADERS = ("From", "To", "Date", "Subject", "Message-ID", "Received")
# The line before each message: who sent it and when. A sentence may begin with From, too.
_SEPARATOR = re.compile(rb"From \S+ .*\d\d?:\d\d")
_ESCAPED = re.compile(rb">+From ")
_HEADER = 1000

Rows = Iterator[tuple[int, Fields]]


class _Brief(Compat32):
    """Headers without what is beyond 1,000 characters: the library takes minutes over a megabyte."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        return name, value[:_HEADER]


def mail_row(file: File, stream: io.BufferedReader, problems: Problems) -> Rows:
    """The one message of an `.eml` file; its id is the file's name."""
    if raw := read_bytes(stream):
        yield 1, {"id": file.name, **_fields(file, raw)}
    else:
        problems.note(file.problem(None, "has no text"))


def mbox_rows(file: File, stream: io.BufferedReader, problems: Problems) -> Rows:
    """The messages of a mailbox; one that cannot be read does not cost the others."""
    for number, raw in enumerate(_messages(stream), 1):
        try:
            yield number, _fields(file, raw)
        except UnreadableError as error:
            problems.fail(file.problem(number, str(error)))


def _messages(stream: io.BufferedReader) -> Iterator[bytes]:
    """The bytes of each message, without the line before it."""
    held, blank = io.BytesIO(), True
    for number, line in enumerate(lines_of(stream), 1):
        starts = blank and _SEPARATOR.match(line)
        if number == 1 and not starts:
            raise UnreadableError("is no mailbox; expected 'From SENDER DATE' as its first line")
        if not starts:
            held.write(line[1:] if _ESCAPED.match(line) else line)
        elif number > 1:
            yield held.getvalue()
            held = io.BytesIO()
        if held.tell() > LARGEST:
            raise UnreadableError(f"has a message of more than {LARGEST >> 20} MB", line=number)
        blank = not line.strip()
    yield from [held.getvalue()] if held.tell() else []


def _fields(file: File, raw: bytes) -> Fields:
    """Title, text and metadata; who wrote a message and when is asked for, so it is text as well."""
    try:
        message = email.message_from_bytes(raw, policy=_Brief())
    except RecursionError:
        raise UnreadableError("has parts in parts, deeper than mail is; take them out") from None
    if not any(name in message for name in _HEADERS):
        raise UnreadableError(f"is no mail; expected one of its headers: {', '.join(_HEADERS)}")
    sender, date = _header(message, "From"), _date(_header(message, "Date"))
    names = ", ".join(filter(None, map(_attached, message.walk())))
    head = {"From": sender, "To": _header(message, "To"), "Date": date, "Attached": names}
    lines = "\n".join(f"{name}: {value}" for name, value in head.items() if value)
    text = "\n\n".join(filter(None, (lines, _body(file, message))))
    return {"title": _header(message, "Subject"), "text": text, "from": sender, "date": date}


def _body(file: File, message: Message) -> str:
    """The text of a message: its plain parts, or its HTML parts where there are none."""
    parts = [part for part in message.walk() if not _attached(part) and not part.is_multipart()]
    for kind in ("text/plain", "text/html"):
        texts = [_text(file, part) for part in parts if part.get_content_type() == kind]
        if text := "\n\n".join(filter(None, texts)):
            return text
    if message.get_content_maintype() == "multipart" and not message.is_multipart():
        raise UnreadableError("has parts that nothing divides; save the message again")
    return ""


def _text(file: File, part: Message) -> str:
    """The text of a part, in its declared encoding or in the one that is detected."""
    raw = part.get_payload(decode=True)
    assert isinstance(raw, bytes)
    text = read_text(in_memory(raw), lambda head: part.get_content_charset()).strip()
    if part.get_content_subtype() == "html":
        # A byte order mark overrides the charset that the page itself names: it is UTF-8 now.
        page = html_blocks(file, in_memory(text.encode("utf-8-sig", "replace")))
        text = "\n\n".join(block.text for block in page)
    return text


def _attached(part: Message) -> str:
    """The name of what is attached; empty where a part is to be read."""
    name = one_line(part.get_filename() or "") or part.get_content_type()
    return name if part.get_content_disposition() == "attachment" else ""


def _header(message: Message, name: str) -> str:
    """A header in plain words, or as it is."""
    raw = next((v for key, v in message.raw_items() if key.lower() == name.lower()), "")
    # The parser keeps bytes that are not ASCII as surrogates; they are UTF-8, or else Latin-1.
    text = raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if "\ufffd" in text:
        text = raw.encode("utf-8", "surrogateescape").decode("latin-1")
    try:
        return one_line(str(make_header(decode_header(text))))
    except (MessageError, LookupError, ValueError):
        return one_line(text)


def _date(written: str) -> str:
    """When it was sent, in ISO's form; as it is written where that is no date."""
    try:
        return parsedate_to_datetime(written).isoformat(sep=" ", timespec="minutes")
    except (ValueError, TypeError):
        return written
