"""A first build that is interrupted goes on where it was, and ends as if it had not been."""

import json
import zipfile
from datetime import timedelta

import lance
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import decoupled as dc
from decoupled.index import ingest
from index_content import content
from tiny import WORDS

PART, TEXTS = 4, 60


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(ingest, "PART", PART)


@pytest.fixture
def small(tmp_path, model):
    dc.Model.split(model("bert", "rank"), at=2).save(tmp_path / "m")
    return tmp_path / "m"


def sentence(n):
    return f"River {' '.join(WORDS[n % 7 : n % 7 + 6])} castle {n}."


def as_text(folder):
    parts = (f"Part {n}\n=======\n\n" * (n % 20 == 0) + sentence(n) for n in range(TEXTS))
    (folder / "a.txt").write_text("\n\n".join(parts))


def as_rows(folder):
    rows = ({"id": f"r{n}", "text": sentence(n) * (1 + 9 * (n % 9 == 8))} for n in range(TEXTS))
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def as_squad(folder):
    paragraphs = [{"context": sentence(n % 50)} for n in range(70)]
    articles = [{"title": "T", "paragraphs": paragraphs[n : n + 7]} for n in range(0, 70, 7)]
    (folder / "a.json").write_text(json.dumps({"data": articles}))


def as_parquet(folder):
    texts = [sentence(n) for n in range(TEXTS)]
    parquet.write_table(pa.table({"text": texts}), folder / "a.parquet", row_group_size=10)


def as_pages(folder):
    for n in range(6):
        body = "".join(f"<p>{sentence(m)}</p>" for m in range(n, n + 10))
        (folder / f"{n:02}.html").write_text(f"<h1>Page {n}</h1>{body}")


def as_archive(folder):
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for n in range(6):
            body = "\n\n".join(map(sentence, range(10)))
            archive.writestr(f"{n:02}.md", f"# Page {n}\n\n{body}")


def build(corpus, output, model, *, stop=None, **options):
    """Build an index; Ctrl-C comes after so many passages."""

    def progress(done):
        if stop is not None and done.added >= stop:
            raise KeyboardInterrupt

    return dc.build_index(
        [str(corpus)], output, model=model, chunk=16, progress=progress, **options
    )


@pytest.fixture
def stopped(tmp_path, small):
    """A corpus, its whole index where that is wanted, and one whose build was interrupted."""

    def made(write, stop=3 * PART, whole=True):
        corpus, path, all_of_it = (tmp_path / name for name in ("corpus", "a.idx", "whole.idx"))
        corpus.mkdir()
        write(corpus)
        with pytest.raises(KeyboardInterrupt):
            build(corpus, path, small, stop=stop)
        stored = len(dc.Index.open(path))
        assert stored > 0
        if whole:
            build(corpus, all_of_it, small)
            assert stored < len(dc.Index.open(all_of_it))
        return corpus, all_of_it, path

    return made


@pytest.mark.parametrize(
    "write",
    [as_text, as_rows, as_squad, as_parquet, as_pages, as_archive],
    ids=lambda f: f.__name__,
)
def test_what_is_stored_is_not_encoded_again(stopped, small, write):
    corpus, whole, path = stopped(write)
    stored, sizes = len(dc.Index.open(path)), []
    built = build(corpus, path, small, on_bytes=sizes.append)
    assert built.added.unchanged == stored and built.removed == 0
    assert built.passages == built.added.added + stored
    assert sum(sizes) == sum(f.stat().st_size for f in corpus.iterdir()), "the bar ends full"
    assert content(path) == content(whole)


def test_it_may_be_interrupted_again_and_again(stopped, small):
    corpus, whole, path = stopped(as_text, stop=PART)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            build(corpus, path, small, stop=2 * PART)
    with pytest.raises(KeyboardInterrupt):
        build(corpus, path, small, stop=0)
    stored = len(dc.Index.open(path))
    assert build(corpus, path, small).added.unchanged == stored
    assert content(path) == content(whole)


@pytest.mark.parametrize(
    "change", ["another file", "its time", "its words", "the size of a passage"]
)
def test_another_corpus_is_read_from_its_beginning(stopped, small, change):
    corpus, _, path = stopped(as_text, whole=False)
    size = 16
    if change == "another file":
        (corpus / "0.txt").write_text("Before all others.")
    elif change == "its time":
        (corpus / "a.txt").touch()
    elif change == "its words":
        (corpus / "a.txt").write_text(
            (corpus / "a.txt").read_text().replace("castle 3.", "hill 3.")
        )
    else:
        size = 32
    dc.build_index([str(corpus)], path, chunk=size)
    again = path.with_name("again.idx")
    dc.build_index([str(corpus)], again, model=small, chunk=size)
    assert content(path) == content(again), "nothing of the old text stays"


def test_what_was_deleted_meanwhile_comes_back(stopped, small):
    corpus, whole, path = stopped(as_rows)
    with dc.Index.open(path, write=True) as index:
        assert index.delete(["r1", "r2"]) == 2
    build(corpus, path, small)
    assert content(path) == content(whole)


def test_a_first_build_leaves_no_old_versions(small, tmp_path, monkeypatch):
    monkeypatch.setattr("decoupled.index.build.SETTLED", timedelta(0))
    monkeypatch.setattr("decoupled.index.store.changes._MANY", 4)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    as_rows(corpus)
    build(corpus, tmp_path / "a.idx", small)
    table = lance.dataset(str(tmp_path / "a.idx" / "passages.lance"))
    live = {file.path for fragment in table.get_fragments() for file in fragment.data_files()}
    stored = {file.name for file in (tmp_path / "a.idx" / "passages.lance" / "data").iterdir()}
    assert len(table.versions()) == 1 and stored == live
    assert dc.check(tmp_path / "a.idx").sound
    as_text(corpus)
    build(corpus, tmp_path / "a.idx", small)
    table.checkout_latest()
    assert len(table.versions()) > 1, "others may read an index that is added to"


def test_what_an_older_version_noted_is_no_hindrance(stopped, small):
    corpus, whole, path = stopped(as_rows)
    (path / "resume.json").write_bytes(b'{"place": [0, 0')
    build(corpus, path, small)
    assert content(path) == content(whole) and dc.check(path).sound


def test_sync_removes_nothing_of_what_was_not_read_again(stopped, small):
    corpus, whole, path = stopped(as_pages)
    assert build(corpus, path, small, sync=True).removed == 0
    assert content(path) == content(whole)


def test_an_index_that_is_added_to_is_compared_by_content(stopped, small):
    corpus, _, path = stopped(as_rows, whole=False)
    build(corpus, path, small)
    as_text(corpus)
    with pytest.raises(KeyboardInterrupt):
        build(corpus, path, small, stop=PART)
    assert build(corpus, path, small).added.unchanged > TEXTS
