"""Plain text: paragraphs, headings that are underlined, and files with a text on each line."""

import io
import re
from collections.abc import Iterable, Iterator

from decoupled.index.documents.files import Fields, File, Problems, UnreadableError
from decoupled.index.formats.blocks import TextBlock
from decoupled.index.formats.encodings import text_stream
from decoupled.index.formats.streams import LINE, decoded, lines_of

_UNDERLINE = re.compile(r"([=\-~^\"'*#+_`:.])\1{2,}\s*")
# A text without blank lines is cut after about this many characters.
_PARAGRAPH_CHARS = 1 << 16
# Marks of AsciiDoc at the beginning of lines; a fence around a block there, and the longest listing in lines.
_ASCIIDOC = re.compile(
    rb"^(?:\[(?:verse|listing|source|NOTE|horizontal|quote|\[)|(?:include|ifn?def)::|link(?:git)?:\w|\+$)",
    re.MULTILINE,
)
_FENCE, _LISTING = re.compile(r"([-.=_*+])\1{3,}"), 1000
# A tab, or three spaces within a line, sets columns apart.
_COLUMNS = re.compile(r"\S\s{3,}\S|\t")


def text_blocks(file: File, stream: io.BufferedReader) -> Iterator[TextBlock]:
    """The paragraphs of a text, and headings where a line is underlined; in AsciiDoc listings are fenced."""
    headings, asciidoc = Headings(), len(_ASCIIDOC.findall(stream.peek(1 << 16))) > 1
    parts = ((lines, False) for lines in paragraphs(stream))
    for lines, listing in _unfenced(paragraphs(stream)) if asciidoc else parts:
        heading, rest = (None, lines) if listing else headings.split(lines)
        if heading is not None:
            yield heading
        if rest:
            yield TextBlock("\n".join(rest), lines=listing or _is_listing(rest))


def _unfenced(parts: Iterable[list[str]]) -> Iterator[tuple[list[str], bool]]:
    """Paragraphs of AsciiDoc, and the listings between lines of dashes or dots; fences are left out."""
    fence, held = "", list[str]()
    for lines in parts:
        plain: list[str] = []
        for line in lines:
            if fence and line != fence and len(held) < _LISTING:
                held.append(line)
            elif fence:
                yield held, True
                fence, held = "", []
            # A heading is about as long as the line under it; a fence has any length.
            elif not _FENCE.fullmatch(line) or (plain and abs(len(line) - len(plain[-1])) <= 2):
                plain.append(line)
            elif line[0] in "-.+":
                fence = line
        if plain:
            yield plain, False
        if held:
            held.append("")
    if held:
        yield held, True


def text_lines(
    file: File, stream: io.BufferedReader, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    """The lines of a file that has one text on each."""
    for number, raw in enumerate(lines_of(stream), 1):
        try:
            line = decoded(raw).strip()
        except ValueError as error:
            problems.fail(file.problem(number, str(error)))
            continue
        if line:
            yield number, {"text": line}


def paragraphs(stream: io.BufferedReader) -> Iterator[list[str]]:
    """Lines between blank ones, without the space after them; in bounded memory."""
    text, held, chars = text_stream(stream), list[str](), 0
    while line := text.readline(LINE):
        if len(line) == LINE:
            raise UnreadableError(f"a line is longer than {LINE >> 20} MB")
        line = line.replace("\f", "").rstrip()
        if line and chars < _PARAGRAPH_CHARS:
            held.append(line)
            chars += len(line)
        elif held:
            yield held
            held, chars = [line] if line else [], len(line)
    if held:
        yield held


class Headings:
    """Finds headings by the line below them, and perhaps above; each new sign is a level deeper."""

    def __init__(self) -> None:
        self._signs: list[str] = []

    def split(self, lines: list[str]) -> tuple[TextBlock | None, list[str]]:
        """The heading that a paragraph begins with, and the lines after it."""
        if (
            len(lines) > 2
            and _is_under(lines[2], lines[1])
            and lines[0].strip() == lines[2].strip()
        ):
            # The sign is doubled: a line above and below is another level than one below.
            return self._heading(lines[1], lines[2][0] * 2), lines[3:]
        if len(lines) > 1 and _is_under(lines[1], lines[0]) and not _UNDERLINE.fullmatch(lines[0]):
            return self._heading(lines[0], lines[1][0]), lines[2:]
        return None, lines

    def _heading(self, text: str, sign: str) -> TextBlock:
        if sign not in self._signs:
            self._signs.append(sign)
        return TextBlock(text.strip(), 1 + self._signs.index(sign))


def _is_under(line: str, heading: str) -> bool:
    # Underlines are often a little shorter than their heading.
    return bool(_UNDERLINE.fullmatch(line)) and len(line) >= 0.7 * len(heading.strip())


def _is_listing(lines: list[str]) -> bool:
    """Whether line ends carry meaning, as in indented texts and in columns."""
    if len(lines) < 2:
        return False
    indented = all(line.startswith(("    ", "\t")) for line in lines)
    return indented or sum(bool(_COLUMNS.search(line.strip())) for line in lines) > len(lines) / 2
