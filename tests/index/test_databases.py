"""Rows of PostgreSQL, SQLite and DuckDB, and data sets of ir_datasets, become indexes and follow them."""

from __future__ import annotations

import json
import logging
import sqlite3
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

import decoupled as dc
import postgres
from commands import Commands
from decoupled.index.documents.databases import source_name, without_password
from decoupled.measure.pairs import read_qrels, read_queries

DOCS = [
    ("1", "Dracula", "Bram Stoker wrote Dracula, which appeared in 1897."),
    ("2", "Warsaw", "The river Vistula runs through Warsaw."),
    ("3", "Paris", "Paris is the capital of France."),
]
SELECT = "select id, title, body from docs order by id"


@pytest.fixture
def cli(monkeypatch, capsys):
    return Commands(monkeypatch, capsys)


@pytest.fixture(scope="module")
def server():
    with postgres.server() as settings:
        yield settings


@pytest.fixture
def postgresql(server):
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(**server, dbname="postgres", autocommit=True) as connection:
        connection.execute("drop table if exists docs")
        connection.execute("create table docs (id int primary key, title text, body text)")
        connection.cursor().executemany("insert into docs values (%s, %s, %s)", DOCS)
        # As it is typed: `@` and `:` of a password are written in percent.
        address = f"postgresql://reader:s3cr%3At%40x@127.0.0.1:{server['port']}/postgres"
        yield address, lambda text: connection.execute(text)


@pytest.fixture
def sqlite(tmp_path):
    path = tmp_path / "docs.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("create table docs (id int primary key, title text, body text)")
    connection.executemany("insert into docs values (?, ?, ?)", DOCS)
    yield f"sqlite:///{path}", connection.execute
    connection.close()


@pytest.fixture
def duck(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "docs.duckdb"

    def run(text, rows=None):
        with duckdb.connect(str(path)) as connection:
            connection.executemany(text, rows) if rows else connection.execute(text)

    run("create table docs (id int primary key, title text, body text)")
    run("insert into docs values (?, ?, ?)", DOCS)
    return f"duckdb:///{path}", run


@pytest.mark.parametrize("kind", ["postgresql", "sqlite", "duck"])
def test_only_changed_rows_are_encoded_and_lost_ones_leave(kind, request, cli, tmp_path):
    address, change = request.getfixturevalue(kind)
    words = ("index", address, "--query", SELECT, "-o", tmp_path / "i", "--json")
    built = cli(*words).json
    assert (built["added"], built["passages"]) == (3, 3)
    assert cli("search", tmp_path / "i", "river of Warsaw", "--json").json["hits"][0]["id"] == "2"
    change("update docs set body = 'The Vistula, a river, passes Warsaw.' where id = 2")
    change("delete from docs where id = 3")
    change("insert into docs values (4, 'Rome', 'Rome lies on the Tiber.')")
    built = cli(*words).json
    assert (built["added"], built["replaced"], built["unchanged"]) == (2, 1, 1)
    assert (built["removed"], built["passages"]) == (0, 4)
    built = cli(*words, "--sync").json
    assert (built["added"], built["removed"], built["passages"]) == (0, 1, 3)
    hits = dc.Engine(tmp_path / "i").search("Vistula", k=1)
    assert (hits[0].id, hits[0].text) == ("2", "The Vistula, a river, passes Warsaw.")


def test_another_query_is_another_corpus(sqlite, cli, tmp_path):
    address, _ = sqlite
    cli("index", address, "--query", SELECT, "-o", tmp_path / "i")
    other = f"{SELECT} limit 1"
    failure = cli("index", address, "--query", other, "-o", tmp_path / "i").failure
    assert other in failure and "was built from" in failure
    assert cli("add", tmp_path / "i", address, "--query", other, "--json").json["unchanged"] == 1


def test_what_databases_hold_becomes_metadata(postgresql):
    address, change = postgresql
    change("""create or replace view typed as select 1 as id, 'a text' as text,
        date '2024-02-03' as day, 1.50::numeric as price, array['a', 'b'] as tags,
        '{"k": 1}'::jsonb as meta, 'x'::bytea as raw, null::text as nothing""")
    (passage,) = dc.read_passages(address, query="select * from typed")
    expected = {"day": "2024-02-03", "price": "1.50", "tags": ["a", "b"], "k": 1}
    assert (passage.id, passage.text, passage.meta) == ("1", "a text", expected)
    assert str(date(2024, 2, 3)) == expected["day"] and str(Decimal("1.50")) == expected["price"]


def test_a_long_table_is_not_held_in_memory(postgresql):
    address, _ = postgresql
    query = "select n as id, repeat('word ', 2000) as text from generate_series(1, 100000) as n"
    passages = dc.read_passages(address, query=query, chunk=None)
    # A gigabyte, of which the first thousand rows come at once.
    assert next(passages).id == "1"
    passages.close()


def test_a_query_cannot_write(postgresql, sqlite, duck, cli, tmp_path):
    for address, _ in (postgresql, sqlite, duck):
        for words in ("delete from docs", "drop table docs"):
            failure = cli("index", address, "--query", words, "-o", tmp_path / "i").failure
            assert "--query" in failure or "id" in failure
        assert len(list(dc.read_passages(address, query=SELECT))) == 3


@pytest.mark.parametrize("kind", ["postgresql", "sqlite", "duck"])
@pytest.mark.parametrize(
    ("query", "message"),
    [
        (None, "say what to read: --query"),
        ("select title, body from docs", "the query gives title, body; name one column id"),
        ("select id, title from docs", "has no text: expected a field text"),
        ("select id, body from docks", "docks"),
        ("selects", "selects"),
        ("select null as id, 'x' as text", "id is empty; a row needs an id"),
    ],
)
def test_a_query_that_gives_no_passages_is_one_line(kind, query, message, request, cli, tmp_path):
    address, _ = request.getfixturevalue(kind)
    words = ("--query", query) if query else ()
    failure = cli("index", address, *words, "-o", tmp_path / "i").failure
    assert message in failure and "s3cr" not in failure
    assert not (tmp_path / "i").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("mysql://u:s3cret@h/db", "mysql://u@h/db names mysql; expected postgresql, postgres, sq"),
        ("mysql://u:a/s3cret@h/db", "mysql://u@h/db names mysql"),
        ("sqlite:///none.db", "none.db does not exist; expected sqlite:///FILE"),
        ("duckdb:///none.db", "none.db does not exist"),
        ("postgresql://u:s3cret%zz@h/db", "postgresql://u@h/db is no address"),
        ("postgresql://u:s3cret@127.0.0.1:1/db?application_name=x", "127.0.0.1:1/db: connection"),
        ("postgresql:///db?host=/none&password=s3cret", "postgresql:///db: connection"),
        ("irds:no-such-data", "irds:no-such-data is no data set that ir_datasets knows"),
    ],
)
def test_an_address_that_cannot_be_read_is_one_line_without_password(
    source, message, cli, tmp_path
):
    for package in ("psycopg", "duckdb", "ir_datasets"):
        pytest.importorskip(package)
    failure = cli("index", source, "--query", SELECT, "-o", tmp_path / "i").failure
    assert message in failure and "s3cret" not in failure


def test_a_wrong_password_is_not_repeated(postgresql, cli, tmp_path):
    address, _ = postgresql
    wrong = address.replace("s3cr%3At%40x", "other-s3cret")
    failure = cli("index", wrong, "--query", SELECT, "-o", tmp_path / "i").failure
    assert "password authentication failed" in failure and "other-s3cret" not in failure


def test_a_password_is_neither_stored_nor_logged(postgresql, cli, tmp_path, caplog):
    address, _ = postgresql
    caplog.set_level(logging.DEBUG)
    done = cli(
        "index", address, "--query", SELECT, "-o", tmp_path / "i", "--report", tmp_path / "r"
    )
    written = [p for p in tmp_path.rglob("*") if p.is_file() and "model" not in p.parts]
    told = (
        done.out
        + done.err
        + caplog.text
        + "".join(p.read_bytes().decode("latin-1") for p in written)
    )
    assert "s3cr" not in told
    (source,) = json.loads((tmp_path / "i" / "manifest.json").read_text())["sources"]
    assert source == f"{without_password(address)}: {SELECT}" == source_name(address, SELECT)
    assert "reader@127.0.0.1" in source


def test_databases_are_read_by_index_alone(cli, tmp_path):
    with pytest.raises(dc.InputError, match=r"sqlite:///a\.db cannot be read here; name a file"):
        read_queries("sqlite:///a.db")
    cli("index", "-", "-o", tmp_path / "i", stdin="One text.\n")
    words = ("index", "sqlite:///a.db", "--query", SELECT, "--watch", "-o", tmp_path / "i")
    assert "a.db" in cli(*words).failure


@pytest.fixture
def data_set(tmp_path):
    """The name of a data set of three documents, two queries and their judgments."""
    ir_datasets = pytest.importorskip("ir_datasets")
    rows = {
        "docs": [f"{i}\t{title}. {body}" for i, title, body in DOCS],
        "queries": ["q1\tWho wrote Dracula?", "q2\tWhat runs through Warsaw?"],
        "qrels": ["q1 0 1 1", "q2 0 2 2"],
    }
    for part, lines in rows.items():
        (tmp_path / part).write_text("".join(f"{line}\n" for line in lines))
    files = {
        "docs_tsv": str(tmp_path / "docs"),
        "queries_tsv": str(tmp_path / "queries"),
        "qrels_trec": str(tmp_path / "qrels"),
    }
    name = f"local-{tmp_path.name}"
    ir_datasets.registry.register(name, ir_datasets.create_dataset(**files))
    return f"irds:{name}"


def test_a_data_set_is_indexed_searched_and_scored(data_set, cli, tmp_path):
    assert cli("index", data_set, "-o", tmp_path / "i", "--json").json["added"] == 3
    assert cli("index", data_set, "-o", tmp_path / "i", "--json").json["unchanged"] == 3
    assert [q.id for q in read_queries(data_set)] == ["q1", "q2"]
    assert read_qrels(data_set) == {"q1": {"1": 1}, "q2": {"2": 2}}
    done = cli("search", tmp_path / "i", "--batch", data_set, "--format", "trec")
    (tmp_path / "run").write_text(done.out)
    scores = cli("evaluate", "--run", tmp_path / "run", "--qrels", data_set, "--json").json
    assert scores["mrr@10"] == 1.0 and scores["queries"] == 2


def test_a_data_set_without_documents_is_one_line(cli, tmp_path):
    ir_datasets = pytest.importorskip("ir_datasets")
    Path(tmp_path / "queries").write_text("q1\tWho?\n")
    only = ir_datasets.create_dataset(queries_tsv=str(tmp_path / "queries"))
    ir_datasets.registry.register("local-queries", only)
    failure = cli("index", "irds:local-queries", "-o", tmp_path / "i").failure
    assert "irds:local-queries has no docs; name a data set that has" in failure
