"""From what the user names to the files that are read, and the format of each."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath

from decoupled.errors import InputError, OptionError
from decoupled.index.documents.databases import Part, address_file, scheme_of, without_password
from decoupled.index.documents.files import File, Format, Problem, Problems
from decoupled.index.documents.walk import Chosen, Walk, shown
from decoupled.index.formats.code import SUFFIXES, code_blocks, comment_blocks
from decoupled.index.formats.html import html_blocks
from decoupled.index.formats.json import json_lines, json_list
from decoupled.index.formats.mail import mail_row, mbox_rows
from decoupled.index.formats.markdown import markdown_blocks
from decoupled.index.formats.office import docx_blocks, odp_blocks, sheet_blocks
from decoupled.index.formats.pandoc import FORMATS as PANDOC
from decoupled.index.formats.pandoc import pandoc_blocks
from decoupled.index.formats.pdf import pdf_blocks
from decoupled.index.formats.streams import unpacked
from decoupled.index.formats.tables import arrow_rows, parquet_rows, table_rows
from decoupled.index.formats.text import text_blocks, text_lines

Source = str | Path

FORMATS = (
    Format(name="jsonl", suffixes=(".jsonl", ".ndjson"), read=json_lines),
    Format(name="json", suffixes=(".json",), read=json_list, counts="item"),
    Format(name="csv", suffixes=(".csv",), read=table_rows, table=True),
    Format(name="tsv", suffixes=(".tsv",), read=table_rows, table=True),
    Format(name="parquet", suffixes=(".parquet",), read=parquet_rows, table=True, binary=True),
    Format(name="arrow", suffixes=(".arrow", ".feather"), read=arrow_rows, table=True, binary=True),
    Format(name="html", suffixes=(".html", ".htm", ".xhtml"), blocks=html_blocks),
    Format(name="markdown", suffixes=(".md", ".markdown"), blocks=markdown_blocks),
    Format(name="text", suffixes=(".txt", ".text"), blocks=text_blocks),
    Format(name="pdf", suffixes=(".pdf",), blocks=pdf_blocks),
    Format(name="docx", suffixes=(".docx",), blocks=docx_blocks),
    Format(name="xlsx", suffixes=(".xlsx", ".xlsm", ".xlsb", ".ods"), blocks=sheet_blocks),
    Format(name="xls", suffixes=(".xls",), blocks=sheet_blocks),
    Format(name="odp", suffixes=(".odp",), blocks=odp_blocks),
    *(
        Format(name=name, suffixes=endings, blocks=pandoc_blocks)
        for name, endings in PANDOC.items()
    ),
    Format(name="comments", suffixes=SUFFIXES, blocks=comment_blocks),
    Format(name="code", blocks=code_blocks),
    Format(name="mail", suffixes=(".eml",), read=mail_row, binary=True),
    Format(name="mbox", suffixes=(".mbox",), read=mbox_rows, counts="item", binary=True),
    Format(name="zip", suffixes=(".zip",), archive=True),
    Format(name="tar", suffixes=(".tar", ".tgz", ".txz", ".tbz2", ".tzst"), archive=True),
    Format(name="lines", read=text_lines),
    Format(name="stream", read=text_lines),  # what has no name: rows.py looks at its first bytes
)
"""Every format; a new one is a reader in a file of its own and a line here."""
BY_NAME = {one.name: one for one in FORMATS}
_BY_SUFFIX = {suffix: one for one in FORMATS for suffix in one.suffixes}
_STDIN = "-"
# The sections of the manual: ls.1, passwd.5, Carp.3perl
_MAN = re.compile(r"\.[1-9][a-z]{0,5}")


def single_file(
    source: Source, format_name: str | None = None, *, part: Part | None = None
) -> File:
    """The one file, or the `part` of a data set, that a source names; a folder, or no file, is an error."""
    if scheme := scheme_of(source):
        if scheme != "irds" or part is None:
            raise InputError(f"{without_password(source)} cannot be read here; name a file")
        return address_file(str(source), part=part)
    if str(source) == _STDIN:
        return File(
            path=None, shown="stdin", name="stdin", format=_format_named(format_name, "stream")
        )
    path = Path(source)
    if path.is_dir():
        raise InputError(f"{source} is a folder; name a file in it")
    format = _named(path, Chosen(format=format_name))
    return File(path=path, shown=shown(path), name=shown(unpacked(path).name), format=format)


def check_sources(sources: Sequence[Source]) -> None:
    """Raise `InputError` at once for no source or a missing file."""
    if not sources:
        raise InputError("no corpus is named; give files, folders, or - for standard input")
    for source in sources:
        if isinstance(source, (list, tuple)):
            raise InputError(f"a source is {source!r:.60}; give paths one by one, or as *paths")
        if not scheme_of(source) and not Path(source).is_dir():
            single_file(source)


def list_files(
    sources: Sequence[Source], problems: Problems, chosen: Chosen | None = None
) -> Iterator[File]:
    """The files of all sources in a fixed order, each once; those of no known form are noted, not read."""
    chosen = chosen or Chosen()
    _format_named(chosen.format, "text")
    paths = [Path(s) for s in sources if str(s) != _STDIN and not scheme_of(s)]
    walk = Walk(paths, problems, chosen)
    for source in sources:
        path = Path(source)
        if scheme_of(source):
            yield address_file(str(source), chosen.query)
        elif str(source) == _STDIN:
            yield single_file(source, chosen.format)
        elif path.is_dir():
            for file in walk.files(path):
                if (format := format_of(file, chosen)) is not None:
                    yield walk.file(file, format, named=False)
                else:
                    other = Problem(path=shown(file), message=_unknown(file), kind="other")
                    problems.note(other)
        elif not path.exists():
            problems.fail(Problem(path=shown(path), message="is gone, or a link to nothing"))
        else:
            yield walk.file(path, _named(path, chosen), named=True)


def total_bytes(files: Iterable[File]) -> int | None:
    """Bytes on disk of these files; None when one is a stream without a size, or gone."""
    total = 0
    for file in files:
        if file.path is None or not file.path.is_file():
            return None
        total += file.path.stat().st_size
    return total


def _format_named(name: str | None, otherwise: str) -> Format:
    """The format of that name; an archive must be a file."""
    names = [format.name for format in FORMATS if not format.archive and format.name != "stream"]
    if name is not None and name not in names:
        raise OptionError("format", f"is {name!r}; choose {', '.join(names)}")
    return BY_NAME[name or otherwise]


def _named(path: Path, chosen: Chosen) -> Format:
    """How a file that the user names is read: one of no known ending as text, or as is given."""
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path")
    if not path.is_file():
        # A pipe, such as a shell's <(…), has no extension.
        return _format_named(chosen.format, "stream")
    return format_of(path, chosen) or _format_named(chosen.format, "text")


def format_of(path: PurePath, chosen: Chosen) -> Format | None:
    """How a file in a folder or an archive is read; None where it is not."""
    suffix = unpacked(path).suffix.lower()
    if chosen.reads_as_text(path) or (suffix not in _BY_SUFFIX and path.name.startswith("README")):
        return BY_NAME["text"]
    format = BY_NAME["man"] if _MAN.fullmatch(suffix) else _BY_SUFFIX.get(suffix)
    return BY_NAME["code"] if chosen.code and format is BY_NAME["comments"] else format


def _unknown(path: Path) -> str:
    suffix = unpacked(path).suffix.lower()
    problem = f"the ending {suffix} is not known" if suffix else "has no ending"
    return f"{problem}; if it is text, give --as-text '{f'*{suffix}' if suffix else path.name}'"
