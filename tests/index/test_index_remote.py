"""Indexes under addresses: an S3 server on this machine, memory, and the cache of remote records."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from commands import Commands
from decoupled.errors import IndexBusy, InputError
from decoupled.index.index import Index
from decoupled.index.store import disk_cache
from decoupled.index.store.disk_cache import DiskCache, parse_size
from decoupled.index.store.location import location_of
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine

pytest.importorskip("obstore", reason="addresses need the extra `cluster`")

WORDS = ("river", "town", "castle", "wrote", "novel", "spring", "the", "of", "house", "king")
QUERY = "which river runs past the castle"


def passages(count: int) -> list[Passage]:
    draw = np.random.default_rng(3)
    return [
        Passage(id=f"p{n}", text=" ".join(draw.choice(WORDS, size=int(draw.integers(4, 20)))))
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def split(model) -> Model:
    return Model.split(model("bert", "rank"), at=2)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """A bucket of an S3 server that this process runs; settings come as they do in production."""
    server = pytest.importorskip("moto.server", reason="the S3 server of the tests is moto")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    thread = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    thread.start()
    host, port = thread.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
        "NO_PROXY": "127.0.0.1",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    boto3 = pytest.importorskip("boto3")
    boto3.client("s3", endpoint_url=settings["AWS_ENDPOINT_URL"]).create_bucket(Bucket="docs")
    yield "s3://docs"
    thread.stop()
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


@pytest.fixture(params=["s3", "memory"])
def address(request, tmp_path) -> str:
    if request.param == "memory":
        return f"memory://{tmp_path.name}"
    return f"{request.getfixturevalue('bucket')}/{tmp_path.name}/docs.idx"


def test_a_remote_index_equals_a_local_one(address, split, tmp_path):
    """Create, add, change, delete, compact and search: the same hits as in a folder."""
    found = []
    for place in (address, tmp_path / "local.idx"):
        with Index.create(place, split, codec="int8") as index:
            assert index.add(passages(60)).added == 60
            changed = [Passage(id="p3", text="a castle by the river")]
            assert index.add([*passages(3), *changed]).replaced == 1
            assert index.delete(["p5", "absent"]) == 1
            index.compact(older_than=timedelta(0))
            with pytest.raises(IndexBusy, match="is being written by process"):
                Index.open(place, write=True)
        reader = Index.open(place)
        assert len(reader) == 59 and reader.info()["bytes"] > 10_000
        hits = Engine(reader).search(QUERY, k=60)
        assert "p3" in {h.id for h in hits}
        found.append([(h.id, h.score, h.text) for h in hits])
    assert found[0] == found[1]


def test_an_address_that_lost_a_slash_is_the_same(address, split):
    with Index.create(address, split) as index:
        index.add(passages(5))
    assert len(Index.open(Path(address))) == 5
    assert location_of(Path(address)).name == address


def test_what_is_not_an_index_says_so(address, split):
    with pytest.raises(InputError, match="does not exist, so it is not an index"):
        Index.open(address)
    place = location_of(address)
    place.save("notes.txt", b"mine")
    with pytest.raises(InputError, match="exists and is not an index"):
        Index.create(address, split)
    assert place.load("notes.txt") == b"mine" and place.load("absent") is None


def test_the_command_line_takes_addresses(bucket, split, tmp_path, monkeypatch, capsys):
    run = Commands(monkeypatch, capsys)
    split.save(tmp_path / "m")
    corpus = tmp_path / "docs.jsonl"
    corpus.write_text('{"id": "a", "text": "a castle by the river"}\n{"id": "b", "text": "king"}\n')
    address = f"{bucket}/cli.idx"
    made = run("index", str(corpus), "-o", address, "--model", str(tmp_path / "m"))
    assert made.code == 0 and f"{address}: 2 passages" in made.err
    assert run("info", address, "--json").json["passages"] == 2
    assert {h["id"] for h in run("search", address, "castle king", "--json").json["hits"]} == {
        *"ab"
    }
    assert run("search", address, "castle king", "--cascade", "0.5", "--json").json["hits"]
    assert run("delete", address, "b", "--json").json == {"deleted": 1}


def test_a_store_that_cannot_be_reached_is_one_line(bucket, monkeypatch, capsys):
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    failed = Commands(monkeypatch, capsys)("info", "s3://elsewhere/docs.idx")
    assert "s3://elsewhere/docs.idx cannot be reached" in failed.failure


def test_records_of_a_bucket_are_cached_on_disk(bucket, split, monkeypatch):
    monkeypatch.setenv(disk_cache.SIZE, "1MB")
    address = f"{bucket}/cached.idx"
    with Index.create(address, split, codec="fp16") as index:
        index.add(passages(30))
    engine = Engine(address)
    first = engine.search(QUERY, k=30)
    kept = engine.index.location._cache
    assert kept is not None and kept.misses >= len(first) and kept.hits == 0

    def unreachable(*args, **options):
        raise AssertionError("a record that was just read is fetched again")

    monkeypatch.setattr(engine.index.location._api, "get_ranges", unreachable)
    assert [h.score for h in engine.search(QUERY, k=30)] == [h.score for h in first]
    assert kept.hits >= len(first) and 0 < kept.bytes <= 1_000_000


def test_a_record_that_went_bad_in_the_cache_is_fetched_again(bucket, split, monkeypatch):
    monkeypatch.setenv(disk_cache.SIZE, "1MB")
    address = f"{bucket}/spoilt.idx"
    with Index.create(address, split, codec="fp16") as index:
        index.add(passages(30))
    engine = Engine(address)
    first = engine.search(QUERY, k=30)
    engine.index.location._cache._run("UPDATE records SET content = zeroblob(size)")
    assert [h.score for h in engine.search(QUERY, k=30)] == [h.score for h in first]
    assert [h.score for h in engine.search(QUERY, k=30)] == [h.score for h in first]


def fill(kept: DiskCache, numbers, size: int = 1000) -> None:
    for number in numbers:
        kept.keep(("segment", number), memoryview(bytes([number % 251]) * size))


def there(kept: DiskCache, number: int, size: int = 1000) -> bool:
    out = bytearray(size)
    found = kept.take(("segment", number), memoryview(out))
    assert not found or bytes(out) == bytes([number % 251]) * size
    return found


def test_a_cache_stays_within_its_budget_and_keeps_what_is_read(tmp_path):
    kept = DiskCache(tmp_path, 64_000)
    fill(kept, range(40))
    for number in range(40, 400):
        assert there(kept, 7)
        fill(kept, [number])
        assert kept.bytes <= 64_000
    assert there(kept, 399) and not there(kept, 0)
    assert not there(kept, 399, size=10)
    fill(kept, [500], size=8_001)
    assert not there(kept, 500, size=8_001), (
        "what is large for the budget would push out all others"
    )


def test_the_disk_holds_little_more_than_the_budget(tmp_path):
    kept = DiskCache(tmp_path, 1 << 20)
    fill(kept, range(9000))
    kept.close()
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 1.5 * (1 << 20) and file.stat().st_mode & 0o077 == 0
    small = DiskCache(tmp_path, 100_000)
    small.close()
    assert file.stat().st_size < 200_000, "a smaller budget gives the disk back"


def test_a_cache_is_found_again_and_shared(tmp_path):
    first = DiskCache(tmp_path, 64_000)
    fill(first, range(20))
    second = DiskCache(tmp_path, 64_000)
    assert there(second, 3)
    fill(second, range(20, 30))
    first.close()
    assert all(there(second, number) for number in range(30))
    second.close()
    assert not there(second, 3) and second.bytes == 0
    again = DiskCache(tmp_path, 64_000)
    assert all(there(again, number) for number in range(30))
    again.close()
    (tmp_path / "records.sqlite").write_bytes(b"half of a page " * 900)
    anew = DiskCache(tmp_path, 64_000)
    assert not there(anew, 3) and anew.bytes == 0
    fill(anew, [3])
    assert there(anew, 3)


def test_a_full_disk_ends_the_caching_and_no_read(tmp_path, caplog):
    kept = DiskCache(tmp_path, 1 << 20)
    fill(kept, range(3))
    pages = kept._run("PRAGMA page_count")[0][0]
    kept._run(f"PRAGMA max_page_count = {pages + 2}")  # as a disk with no more room
    fill(kept, range(3, 40))
    assert all(there(kept, number) for number in range(3)) and not there(kept, 39)
    assert len(caplog.records) == 1 and "nothing more is cached" in caplog.text
    kept.close()
    again = DiskCache(tmp_path, 1 << 20)
    assert all(there(again, number) for number in range(3)) and not there(again, 39)


def test_threads_share_a_cache(tmp_path):
    kept = DiskCache(tmp_path, 1 << 20)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: fill(kept, range(n, n + 20)), range(0, 200, 10)))
        assert all(pool.map(lambda n: there(kept, n), range(210)))
    assert kept.bytes == 210_000


@pytest.mark.parametrize(
    ("text", "size"), [("50GB", 50 * 10**9), ("1.5 mb", 1_500_000), ("0", 0), ("2TiB", 2 * 2**40)]
)
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


def test_a_size_that_is_none_says_so():
    with pytest.raises(InputError, match="write a size such as 50GB"):
        parse_size("plenty")
