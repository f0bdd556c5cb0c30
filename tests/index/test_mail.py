"""Mail: what a message says, whatever wrote it, and mailboxes in which some of it is broken."""

import gzip
from email.message import EmailMessage

import pytest

from corpora import put
from decoupled.errors import InputError
from decoupled.index.documents import read_passages


def message(text="The bridge is 120 m long.\n\nFrom here on it rises.\n", **more):
    made = EmailMessage()
    headers = {"From": "Jörg <j@x.org>", "To": "ann@x.org", "Subject": "Die Brücke"}
    for name, value in {**headers, "Date": "Tue, 03 May 2022 10:11:12 +0200"}.items():
        made[name] = value
    made.set_content(text, **more)
    return made


def box(*messages):
    before = b"From j@x.org Tue May  3 10:11:12 2022\n"
    escaped = (raw.replace(b"\nFrom h", b"\n>From h").rstrip() for raw in messages)
    return b"".join(before + raw + b"\n\n" for raw in escaped)


TEXT = "The bridge is 120 m long.\n\nFrom here on it rises."
HEAD = "From: Jörg <j@x.org>\nTo: ann@x.org\nDate: 2022-05-03 10:11+02:00"
PAGE = "<html><head><style>p {}</style></head><body><p>Le café<p>ouvre à 9 h.</body></html>"


def test_a_message_is_a_passage_with_its_subject_sender_and_date(tmp_path):
    made = message()
    made.add_alternative("<p>other words", subtype="html")
    made.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="plan.pdf")
    (found,) = read_passages(put(tmp_path, "a.eml", bytes(made)))
    assert (found.id, found.title) == ("a.eml", "Die Brücke")
    assert found.text == f"{HEAD}\nAttached: plan.pdf\n\n{TEXT}"
    assert found.meta == {"from": "Jörg <j@x.org>", "date": "2022-05-03 10:11+02:00"}


def test_what_is_attached_is_named_and_not_read(tmp_path):
    made = message()
    made.add_attachment("minutes of the meeting", filename="minutes.txt")
    (found,) = read_passages(put(tmp_path, "a.eml", bytes(made)))
    assert "Attached: minutes.txt" in found.text and "meeting" not in found.text
    only = message()
    only.make_mixed()
    only.set_payload(only.get_payload()[1:])
    only.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="plan.pdf")
    (found,) = read_passages(put(tmp_path, "b.eml", bytes(only)))
    assert found.text == f"{HEAD}\nAttached: plan.pdf"


def test_a_message_of_a_page_alone_is_read_as_one_in_its_own_encoding(tmp_path):
    raw = bytes(message(PAGE, subtype="html", charset="latin-1"))
    (found,) = read_passages(put(tmp_path, "a.eml", raw))
    assert found.text == f"{HEAD}\n\nLe café\n\nouvre à 9 h."


@pytest.mark.parametrize("name", ["in.mbox", "in.mbox.gz"])
def test_a_mailbox_is_a_passage_a_message(tmp_path, name):
    raw = box(bytes(message()), bytes(message("Second.\n\nFrom Monday 9 on.\n")))
    found = list(
        read_passages(put(tmp_path, name, gzip.compress(raw) if name.endswith("gz") else raw))
    )
    assert [passage.id for passage in found] == ["in.mbox:1", "in.mbox:2"]
    assert found[0].text == f"{HEAD}\n\n{TEXT}"
    assert found[1].text == f"{HEAD}\n\nSecond.\n\nFrom Monday 9 on."


def test_headers_and_texts_that_keep_to_no_standard_are_read(tmp_path):
    raw = (
        b"FROM: J\xf6rg <<j@@x>>,;;\nSubject: Gr\xfc\xdfe =?none?Q?x?=\nDate: soon\n"
        b"Content-Type: text/plain; charset=klingon\n\nSch\xf6ne Gr\xfc\xdfe aus M\xfcnchen am Flu\xdf.\n"
    )
    (found,) = read_passages(put(tmp_path, "a.eml", raw))
    assert found.title == "Grüße =?none?Q?x?="
    assert found.text == "From: Jörg <<j@@x>>,;;\nDate: soon\n\nSchöne Grüße aus München am Fluß."


NESTED = b"From: a@b\n" + b"".join(
    b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(1000)
)
BROKEN = {
    "no.eml": (b"hello, world", "is no mail; expected one of its headers: From"),
    "parts.eml": (b"From: a@b\nContent-Type: multipart/mixed\n\n--x\nhello", "nothing divides"),
    "deep.eml": (NESTED, "deeper than mail is"),
    "binary.eml": (b"From: a@b\n\n" + bytes(range(256)), "holds NUL bytes"),
    "no.mbox": (b"hello\n", "is no mailbox; expected 'From SENDER DATE'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_mail_is_told(tmp_path, name):
    raw, why = BROKEN[name]
    with pytest.raises(InputError, match=why):
        list(read_passages(put(tmp_path, name, raw)))


def test_a_broken_message_costs_no_other(tmp_path):
    problems = []
    put(tmp_path, "in.mbox", box(BROKEN["parts.eml"][0], bytes(message())))
    put(tmp_path, "nothing.eml", b"")
    found = list(read_passages(tmp_path, on_error="skip", report=problems.append))
    assert [passage.id for passage in found] == ["in.mbox:2"]
    assert [str(p).removeprefix(f"{tmp_path}/")[:18] for p in problems] == [
        "in.mbox: item 1: h",
        "nothing.eml: has n",
    ]


def test_a_header_of_a_megabyte_is_read_at_once(tmp_path):
    """The library's own time grows with the square: this took minutes."""
    raw = b"From: %s\nContent-Type: text/plain%s\n\nhi" % (
        b"=?utf-8?q?=41?= " * 60000,
        b"; a=b" * 300000,
    )
    (found,) = read_passages(put(tmp_path, "a.eml", raw))
    assert found.text.endswith("\n\nhi") and len(found.text) < 1100
