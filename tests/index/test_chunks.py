"""Documents cut into passages: what is kept together, what passages are called, and where they lie."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpora import put
from decoupled.errors import InputError
from decoupled.index.documents import CHUNK, read_passages
from decoupled.index.documents.chunks import Chunker
from decoupled.index.documents.passages import starter_tokenizer
from decoupled.index.formats.blocks import TextBlock
from decoupled.model.sentences import sentences
from decoupled.model.tokens import Passage

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "sleeps",
    "all",
    "day",
]


def prose(count, seed=0, tokens=12):
    """So many sentences of so many tokens, the full stop among them."""
    words = itertools.islice(itertools.cycle(WORDS[seed:] + WORDS[:seed]), count * (tokens - 1))
    parts = [list(itertools.islice(words, tokens - 1)) for _ in range(count)]
    return " ".join(" ".join(p).capitalize() + "." for p in parts)


@pytest.fixture(scope="module")
def tokenizer():
    return starter_tokenizer()


def cut(tokenizer, *blocks, size=60, **options):
    return list(Chunker(tokenizer, size, **options).document("d", blocks))


def whole(tokenizer, blocks):
    (passage,) = cut(tokenizer, *blocks, size=None)
    return passage.text


def test_passages_end_at_headings_and_say_what_stands_above_them(tokenizer):
    blocks = [
        TextBlock("Manual", 1),
        TextBlock(prose(3)),
        TextBlock("Install", 2),
        TextBlock(prose(4, 1)),
        TextBlock("Linux", 3),
        TextBlock(prose(4, 2)),
        TextBlock("Use", 2),
        TextBlock(prose(4, 3)),
    ]
    found = cut(tokenizer, *blocks)
    assert [p.id for p in found] == ["d#manual/1", "d#install/1", "d#linux/1", "d#use/1"]
    assert [p.title for p in found] == [
        "Manual",
        "Manual › Install",
        "Manual › Install › Linux",
        "Manual › Use",
    ]
    assert [p.text for p in found] == [b.text for b in blocks if not b.level]
    assert found[2].meta["headings"] == ["Manual", "Install", "Linux"]


def test_every_token_is_in_one_passage_and_no_sentence_is_cut(tokenizer):
    blocks = [TextBlock("One", 1), *(TextBlock(prose(n, n)) for n in (1, 30, 2, 3, 17, 1))]
    found = cut(tokenizer, *blocks)
    lengths = tokenizer.lengths([p.text for p in found])
    assert max(lengths) <= 1.3 * 60 and sorted(lengths)[1] >= 30
    expected = [s for b in blocks[1:] for s in sentences(b.text)]
    assert [s.strip() for p in found for s in sentences(p.text)] == [s.strip() for s in expected]


def test_a_short_end_joins_the_passage_before_it(tokenizer):
    (only,) = cut(tokenizer, TextBlock(prose(5)), TextBlock(prose(1, 5)))
    assert only.id == "d" and tokenizer.lengths([only.text]) == [72]


def test_short_sections_of_one_chapter_share_a_passage_with_their_headings(tokenizer):
    blocks = [
        TextBlock("Book", 1),
        TextBlock("A", 2),
        TextBlock("x is 1."),
        TextBlock("B", 2),
        TextBlock("y is 2."),
    ]
    (only,) = cut(tokenizer, *blocks)
    assert (only.title, only.text) == ("Book", "A\n\nx is 1.\n\nB\n\ny is 2.")


def test_a_short_section_does_not_take_the_beginning_of_a_long_one(tokenizer):
    blocks = [
        TextBlock("Book", 1),
        TextBlock("A", 2),
        TextBlock("x is 1."),
        TextBlock("B", 2),
        TextBlock(prose(6)),
    ]
    first, *rest = cut(tokenizer, *blocks)
    assert (first.id, first.title, first.text) == ("d#a/1", "Book › A", "x is 1.")
    assert [p.title for p in rest] == ["Book › B"] * len(rest)


def test_a_line_that_announces_a_listing_stays_with_it(tokenizer):
    listing = "\n".join(f"print({n})" for n in range(8))
    blocks = [TextBlock(prose(4)), TextBlock("For example:"), TextBlock(listing, lines=True)]
    assert [p.text for p in cut(tokenizer, *blocks)] == [prose(4), f"For example:\n\n{listing}"]


def test_a_listing_is_cut_between_lines(tokenizer):
    lines = [f"value_{n} = compute(value_{n}. Next, 1)" for n in range(30)]
    found = cut(tokenizer, TextBlock("\n".join(lines), lines=True))
    assert len(found) > 3
    assert [line for p in found for line in p.text.split("\n")] == lines


def test_a_sentence_longer_than_a_passage_is_cut_between_tokens(tokenizer):
    text = "word " * 200 + "end."
    found = cut(tokenizer, TextBlock(text))
    assert max(tokenizer.lengths([p.text for p in found])) <= 78
    assert " ".join(p.text for p in found) == text


def test_what_is_no_prose_makes_no_huge_passage(tokenizer):
    found = cut(tokenizer, TextBlock("x" * 100_000))
    assert max(len(p.text) for p in found) <= 60 * 20 * 1.3
    assert "".join(p.text for p in found) == "x" * 100_000


def test_equal_headings_give_ids_of_their_own(tokenizer):
    blocks = [b for n in range(3) for b in (TextBlock("Notes & more", 1), TextBlock(prose(4, n)))]
    ids = [p.id for p in cut(tokenizer, *blocks)]
    assert ids == ["d#notes-more/1", "d#notes-more-2/1", "d#notes-more-3/1"]


def test_an_edit_changes_only_the_passages_of_its_section(tokenizer):
    def document(middle):
        blocks = [(TextBlock(f"Part {n}", 1), TextBlock(prose(9, n))) for n in range(5)]
        blocks[2] = (TextBlock("Part 2", 1), TextBlock(middle))
        return {p.id: (p.title, p.text) for p in cut(tokenizer, *itertools.chain(*blocks))}

    one, other = document(prose(9, 2)), document("A new beginning. " + prose(14, 2))
    changed = {i for i in one.keys() | other.keys() if one.get(i) != other.get(i)}
    assert changed and all(i.startswith("d#part-2/") for i in changed)


def test_without_title_path_the_headings_are_in_the_text(tokenizer):
    blocks = [TextBlock("Manual", 1), TextBlock("Use", 2), TextBlock(prose(4))]
    (only,) = cut(tokenizer, *blocks, title_path=False)
    assert (only.title, only.text) == ("", f"Manual\n\nUse\n\n{prose(4)}")
    assert only.meta["headings"] == ["Manual", "Use"]


texts = st.text("ab. \n\t»Ü。x", min_size=1, max_size=200).filter(str.strip)
blocks_of = st.lists(
    st.builds(
        lambda text, level, lines: TextBlock(text.strip(), level, lines and not level),
        texts,
        st.sampled_from([0, 0, 0, 1, 2]),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(blocks=blocks_of, size=st.integers(16, 40), title_path=st.booleans())
def test_a_passage_is_a_slice_of_the_document(tokenizer, blocks, size, title_path):
    found = cut(tokenizer, *blocks, size=size, title_path=title_path)
    if not any(not block.level for block in blocks):
        assert found == []
        return
    text, place = whole(tokenizer, blocks), 0
    assert len({p.id for p in found}) == len(found)
    for passage in found:
        start, end = passage.meta["start"], passage.meta["end"]
        assert passage.text == text[start:end] and start >= place
        if not title_path:
            assert not text[place:start].strip(), (blocks, size, found)
        place = end


@settings(max_examples=100, deadline=None)
@given(text=st.text('ab. \n\tA"1e.g', max_size=300))
def test_sentences_add_up_to_their_text(text):
    assert "".join(sentences(text)) == text


def test_a_long_run_of_stops_is_read_once():
    """From each of them on it would take minutes: dotted lines of a table of contents, or a hostile file."""
    text = "One. Two" + "." * 200_000 + " Three..! Four"
    assert [s[:4] for s in sentences(text)] == ["One.", "Two.", "Thre", "Four"]


def test_sentences():
    text = (
        'Dr. No met J. Bond, e.g. in 1962. "Did he?" He did! See sec. 3. 那是。对 (Yes.) 1.5 is it.'
    )
    assert [s.strip() for s in sentences(text)] == [
        "Dr. No met J. Bond, e.g. in 1962.",
        '"Did he?"',
        "He did!",
        "See sec. 3.",
        "那是。",
        "对 (Yes.)",
        "1.5 is it.",
    ]


# Rows ---------------------------------------------------------------------------------------------


def test_a_row_that_the_model_reads_at_once_stays_as_it_is(tokenizer):
    passage = Passage(id="p", text=prose(30), title="T", meta={"k": 1})
    assert list(Chunker(tokenizer).record(passage)) == [passage]


def test_a_longer_row_is_cut_into_numbered_passages(tokenizer):
    text = "\n\n".join(prose(8, n) for n in range(8))
    found = list(Chunker(tokenizer).record(Passage(id="p", text=text, title="T", meta={"k": 1})))
    assert [p.id for p in found] == [f"p#{n}" for n in range(1, len(found) + 1)]
    assert max(tokenizer.lengths([p.text for p in found])) <= 1.3 * CHUNK
    for passage in found:
        meta = dict(passage.meta)
        assert text[meta.pop("start") : meta.pop("end")] == passage.text
        assert meta == {"k": 1, "document": "p"} and passage.title == "T"
    assert "".join("".join(p.text for p in found).split()) == "".join(text.split())
    (same,) = Chunker(tokenizer, None).record(Passage(id="p", text=text))
    assert same.text == text


def test_sizes_that_no_model_reads_are_refused(tokenizer, tmp_path):
    path = put(tmp_path, "a.txt", "x")
    with pytest.raises(InputError, match="chunk=4; choose 16 to 427 tokens"):
        read_passages(path, chunk=4)
    with pytest.raises(InputError, match="chunk=1000; choose"):
        read_passages(path, chunk=1000)


KINDS = st.tuples(
    st.integers(0, 3), st.integers(1, 9), st.booleans(), st.booleans(), st.integers(0, 12)
)
