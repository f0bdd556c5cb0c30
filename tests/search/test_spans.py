"""Answers that end where a person would end them."""

import pytest

from decoupled.search.spans import REACH, lacks_number, widened

SQL = "To see today's date:\nSELECT date('now');\nIt is in UTC."


@pytest.mark.parametrize(
    "text, span, whole",
    [
        (SQL, "SELECT date", "SELECT date('now');"),
        (
            "Set it so:\n$ git config user.name Ada\nDone.",
            "git config",
            "$ git config user.name Ada",
        ),
        ('Open "file:data.db?mode=ro" to read.', 'mode=ro"', '"file:data.db?mode=ro"'),
        ('The type "list" is one.', 'list"', '"list"'),
        ('It is called "the long night" here.', '"the long', '"the long night"'),
        ("Call total() with rows (a and b) of it.", "rows (a", "rows (a and b)"),
        ("It is 25% of the memory.", "25", "25%"),
        ("At most 512 MiB are read.", "512", "512 MiB"),
        ("A page has 4 kB of room.", "4", "4 kB"),
        ("It boils at 100 °C there.", "100", "100 °C"),
    ],
)
def test_a_span_is_widened_to_what_it_is_part_of(text, span, whole):
    start = text.index(span)
    begin, end = widened(text, start, start + len(span))
    assert text[begin:end] == whole


@pytest.mark.parametrize(
    "text, span",
    [
        ("Bram Stoker wrote it in 1897 when he was fifty.", "1897"),
        ("Bram Stoker wrote Dracula.", "Bram Stoker"),
        ('He said "yes" and "no".', '"yes"'),
        ("The dog's tail (short) is white.", "tail (short)"),
        ("It took 30 days; then it ended.", "30"),
        ("It took 30 sick days.", "30"),
        ("SELECT is a word of SQL; so is FROM.", "SELECT"),
        ('An odd " mark', '" mark'),
        ("A thing (which never ends", "thing (which"),
    ],
)
def test_other_spans_stay_as_they_are(text, span):
    start = text.index(span)
    assert widened(text, start, start + len(span)) == (start, start + len(span))


def test_what_is_far_away_is_left_alone():
    text = '"' + "word " * REACH + 'end" of it'
    start = text.index('end"')
    assert widened(text, start, start + 4) == (start, start + 4)


@pytest.mark.parametrize(
    "question, answer, lacks",
    [
        ("How many seconds may a request take?", "Maximum number of seconds", True),
        ("How often are certificates checked?", "how often", True),
        ("What port is used?", "the network", True),
        ("How many seconds may a request take?", "60 seconds", False),
        ("How often are certificates checked?", "twice a day", False),
        ("How long did it last?", "fourteen years", False),
        ("How do I set the number of seconds?", "by a directive", False),
        ("Who wrote it?", "Bram Stoker", False),
        ("Wie viele Sekunden?", "viele", False),
    ],
)
def test_a_question_for_a_number_wants_one(question, answer, lacks):
    assert lacks_number(question, answer) is lacks
