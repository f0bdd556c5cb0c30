"""Files that a build need not read again, what became of each, and the links that open them."""

import cProfile
import os
import time

import pytest
from test_formats import pdf

import decoupled as dc
from decoupled.index import origins
from decoupled.index.build import build_index


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """Three files that were written long before they are read."""
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in ("a.md", "b.md"):
        (folder / name).write_text(f"# {name}\n\nThe river runs past {name}.\n")
    (folder / "c.pdf").write_bytes(pdf("The pilot boards at noon."))
    monkeypatch.setattr(origins, "_RACY", 0)
    return folder


def built(docs, out, **options):
    result = build_index(docs, out, **options)
    return result.to_json()["files"], result


def test_unchanged_files_are_passed_over_and_changed_ones_read(docs, tmp_path):
    out = tmp_path / "i"
    assert built(docs, out)[0] == {"read": 3}
    files, again = built(docs, out)
    assert files == {"unchanged": 3} and again.added.unchanged == 3 and again.removed == 0
    before = (docs / "a.md").stat()
    (docs / "a.md").write_text("# a.md\n\nThe river runs past z.md.\n")
    # As long as before, and with the old time: only the time of the change itself tells.
    os.utime(docs / "a.md", ns=(before.st_atime_ns, before.st_mtime_ns))
    files, changed = built(docs, out)
    assert files == {"read": 1, "unchanged": 2} and changed.added.added == 1


def test_a_file_is_read_again_if_the_index_lost_or_changed_its_passages(docs, tmp_path):
    out = tmp_path / "i"
    built(docs, out)
    with dc.Index.open(out, write=True) as index:
        index.delete(["b.md"])
    files, again = built(docs, out)
    assert files == {"read": 1, "unchanged": 2} and again.added.added == 1
    with dc.Index.open(out, write=True) as index:
        index.add([dc.Passage(id="b.md", text="other", meta={"document": "b.md"})])
    assert built(docs, out)[0] == {"read": 1, "unchanged": 2}
    (out / origins.FILES).write_text("{broken")
    assert built(docs, out)[0] == {"read": 3}


def test_other_settings_and_files_just_written_are_read_again(docs, tmp_path, monkeypatch):
    out = tmp_path / "i"
    built(docs, out)
    assert built(docs, out, title_path=False)[0] == {"read": 3}
    built(docs, out)
    monkeypatch.setattr(origins, "_RACY", 60 * 10**9)
    assert built(docs, out)[0] == {"read": 3}, "written less than a minute ago"


def test_sync_keeps_what_cannot_be_read_and_removes_what_left(docs, tmp_path):
    out = tmp_path / "i"
    built(docs, out)
    (docs / "c.pdf").write_bytes(b"%PDF-1.4 broken")
    (docs / "a.md").unlink()
    (docs / "d.bin").write_bytes(b"\0\1")
    (docs / "e.jsonl").write_text('{"id": "e", "abstract": "not a text field"}\n')
    files, result = built(docs, out, sync=True)
    assert files == {"unchanged": 1, "skipped": 1, "left out": 2} and result.removed == 1
    with dc.Index.open(out) as index:
        assert {e.id for e in index.store.snapshot.scan()} == {"b.md", "c.pdf"}
    lines = list(result.lines())
    assert any(line.startswith(".bin") and "--as-text '*.bin'" in line for line in lines)
    result.write_report(tmp_path / "report.jsonl")
    report = (tmp_path / "report.jsonl").read_text()
    assert report.count("\n") == 4 and '"status": "skipped"' in report


def test_hits_open_their_file_at_their_page(docs, tmp_path):
    out = tmp_path / "i"
    built(docs, out)
    engine = dc.Engine(out)
    (hit,) = engine.search("pilot noon", k=1, where={"document": "c.pdf"})
    assert hit.meta["page"] == 1
    assert hit.link == (docs / "c.pdf").as_uri() + "#page=1" == hit.to_json()["link"]
    (answer, *_) = engine.ask(
        "When does the pilot board?", k=1, threshold=0, where={"document": "c.pdf"}
    )
    assert answer.link == hit.link == answer.evidence[0].link
    engine.links = False
    assert "link" not in engine.search("pilot noon", k=1)[0].to_json()


def test_many_files_with_one_problem_are_one_line(tmp_path):
    from decoupled.index.documents import Problem, Skipped

    skipped = Skipped()
    for number in range(38):
        skipped(Problem(path=f"{number}.pdf", message="needs a library"))
    for number in range(12):
        skipped(Problem(path=f"a.{number}", message="is not known", kind="other"))
    lines = list(skipped.lines())
    assert lines[0] == "skipped 38 files: needs a library (0.pdf, 1.pdf, 2.pdf, …)"
    assert "left out 12 files" in lines[1] and lines[1].endswith("4 of 4 more endings")
    assert len(lines) == 3


def test_the_time_left_is_told_from_the_first_report_on(monkeypatch):
    from decoupled.train.place import TimeLeft

    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    left = TimeLeft()
    now[0] += 2
    assert left(100, 1000) == ", 0:00:18 left"
    assert left(100, None) == left(1000, 1000) == ""


def test_a_file_that_is_passed_over_costs_little(docs, tmp_path):
    for number in range(300):
        (docs / f"x{number}.md").write_text("The tide.\n")
    out = tmp_path / "i"
    built(docs, out)
    profile = cProfile.Profile()
    profile.runcall(build_index, docs, out)
    calls = sum(row.callcount for row in profile.getstats())
    # To look up the version of a package for each takes some 3,000.
    assert calls / 303 < 1000
