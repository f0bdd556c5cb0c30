"""Readers of documents: what of a file is text, under which headings, and in which encoding."""

import gzip
import io

import pytest

from corpora import put
from decoupled.errors import InputError
from decoupled.index.documents import read_passages

PAGE = """<!doctype html><html><head><title>CREATE INDEX — PostgreSQL manual</title>
<style>p { color: red }</style><script>var hidden = "<p>no</p>";</script></head>
<body><div class="navheader"><a href="a">Prev</a> <a href="b">Next</a></div>
<nav><ul><li>Home</li></ul></nav><header><a href="/">Logo</a></header>
<div role="main"><h1>CREATE INDEX<a class="headerlink" href="#x">¶</a></h1>
<p>Defines a <b>new</b> index,
on one table.</p>
<ul><li><a href="1">Parts</a></li><li><a href="2">Uses</a></li><li><a href="3">More</a></li></ul>
<h2>Parameters</h2><dl><dt><code>UNIQUE</code></dt><dd><p>Checks for duplicates.</p></dd>
<dt><code>name</code></dt><dd>The name &amp; place.</dd></dl>
<pre>CREATE INDEX i
    ON t (c);</pre>
<table><tr><th>Method</th><th>Use</th></tr><tr><td>btree</td><td>order<br>range</td></tr></table>
<aside>Did you know?</aside><form><input value="q"></form></div>
<footer>© nobody</footer></body></html>"""


def texts(path, **options):
    return [p.text for p in read_passages(path, **options)]


def whole(path):
    (passage,) = read_passages(path, chunk=None)
    return passage


def test_html_gives_what_a_reader_of_the_page_would_read(tmp_path):
    found = whole(put(tmp_path, "page.html", PAGE))
    assert found.title == "PostgreSQL manual"
    assert found.text.split("\n\n") == [
        "PostgreSQL manual",
        "CREATE INDEX",
        "Defines a new index, on one table.",
        "Parameters",
        "UNIQUE\nChecks for duplicates.",
        "name\nThe name & place.",
        "CREATE INDEX i\n    ON t (c);",
        "Method | Use\nbtree | order range",
    ]


def test_html_signatures_are_headings(tmp_path):
    page = """<title>json</title><h1>json</h1><dl class="py function"><dt class="sig">
    <span class="sig-prename">json.</span><span class="sig-name">dump</span>(<em>obj</em>, <em>fp</em>)</dt>
    <dd><p>%s</p><dl><dt class="sig"><span class="sig-name">inner</span></dt><dd>%s</dd></dl></dd></dl>"""
    long = "Writes it all. " * 40
    found = list(read_passages(put(tmp_path, "json.html", page % (long, long))))
    assert found[0].title == "json › json.dump" and found[0].text.startswith("json.dump(obj, fp)\n")
    assert found[-1].title == "json › json.dump › inner"


def test_html_pages_of_links_have_no_text(tmp_path):
    links = "".join(f'<li><a href="{n}">Section {n}</a></li>' for n in range(50))
    problems = []
    path = put(tmp_path, "toc.html", f"<h1>Contents</h1><ul>{links}</ul>")
    assert list(read_passages(path, report=problems.append)) == []
    assert [(str(p), p.kind) for p in problems] == [(f"{path}: has no text; left out", "left out")]


def test_html_nested_deeper_than_any_page_is_still_read(tmp_path):
    page = "<div>" * 5000 + "deep" + "</div>" * 5000
    assert texts(put(tmp_path, "a.html", page)) == ["deep"]


def test_markdown(tmp_path):
    text = (
        '---\ntitle: "The manual"\n---\n# One *two*\n\nHello [link](http://x) `code`\nworld. <b>x</b>\n\n'
        "```py\nx = 1\n\ny = 2\n```\n\n| a | b |\n|---|---|\n| 1 | **2** |\n\n- item\n- other\n\nSub\n---\n\n"
        "<!-- no -->\n\n<div>in <i>tags</i></div>\n"
    )
    found = whole(put(tmp_path, "a.md.gz", gzip.compress(text.encode())))
    assert found.id == "a.md"
    assert found.text == (
        "The manual\n\nOne two\n\nHello link code world. x\n\nx = 1\n\ny = 2\n\na | b\n1 | 2\n\nitem\n\n"
        "other\n\nSub\n\nin tags"
    )
    (passage,) = read_passages(tmp_path / "a.md.gz")
    assert passage.title == "The manual › One two"


def test_rst(tmp_path):
    text = """
=====
Title
=====

.. toctree::
   :maxdepth: 2

   one
   two

See :ref:`the thing <foo>`, :func:`~os.path` and ``code`` with *emphasis*::

    x = 1

    y = 2

.. note::
   Careful *here*.

   And here.

Part ``a``
==========

.. code-block:: python
   :linenos:

   print(1)

.. _target:
.. comment

   of two paragraphs

After `a link <http://x>`_ text.
"""
    assert whole(put(tmp_path, "a.rst", text)).text.split("\n\n") == [
        "Title",
        "See the thing, os.path and code with emphasis:",
        "x = 1",
        "y = 2",
        "Careful here.",
        "And here.",
        "Part a",
        "print(1)",
        "After a link text.",
    ]


def test_plain_text_may_underline_its_headings(tmp_path):
    text = "Policy\n******\n\nIntro.\n\n1. Scope\n=========\nEverything.\n\n--- no heading\n"
    found = whole(put(tmp_path, "policy.txt", text))
    assert (found.title, found.text.split("\n\n")) == (
        "Policy",
        ["Policy", "Intro.", "1. Scope", "Everything.", "--- no heading"],
    )


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("a.txt", "Grüße aus Köln, schöne Straße".encode("utf-16")),
        ("a.txt", "Grüße aus Köln, schöne Straße".encode("utf-16-le")),
        ("a.txt", b"\xef\xbb\xbf" + "Grüße aus Köln, schöne Straße".encode()),
        ("a.txt", "Grüße aus Köln, schöne Straße".encode("latin-1")),
        ("a.html", '<meta charset="cp437"><p>Grüße aus Köln, schöne Straße'.encode("cp437")),
        ("a.html", '<meta charset="nonsense"><p>Grüße aus Köln, schöne Straße'.encode()),
    ],
)
def test_encodings(tmp_path, name, raw):
    assert texts(put(tmp_path, name, raw)) == ["Grüße aus Köln, schöne Straße"]


# Folders ------------------------------------------------------------------------------------------


def test_what_programs_made_is_left_out_of_folders(tmp_path):
    kept = ["docs/a.html", "docs/build/b.md", "docs/_sources/c.txt"]
    left = [
        *("node_modules/x/README.md", ".git/notes.txt", "venv/lib/a.txt", "__pycache__/a.txt"),
        *("html/_sources/a.txt", "rust/target/a.md", "py/dist/a.md"),
    ]
    for name in (*kept, *left):
        put(tmp_path, name, "<p>text" if name.endswith("html") else "text")
    for name in ("html/searchindex.js", "rust/Cargo.toml", "py/setup.py"):
        put(tmp_path, name, "")
    assert sorted(p.id for p in read_passages(tmp_path)) == sorted(kept)


def test_what_git_ignores_is_left_out_of_folders(tmp_path):
    rules = "*.log.txt\n!kept.log.txt\n/build\ndrafts/\ndeep/**/x.md\n# a comment\n"
    put(tmp_path, ".gitignore", rules)
    put(tmp_path, "sub/.gitignore", "*.md\n!b.log.txt\n")
    put(tmp_path, "odd/.gitignore", b"\xff\xfe*")
    kept = ["a.md", "kept.log.txt", "sub/build/a.txt", "sub/b.log.txt", "deep/x.txt", "odd/a.txt"]
    left = ["a.log.txt", "build/a.md", "drafts/a.md", "sub/drafts/a.txt", "sub/c.md", "deep/1/x.md"]
    for name in (*kept, *left):
        put(tmp_path, name, "text")
    problems = []
    found = sorted(p.id for p in read_passages(tmp_path, report=problems.append))
    assert found == sorted(kept)
    assert f"{tmp_path}: .gitignore leaves out 3 here: a.log.txt, build, drafts" in map(
        str, problems
    )
    assert {p.kind for p in problems} == {"left out"}
    assert [p.id for p in read_passages(tmp_path / "drafts")] == ["a.md"], "it was named"


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input_is_read_as_the_format_that_is_given(monkeypatch, packed):
    raw = gzip.compress(PAGE.encode()) if packed else PAGE.encode()

    def given(**options):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
        return list(read_passages("-", **options))

    (page,) = given(format="html")
    assert page.title == "PostgreSQL manual › CREATE INDEX" and page.id == "stdin"
    assert page.text.startswith("Defines a new index")
    assert len(given()) > 10, "a passage a line"
    with pytest.raises(InputError, match=r"format is 'HTML'; choose jsonl, json, csv"):
        given(format="HTML")


def test_a_named_file_of_an_unknown_ending_is_read_as_the_format_that_is_given(tmp_path):
    path = put(tmp_path, "page.php", PAGE)
    (page,) = read_passages(path, format="html")
    assert page.title == "PostgreSQL manual › CREATE INDEX"
    assert next(read_passages(path)).text.startswith("<!doctype html>")
    (text,) = read_passages(put(tmp_path, "b.md", "# A\n\nB"), format="html")
    assert text.title == "A", "a known ending says more"


def test_include_and_exclude(tmp_path):
    for name in ("a.md", "sub/b.md", "sub/c.txt", "drafts/d.md"):
        put(tmp_path, name, "text")

    def ids(**options):
        return [p.id for p in read_passages(tmp_path, **options)]

    assert ids(include=["*.md"]) == ["a.md", "drafts/d.md", "sub/b.md"]
    assert ids(include=["*.md"], exclude=["drafts"]) == ["a.md", "sub/b.md"]
    assert ids(exclude=["sub/*"]) == ["a.md", "drafts/d.md"]


def test_links_are_read_at_the_place_they_point_to_or_not_at_all(tmp_path):
    put(tmp_path, "one/a.txt", "a")
    put(tmp_path, "outside/secret.txt", "no")
    put(tmp_path, "two/b.txt", "b")
    (tmp_path / "one" / "loop").symlink_to(tmp_path / "one")
    (tmp_path / "one" / "two").symlink_to(tmp_path / "two")
    (tmp_path / "one" / "c.txt").symlink_to(tmp_path / "outside" / "secret.txt")
    (tmp_path / "three").symlink_to(tmp_path / "two")
    problems = []
    named = (tmp_path / "one", tmp_path / "three", tmp_path / "two")
    ids = [p.id for p in read_passages(*named, report=problems.append)]
    assert ids == ["one/a.txt", "three/b.txt"]
    assert [p.path for p in problems] == [str(tmp_path / "one" / "c.txt")]
    assert "is a link out of the folder; name what it points at" in str(problems[0])
