"""What every script of benchmarks and experiments shares."""

import json
import sys

import pytest

from decoupled.lab.script import options, write_report


def given(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["benchmarks/some.py", *map(str, words)])
    return options("Doc.", "rate", "bytes", limit=int, sizes=[1, 2], only=[str], smoke=False)


def test_an_option_has_the_type_of_its_default(monkeypatch):
    args = given(monkeypatch, "rate", "--sizes", 3, 4, "--only", "a", "b", "--only", "c", "--smoke")
    assert (args.what, args.sizes, args.only, args.smoke) == ("rate", [3, 4], ["a", "b", "c"], True)
    args = given(monkeypatch, "bytes", "--limit", 5)
    assert (args.limit, args.sizes, args.only, args.smoke, args.json) == (
        5,
        [1, 2],
        None,
        False,
        None,
    )


def test_what_cannot_be_run_is_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        given(monkeypatch, "memory")
    assert "invalid choice: 'memory'" in capsys.readouterr().err


def test_a_report_says_what_made_it_and_names_no_folder_of_its_maker(tmp_path, monkeypatch, capsys):
    out = tmp_path / "made" / "some.json"
    words = ("rate", "--only", tmp_path / "squad.json", "--work", tmp_path, "--json", out)
    monkeypatch.setenv("COMMIT", "abc")
    write_report(given(monkeypatch, *words), {"rate": 7})
    report = json.loads(out.read_text())
    assert report["command"] == "python benchmarks/some.py rate --only data/squad.json"
    assert report["commit"] == "abc" and report["rate"] == 7 and report["machine"]["cores"]
    assert json.loads(capsys.readouterr().out) == {"rate": 7}
