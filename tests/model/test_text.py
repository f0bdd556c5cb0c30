"""Tokens, windows and offsets, on texts that users really have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoupled.errors import InputError
from decoupled.model.tokens import Tokenizer, mend, text_spec, window_spans
from tiny import tiny_tokenizer


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "unigram"])
def tokenizer(request, tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp(request.param)
    tiny_tokenizer(folder, request.param)
    json = (folder / "tokenizer.json").read_text(encoding="utf-8")
    return Tokenizer(json, text_spec(json, max_tokens=64, types=2))


def test_sides_join_to_what_transformers_packs(tmp_path, tokenizer):
    import tokenizers

    pair = tokenizers.Tokenizer.from_str(tokenizer.json).encode(
        "the quick fox", "a lazy dog sleeps"
    )
    query = tokenizer.query("the quick fox")
    passage = tokenizer.windows(["a lazy dog sleeps"])[0][0]
    assert [*query, *passage.ids] == pair.ids


def test_windows_follow_the_seed():
    assert list(window_spans(400, 317, 128)) == [(0, 317), (128, 400 + 0)]
    assert list(window_spans(317, 317, 128)) == [(0, 317)]
    assert list(window_spans(0, 317, 128)) == [(0, 0)]
    assert list(window_spans(700, 317, 128))[-1] == (384, 700)


def test_queries_are_cut_and_passages_are_not(tokenizer):
    long = "word " * 500
    assert len(tokenizer.query(long)) == tokenizer.spec.query_tokens
    windows = tokenizer.windows([long])[0]
    assert len(windows) > 1
    assert all(len(w.ids) <= tokenizer.spec.passage_tokens for w in windows)


AWKWARD = {
    "empty": "",
    "space": " \n\t ",
    "one word": "x" * 5000,
    "emoji": "👩‍👩‍👧‍👦 family 🇩🇪 flags ❤️" * 3,
    "right to left": "שלום עולם مرحبا بالعالم",
    "nul": "before\x00after\x00",
    "lone surrogate": "bad \ud800 half \udfff end",
    "combining": "e\u0301" * 50,
    "controls": "".join(map(chr, range(32))),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_texts_give_windows_and_spare_their_mates(tokenizer, name):
    text = AWKWARD[name]
    mates = ["an ordinary passage", text, "another one"]
    got = tokenizer.windows(mates)
    assert [list(w.ids) for w in got[0]] == [list(w.ids) for w in tokenizer.windows(mates[:1])[0]]
    assert got[1], "never no window"
    check_windows(text, got[1])
    assert len(tokenizer.query(text)) >= 2


def test_a_million_characters(tokenizer):
    text = "The committee of the whole house met again. " * 23_000
    windows = tokenizer.windows([text])[0]
    assert len(text) > 1_000_000 and len(windows) > 100
    check_windows(text, windows[:3] + windows[-3:], whole=False)


def check_windows(text, windows, *, whole=True):
    covered = 0
    for window in windows:
        assert text[window.start : window.start + len(window.text)] == window.text
        assert window.offsets.min(initial=0) >= 0
        assert window.offsets.max(initial=0) <= len(window.text)
        assert len(window.ids) == len(window.offsets)
        if whole:
            assert window.start <= covered, "a character fell between two windows"
            covered = max(covered, window.start + len(window.text))
    if whole:
        assert covered == len(text)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=400))
def test_every_text_is_covered_by_its_windows(text):
    tokenizer = any_text_tokenizer()
    check_windows(text, tokenizer.windows([text])[0])


_cache: list[Tokenizer] = []


def any_text_tokenizer() -> Tokenizer:
    if not _cache:
        import tempfile
        from pathlib import Path

        folder = Path(tempfile.mkdtemp())
        tiny_tokenizer(folder, "bpe")
        json = (folder / "tokenizer.json").read_text(encoding="utf-8")
        _cache.append(Tokenizer(json, text_spec(json, max_tokens=40, types=0)))
    return _cache[0]


def test_offsets_are_those_of_the_characters(tokenizer):
    text = "Dracula was written by Bram Stoker"
    window = tokenizer.windows([text])[0][0]
    covered = set()
    for a, b in window.offsets:
        covered |= set(range(a, b))
    assert "".join(text[i] for i in sorted(covered)).replace(" ", "") == text.replace(" ", "")


def test_windows_depend_on_the_passage_alone(tokenizer):
    text = "some passage of several words " * 40
    alone = tokenizer.windows([text])[0]
    among = tokenizer.windows(["x", text, "y" * 300])[1]
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(alone, among, strict=True))


def test_mend_keeps_every_offset():
    assert mend("a\ud800b") == "a\ufffdb"
    assert mend("plain") == "plain"


def test_a_text_that_is_no_string_is_named(tokenizer):
    with pytest.raises(InputError, match="must be a string, not int"):
        tokenizer.windows(["fine", 7])


def test_a_tokenizer_without_special_tokens_is_refused(tokenizer):
    import json

    bare = json.loads(tokenizer.json) | {"post_processor": None}
    with pytest.raises(InputError, match="puts no special tokens around a pair"):
        text_spec(json.dumps(bare), max_tokens=64, types=2)


def test_a_broken_tokenizer_file_is_named():
    with pytest.raises(InputError, match=r"tokenizer\.json cannot be read"):
        text_spec("{", max_tokens=64, types=2)


def test_cut_keeps_so_many_tokens_of_either_end(model):
    tokenizer = model("bert", "rank").tokenizer
    texts = ["the river of the town", "moon", "", "aaaaaaaaaaaaaaaaaaaaaaaa river"]
    first = tokenizer.cut(texts, 2)
    assert (
        first[:3] == ["the river", "moon", ""] and len(tokenizer.windows(first[3:])[0][0].ids) <= 3
    )
    assert tokenizer.cut(texts, 2, keep_end=True)[:3] == ["the town", "moon", ""]
    assert tokenizer.cut(texts, 100) == texts


@pytest.mark.parametrize("keep_end", [False, True])
def test_cut_looks_at_what_it_keeps_and_little_more(model, monkeypatch, keep_end):
    tokenizer = model("bert", "rank").tokenizer
    texts = ["the river of the town and the castle " * 900, "a" * 30_000, " " * 9000 + "moon river"]
    plain, seen = tokenizer.encode, []
    whole = [
        text[e.offsets[-3][0] :] if keep_end else text[: e.offsets[2][1]]
        for text, e in zip(texts, plain(texts), strict=True)
        if len(e.offsets) > 3
    ]

    def encode(parts):
        seen.append(sum(map(len, parts)))
        return plain(parts)

    monkeypatch.setattr(tokenizer, "encode", encode)
    found = tokenizer.cut(texts, 3, keep_end=keep_end)
    assert found == [*whole, *texts[len(whole) :]] and found[0] != texts[0]
    assert seen[0] < 1000
    seen.clear()
    tokenizer.cut(texts[:1], 3, keep_end=keep_end)
    assert len(seen) == 1
