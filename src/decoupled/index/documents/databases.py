"""Rows that are in no file: what a query to a database gives, and the data sets of `ir_datasets`.

A password is never part of a name that is shown or stored, nor of a message.
"""

import re
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from decoupled.errors import InputError, need
from decoupled.index.documents.files import ID_FIELDS, Fields, File, Format, Problems

Part = Literal["docs", "queries", "qrels"]
"""What is read of a data set; databases give passages, or queries, by what is selected."""
FORMAT = Format(name="database", counts="item", table=True)
_ADDRESS = re.compile(r"([a-z][\w+.-]+)://|(irds):", re.IGNORECASE)
# Greedy: a password may hold any of these characters itself.
_PASSWORD = re.compile(r"//([^:@/]*):.*@")
_PACKAGES = dict(postgresql="psycopg", postgres="psycopg", sqlite="sqlite3", duckdb="duckdb")
_ROWS = 1000
# Seconds that a server may take to let us in.
_WAIT = 10


def scheme_of(source: str | Path) -> str:
    """The lower-case scheme of an address such as `sqlite:///docs.db`; empty for paths."""
    match = _ADDRESS.match(str(source))
    return (match[1] or match[2]).lower() if match else ""


def without_password(source: str | Path) -> str:
    """The source as it may be shown; of an address, without password and settings."""
    if not scheme_of(source):
        return str(source)
    return _PASSWORD.sub(r"//\1@", str(source)).partition("?")[0]


def source_name(source: str | Path, query: str | None) -> str:
    """What a manifest keeps of a source: the query is part of it, a password is not."""
    name, scheme = without_password(source), scheme_of(source)
    return f"{name}: {query}" if query and scheme and scheme != "irds" else name


def address_file(source: str, query: str | None = None, part: Part = "docs") -> File:
    """The rows that an address names, as a file without a path. Raises `InputError` for what none can be."""
    scheme, shown = scheme_of(source), without_password(source)
    if scheme == "irds":
        need(("ir_datasets", "irds"))
        rows = partial(_data_set_rows, source.partition(":")[2], part)
        return File(path=None, shown=shown, name=shown, format=FORMAT, rows=rows)
    if scheme not in _PACKAGES:
        raise InputError(
            f"{shown} names {scheme}; expected {', '.join(_PACKAGES)}, irds, or a path"
        )
    if not query:
        raise InputError(
            f"{shown} is a database; say what to read: --query 'select id, title, body from docs'"
        )
    rows = partial(_query_rows, _PACKAGES[scheme], source, query)
    return File(path=None, shown=shown, name=shown, format=FORMAT, rows=rows)


def _query_rows(
    package: str, source: str, query: str, file: File, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    """Number and columns of each row that a query gives; raises `InputError` where it fails."""
    need((package, package))
    driver = import_module(package)
    try:
        with closing(_connection(driver, source)) as connection:
            # A cursor with a name stays with the server, which sends rows as they are fetched.
            cursor = connection.cursor(*(("passages",) if package == "psycopg" else ()))
            cursor.execute(query)
            columns = [column[0] for column in cursor.description or ()]
            ids = [name for name in columns if name.strip().lower() in ID_FIELDS]
            if not ids:
                selected = ", ".join(columns) or "no rows"
                raise InputError(f"{file.shown}: the query gives {selected}; name one column id")
            batches = iter(partial(cursor.fetchmany, _ROWS), [])
            for number, row in enumerate(chain.from_iterable(batches), 1):
                fields = dict(zip(columns, map(_plain, row), strict=True))
                if fields[ids[0]] in (None, ""):
                    problems.fail(file.problem(number, f"{ids[0]} is empty; a row needs an id"))
                else:
                    yield number, fields
    except driver.Error as error:
        line = str(error).strip().partition("\n")[0] or repr(error)
        raise InputError(f"{file.shown}: {line:.300}; mend the address or --query") from None


def _plain(value: Any) -> Any:
    """A value as JSON has it; bytes are left out, and dates, decimals and UUIDs are written out."""
    if value is None or isinstance(value, str | int | float | list | dict):
        return value
    return None if isinstance(value, bytes | bytearray | memoryview) else str(value)


def _connection(driver: Any, source: str) -> Any:
    """A connection that reads only."""
    if driver.__name__ == "psycopg":
        settings: Any = None
        with suppress(driver.Error):  # whose message may quote the password
            settings = driver.conninfo.conninfo_to_dict(source)
        if settings is None:
            shown, expected = without_password(source), "postgresql://user@host:5432/database"
            raise InputError(f"{shown} is no address; expected {expected}")
        connection = driver.connect(**{"connect_timeout": _WAIT, **settings})
        connection.read_only = True
        return connection
    # `sqlite:///a.db` is beside us, `sqlite:////a.db` at the root.
    path = Path(source.partition("://")[2].removeprefix("/"))
    if not path.is_file():
        raise InputError(f"{path} does not exist; expected sqlite:///FILE, or duckdb:///FILE")
    if driver.__name__ == "duckdb":
        return driver.connect(str(path), read_only=True)
    address = f"{path.absolute().as_uri()}?mode=ro"
    return driver.connect(address, uri=True, check_same_thread=False)


def _data_set_rows(
    name: str, part: Part, file: File, problems: Problems
) -> Iterator[tuple[int, Fields]]:
    """Number and fields of the documents, queries or judgments of a data set."""
    import ir_datasets

    try:
        data = ir_datasets.load(name)
        if not getattr(data, f"has_{part}")():
            raise InputError(f"{file.shown} has no {part}; name a data set that has")
    except KeyError:
        raise InputError(f"{file.shown} is no data set that ir_datasets knows") from None
    for number, row in enumerate(getattr(data, f"{part}_iter")(), 1):
        if part == "qrels":
            yield number, {"text": f"{row.query_id}\t0\t{row.doc_id}\t{row.relevance}"}
        elif part == "queries":
            yield number, {"id": row.query_id, "query": row.default_text()}
        else:
            fields = {n: _plain(v) for n, v in row._asdict().items()}
            whole = "text" in fields or "body" in fields
            yield number, fields if whole else {"id": row.doc_id, "text": row.default_text()}
