"""Twice the input takes about twice the time: no text can be written that makes a reader quadratic."""

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import decoupled
from corpora import put
from decoupled.index.documents.chunks import Chunker
from decoupled.index.documents.files import File, UnreadableError
from decoupled.index.documents.ignore import Ignored
from decoupled.index.documents.passages import starter_tokenizer
from decoupled.index.documents.sources import BY_NAME
from decoupled.index.formats.blocks import TextBlock
from decoupled.index.formats.streams import in_memory

SMALL, LARGE = 1 << 15, 1 << 20
CASES = {
    "tags without end": ("markdown", "<div\n", "<a"),
    "comments without end": ("markdown", "<div>", "<!--"),
    "comments without end, one with": ("markdown", "<div><!-- x -->", "<!--"),
    "a title of space": ("markdown", "---\ntitle: a", " ", "b\n---\n"),
    "attributes": ("html", "<p ", "a=1 "),
    "plain": ("text", "", "word \n"),
    "underlines": ("text", "", "=== \n"),
}


def seconds(work):
    """The least processor time of three calls: what else the machine does only adds to it."""
    times = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def assert_linear(work):
    """`work(size)` takes at each doubling of the size at most about twice as long, up to a megabyte."""
    size, before = SMALL, seconds(lambda: work(SMALL))
    while size < LARGE:
        size *= 2
        now = seconds(lambda size=size: work(size))
        assert now < 0.5 or now < 3.5 * before, (size, before, now)
        before = now


@pytest.mark.parametrize("case", CASES)
def test_readers_are_linear(case):
    name, head, repeated, *tail = CASES[case]
    file = File(path=None, shown="x", name="x", format=BY_NAME[name])

    def read(size):
        text = head + repeated * (size // len(repeated)) + "".join(tail)
        try:
            for _ in file.format.blocks(file, in_memory(text.encode())):
                pass
        except UnreadableError:
            assert name == "html"

    assert_linear(read)


def test_a_pattern_of_git_is_linear_in_the_name(tmp_path):
    put(tmp_path, ".gitignore", "a*" * 12 + "b\n" + "**/a/" * 12 + "b")
    ignored = Ignored().within(tmp_path)
    path = str(tmp_path / "/".join(["a" * 240] * 10 + ["a"] * 40))
    assert seconds(lambda: ignored(path, folder=False)) < 0.1


@pytest.mark.parametrize("level", [0, 1, 2])
def test_chunks_are_linear_in_the_number_of_blocks(level):
    chunker = Chunker(starter_tokenizer())

    def cut(size):
        blocks = [TextBlock("a", level and 1 + n % level) for n in range(size // 16)]
        return list(chunker.document("x", blocks))

    assert_linear(cut)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_joins_lines_in_linear_time():
    view = (Path(decoupled.__file__).parent / "serve/page/view.js").read_text(encoding="utf-8")
    function = re.search(r"const flowing = .*?;\n(?=\n)", view, re.DOTALL)[0]
    check = (
        'const at = process.cpuUsage().user; flowing("a" + " ".repeat(80000) + "b");'
        "if (process.cpuUsage().user - at > 5e5) process.exit(1);"
        'if (flowing("a \\n b\\n\\n c  d\\t\\n") !== "a   b\\n  c  d  ") process.exit(2);'
    )
    assert subprocess.run(["node", "-e", function + check], check=False).returncode == 0
