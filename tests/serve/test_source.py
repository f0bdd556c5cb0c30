"""The file of a hit over HTTP: only one that the index lists, as it was, and nothing in it runs."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from urllib.parse import quote, urlsplit

import pytest

import browser
import decoupled as dc
import hostile
from browser import Page
from corpora import put
from decoupled.serve.http.app import create_app
from decoupled.serve.http.limits import SOURCE, Access, Limits
from live import serving
from served import listening

PAGE = (
    "<title>Rivers</title><h1>Warsaw</h1><p>The Vistula runs through Warsaw.</p>"
    "<script>document.title = 'ran'</script><img src=x onerror=\"document.title = 'ran'\">"
)
FILES = {
    "a b/warsaw.html": PAGE,
    "notes.md": "# Notes\n\nThe lighthouse of Skerry was lit in 1844.\n",
    "wide.txt": "Der Fluß Weichsel fließt über Krakau.".encode("utf-16"),
    "deep.pdf": hostile.nested_forms(1),
    "packed.zip": hostile.zipped({"inside.md": "# Packed\n\nThe tide turns at six.\n"}),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    for name, content in FILES.items():
        raw = content if isinstance(content, bytes) else content.encode()
        put(folder / "docs", name, raw)
    put(folder, "secret.md", "# Secret\n\nNobody may read this.\n")
    dc.build_index(folder / "docs", folder / "i")
    return folder


def served(built, **access):
    access = {"files": "local", **access}
    return listening(create_app(dc.Engine(built / "i"), access=Access(**access)))


@pytest.fixture(scope="module")
def address(built):
    with served(built) as url:
        yield url


def get(url, ident, headers=()):
    """Status, headers and content of the file of a passage."""
    request = urllib.request.Request(url + SOURCE + quote(ident, safe=""), headers=dict(headers))
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, json.loads(error.read())


def ids(built):
    with dc.Index.open(built / "i") as index:
        return {p.id.partition("#")[0]: p.id for p in index.refresh().scan()}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a b/warsaw.html", "text/html; charset=utf-8"),
        ("notes.md", "text/plain; charset=utf-8"),
        ("wide.txt", "text/plain; charset=utf-8"),
        ("deep.pdf", "application/pdf"),
        ("packed.zip/inside.md", "application/octet-stream"),
    ],
)
def test_each_kind_of_file_is_sent_as_what_cannot_act(built, address, name, kind):
    status, headers, raw = get(address, ids(built)[name])
    assert (status, headers["content-type"]) == (200, kind)
    assert headers["x-content-type-options"] == "nosniff"
    policy = headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert (kind == "application/pdf") != ("sandbox; default-src 'none'" in policy)
    file = built / "docs" / name
    expected = (file if file.exists() else file.parent).read_bytes()
    if name == "wide.txt":
        expected = expected.decode("utf-16").encode()
    assert raw == expected
    assert ("attachment" in headers.get("content-disposition", "")) == ("octet" in kind)


@pytest.mark.parametrize(
    "ident", ["../secret.md", "/etc/passwd", "..%2fsecret.md", "files.json", "notes.md/../x", "\0"]
)
def test_only_passages_of_the_index_lead_to_files(address, ident):
    status, _, error = get(address, ident)
    assert (status, error["error_type"]) == (404, "not_found")
    host, port = urlsplit(address).netloc.split(":")
    connection = http.client.HTTPConnection(host, int(port))
    connection.putrequest("GET", SOURCE + ident.replace("\0", "%00"))  # not tidied by the client
    connection.endheaders()
    assert connection.getresponse().status == 404


def test_a_passage_that_came_over_http_has_no_file(built, address):
    with dc.Index.open(built / "i", write=True) as index:
        meta = {"document": str(built / "secret.md")}
        index.add([dc.Passage(id=f"{built}/secret.md#1", text="mine", meta=meta)])
    status, _, error = get(address, f"{built}/secret.md#1")
    assert status == 404 and "lists no file" in error["error"]


def test_a_file_that_is_gone_or_another_is_not_sent(built, address):
    ident, path = ids(built)["notes.md"], built / "docs" / "notes.md"
    before, raw = path.stat(), path.read_bytes()
    try:
        path.unlink()
        status, _, error = get(address, ident)
        assert status == 410 and "is not there any more" in error["error"]
        assert str(built) not in error["error"]
        os.mkfifo(path)
        assert get(address, ident)[0] == 410
        path.unlink()
        # A link to a file of the same size and time is still another file.
        secret = put(built, "other.md", b"x" * before.st_size)
        os.utime(secret, ns=(before.st_atime_ns, before.st_mtime_ns))
        path.symlink_to(secret)
        status, _, error = get(address, ident)
        assert status == 410 and "is not as it was" in error["error"]
    finally:
        path.unlink()
        path.write_bytes(raw)
    dc.build_index(built / "docs", built / "i")  # read again: it is listed as it is now
    assert get(address, ident)[2] == raw


def test_it_is_off_unless_this_machine_asks_or_it_was_allowed(built):
    ident = ids(built)["notes.md"]
    proxy = {"host": "docs.example.org"}
    with served(built, files="none") as url:
        status, _, error = get(url, ident)
        assert status == 403 and "--open-files" in error["error"]
    with served(built, hosts=("docs.example.org",)) as url:
        assert get(url, ident)[0] == 200
        assert get(url, ident, proxy)[0] == 403
    with served(built, files="all", hosts=("docs.example.org",)) as url:
        assert get(url, ident, proxy)[0] == 200
        assert get(url, ident, {"host": "evil.example"})[0] == 403
    with served(built, keys=(b"k",), protect_reads=True) as url:
        assert get(url, ident)[0] == 401
        assert get(url, ident, {"x-api-key": "k"})[0] == 200


def test_a_server_that_opens_files_for_all_links_to_itself(built):
    with serving(built / "i", "--host", "0.0.0.0", "--open-files") as url:
        body = json.dumps({"query": "lighthouse of Skerry", "k": 1}).encode()
        request = urllib.request.Request(
            f"{url}/v1/search", body, {"content-type": "application/json"}
        )
        (hit,) = json.load(urllib.request.urlopen(request))["hits"]
        assert hit["link"] == SOURCE + quote(hit["id"], safe="")
        assert b"Skerry" in urllib.request.urlopen(url + hit["link"]).read()


@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
def test_the_page_opens_the_file_of_a_hit_and_no_script_of_it_runs(built):
    with browser.chromium() as driver, serving(built / "i") as url:
        page = Page(driver, url)
        page.open()
        page.ask("What runs through Warsaw?")
        page.click(".hit a", "warsaw.html")
        driver.switch_to.window(driver.window_handles[-1])
        page.see("h1", "Warsaw")
        assert driver.title == "Rivers"


def send(url, name, raw, headers=()):
    """Status and JSON of a document that was sent."""
    request = urllib.request.Request(
        f"{url}/v1/documents/{quote(name, safe='')}", raw, dict(headers), method="PUT"
    )
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


NOTES = "# Harbour\n\nThe lamp of Skerry was lit in 1844.\n\n# Tides\n\n" + 40 * "High water. "


@pytest.fixture
def empty(tmp_path):
    dc.Index.create(tmp_path / "i").close()
    return tmp_path


def test_documents_are_stored_as_they_are(empty):
    app = create_app(dc.Engine(empty / "i"), limits=Limits(documents=2))
    with listening(app) as url:
        status, stored = send(url, "my notes.md", NOTES.encode())
        assert status == 200 and stored["added"] == stored["passages"] == len(stored["ids"]) >= 2
        assert all(ident.startswith("my notes.md") for ident in stored["ids"])
        again = send(url, "my notes.md", NOTES.encode())[1]
        assert (again["added"], again["unchanged"]) == (0, stored["added"])
        # Brackets of a PDF are no JSON that is nested too deeply.
        drawn = hostile.nested_forms(1) + b"%" + b"[" * 5000
        assert send(url, "deep.pdf", drawn)[0] in (200, 422)
        with urllib.request.urlopen(f"{url}/v1/passages/{quote(stored['ids'][0])}") as reply:
            passage = json.load(reply)
        assert "1844" in passage["text"] and "Harbour" in passage["title"]
        assert passage["meta"]["document"] == "my notes.md"


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("a.bin", b"\x00\x01", "a.bin"),
        ("empty.md", b"", "holds no text"),
        ("..", b"\x00\x01", "document"),
        ("x" * 300 + ".pdf", b"no PDF", "x.pdf"),
    ],
)
def test_a_document_that_cannot_be_read_says_why(empty, name, raw, words):
    with served(empty) as url:
        status, problem = send(url, name, raw)
        assert status == 422 and words in problem["error"] and "/tmp" not in problem["error"]
    with dc.Index.open(empty / "i") as index:
        assert len(index) == 0


def test_documents_are_changes_and_need_leave(empty):
    with served(empty, writes=False) as url:
        assert send(url, "a.md", NOTES.encode())[0] == 403
    with served(empty, keys=(b"secret",)) as url:
        assert send(url, "a.md", NOTES.encode())[0] == 401
        key = {"authorization": "Bearer secret"}
        assert send(url, "a.md", NOTES.encode(), key)[0] == 200
