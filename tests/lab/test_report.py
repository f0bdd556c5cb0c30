"""`report` and `cost`: what is read, what is drawn, and that the page needs nothing beside it."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path

import pytest

from commands import Commands
from decoupled.errors import InputError
from decoupled.lab.report.draw import save, svg
from decoupled.lab.report.figure import (
    Axis,
    Bar,
    Bars,
    Lines,
    Mark,
    Point,
    Series,
    label,
    shown,
    to_csv,
)
from decoupled.lab.report.sources import Sources, read_sources
from decoupled.lab.report.studies import adapted_sections, certified_sections
from decoupled.lab.report.sweeps import (
    best_trade_off,
    knees,
    main_curve,
    query_times,
    sweep_sections,
)
from decoupled.lab.report.write import report, sections_of, tiles
from decoupled.measure.certify import Certificate
from samples import sample_results, sweep_lines


@pytest.fixture
def run(monkeypatch, capsys) -> Commands:
    return Commands(monkeypatch, capsys)


@pytest.fixture
def results(tmp_path) -> Path:
    return sample_results(tmp_path / "results")


# Reading ------------------------------------------------------------------------------------------


def test_sources_are_told_apart_by_what_they_hold(results):
    found = read_sources([results])
    assert len(found.sweep) == len(found.layers) == len(found.bench) == 1
    assert found.skipped == ("other.json",)


def test_files_without_results_are_an_error(tmp_path):
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(InputError, match="nothing to draw in x"):
        read_sources([tmp_path])
    with pytest.raises(InputError, match="does not exist"):
        read_sources([tmp_path / "gone"])


# Figures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "field"),
    [("sweep", "split"), ("layers", "task")],
)
def test_a_file_that_lacks_what_is_drawn_is_named(tmp_path, kind, field):
    path = tmp_path / "broken.json"
    path.write_text(json.dumps({"kind": kind}))
    with pytest.raises(
        InputError, match=rf"broken.json says that it is of `{kind}` and lacks '{field}'"
    ):
        read_sources([path])


def test_what_adapt_says_is_drawn_before_and_after(tmp_path):
    was, now = ({"ndcg@10": x, "tau": x - 0.2, "top-1": x - 0.1} for x in (0.8, 0.9))
    made = {"kind": "adapt", "model": "out/legal", "teachers": ["joint"], "queries": 900}
    made |= {"held_out": 100, "before": was, "after": now, "teacher_ms": 40.0, "split_ms": 8.0}
    (tmp_path / "adapted.json").write_text(json.dumps(made))
    (section,) = adapted_sections(read_sources([tmp_path]).adapt)
    agreement, times = section.figures
    assert [(bar.name, bar.value) for bar in agreement.bars[:2]] == [
        ("ndcg@10, before", 0.8),
        ("ndcg@10, after", 0.9),
    ]
    assert agreement.name == "adapted-legal" and "100 queries" in agreement.caption
    assert [bar.value for bar in times.bars] == [8.0, 40.0]


def test_certified_models_are_drawn_beside_their_joint_model(tmp_path):
    figures = {"teacher": "joint", "layers": 12, "queries": 53, "candidates": 87.0, "top_1": 0.8}
    figures |= {"codec": "int8", "bytes_per_token": 386.0, "runtime": "torch", "joint_ms": 358.0}
    for split, tau, gain, ms in ((4, 0.79, 0.71, 226.0), (6, 0.65, 0.66, 168.0)):
        made = Certificate(
            model=f"at-{split}", split=split, tau=tau, ndcg=(0.75, gain), split_ms=ms, **figures
        )
        (tmp_path / f"{split}.json").write_text(json.dumps(made.to_json()))
    (figure,) = certified_sections(read_sources([tmp_path]).certificate)[0].figures
    assert [one.name for one in figure.series] == ["at-4", "at-6"]
    assert [[(p.x, p.y) for p in one.points] for one in figure.series] == [
        [(358.0, 0.75), (226.0, 0.71)],
        [(358.0, 0.75), (168.0, 0.66)],
    ]
    # Without judgments the agreement with the joint model is drawn.
    unjudged = {**made.to_json(), "ndcg": None}
    (figure,) = certified_sections([unjudged])[0].figures
    assert figure.y.title.startswith("Kendall") and figure.series[0].points[1].y == 0.65
    written = report([tmp_path], tmp_path / "report.html")
    assert written.figures == ("certified",) and "at-6" in written.page.read_text()


def test_what_is_no_result_is_passed_over(results, tmp_path):
    (tmp_path / "picture.json").write_bytes(bytes(range(128, 200)))
    odd = {"kind": "train", "test": {"fp": {"f1": None}, "int8": 3}}
    (tmp_path / "odd.json").write_text(json.dumps(odd))
    (tmp_path / "cut.json").write_text(json.dumps({"kind": "bench", "cells": {}}))
    found = read_sources([results, tmp_path])
    assert {"picture.json", "odd.json", "cut.json"} <= set(found.skipped)


def test_the_curve_that_decides_is_the_trained_one(results):
    found = read_sources([results])
    curve = main_curve(found.sweep)
    assert curve == {0: 80.0, 1: 79.9, 2: 78.9, 3: 70.0, 4: 30.0}
    assert best_trade_off(curve) == 2
    assert tiles(found) == {"squad: 78.9 of 80 kept": "k = 2"}
    better = [{**line, "score": line["score"] + 1} for line in sweep_lines(trained=True)]
    assert main_curve([sweep_lines("x"), better])[2] == 79.9


def test_every_figure_is_there(results):
    sections = sections_of(read_sources([results]))
    names = [figure.name for section in sections for figure in section.figures]
    assert names == [
        *("squad-score", "squad-speedup"),
        *("squad-variance", "squad-crossing", "squad-distance-query", "squad-distance-passage"),
        "peers-minilm-l6-100",
    ]
    for section in sections:
        for figure in section.figures:
            assert figure.commands and figure.caption and len(figure.rows()) > 1
    score = sections[0].figures[0]
    assert [m.text for m in score.marks] == [
        "loss is visible beyond 1",
        "steepest fall beyond 3",
    ]
    assert [s.name for s in score.series] == ["joint, no training"]
    peers = sections[-1].figures[0]
    assert peers.bars[0].note == "p95 4.0 ms, 10.5 times CrossEncoder torch"


def test_two_studies_of_one_dataset_keep_apart(results):
    (results / "again.json").write_text((results / "layers.json").read_text())
    sections = sections_of(read_sources([results]))
    names = [figure.name for section in sections for figure in section.figures]
    assert len(names) == len(set(names)) == 11 and "squad-variance-2" in names


def test_times_do_not_depend_on_how_busy_the_machine_was():
    calm = query_times(sweep_lines())
    lines = sweep_lines()
    for side in lines[2]["latency_ms"].values():
        side["median"] *= 7
    assert query_times(lines) == pytest.approx(calm) and calm[0] == 100.0 and calm[2] == 50.0
    assert query_times([{"split": 1}]) == {}


def test_a_score_shows_what_its_number_of_pairs_leaves_open():
    twelve, many = (
        sweep_sections((tuple({**line, "pairs": n} for line in sweep_lines()),))
        for n in (12, 10_000)
    )
    for sections, half in ((twelve, "± 22.6 by 12 pairs"), (many, "± 0.8 by 10,000 pairs")):
        figure = sections[0].figures[0]
        assert half in figure.series[0].points[0].note
    assert twelve[0].figures[0].series[0].points[0].spread > 20


def test_a_model_that_says_one_thing_of_all_pairs_suggests_no_split():
    alike = tuple({**line, "score": 66.5, "agreement": 1.0} for line in sweep_lines())
    told = tuple({**line, "constant": True} for line in sweep_lines())
    for lines in (alike, told):
        sources = Sources(sweep=(lines,))
        assert "do not tell where to split" in sweep_sections(sources.sweep)[0].text
        assert tiles(sources) == {}
    assert "k=2" in sweep_sections((tuple(sweep_lines()),))[0].text


def test_the_best_trade_off_is_the_deepest_that_keeps_the_score():
    scores = {0: 88.5, 8: 88.0, 9: 87.1, 10: 85.0, 11: 87.5}
    assert best_trade_off(scores) == 9
    assert best_trade_off(scores, keep=0.5) == 11
    assert best_trade_off({0: 50.0, 1: 10.0}) == 0
    with pytest.raises(InputError, match="without the joint model"):
        best_trade_off({1: 3.0})


def test_the_knees_are_where_loss_begins_and_where_it_runs():
    scores = {0: 80.0, 1: 80.1, 2: 79.9, 3: 79.5, 4: 78.0, 5: 70.0, 6: 50.0}
    assert knees(scores) == (3, 5)
    with pytest.raises(InputError, match="at least 3"):
        knees({0: 1.0, 1: 0.5})


def test_two_points_are_no_curve():
    short = Sources(sweep=(tuple(sweep_lines()[:2]),))
    assert not sweep_sections(short.sweep)[0].figures[0].series[0].line


def many(count: int) -> Lines:
    series = tuple(
        Series(name=f"a rather long name {n}", points=(Point(x=0, y=n), Point(x=1, y=n / 2)))
        for n in range(count)
    )
    axes = {"x": Axis(title="split", whole=True), "y": Axis(title="score")}
    return Lines(name="many", title="Many", caption="", series=series, **axes)


def test_no_two_series_of_a_figure_look_alike(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    markers = re.findall(r'<g clip-path[^>]*>\s*<use xlink:href="#(\w+)"', svg(many(32)))
    assert len(set(markers)) == 32
    save(many(8), tmp_path / "few.png")
    save(many(30), tmp_path / "many.png")
    few, wide = (image.imread(tmp_path / f"{name}.png").shape[:2] for name in ("few", "many"))
    assert wide[0] > few[0] and wide[1] > few[1], "the legend hides the figure"


def test_numbers_are_written_for_people():
    assert [label(v) for v in (0.02, 20, 1500, 2e6, 3e9, 7e12)] == [
        *("0.02", "20", "1.5k", "2M", "3G", "7T")
    ]
    assert [shown(v) for v in (0, 83.449, 230400.4, 0.00012345)] == [
        *("0", "83.45", "230,400", "0.0001234")
    ]


def test_csv_can_be_read_back():
    rows = list(csv.reader(io.StringIO(to_csv(many(3)))))
    assert rows[0] == ["series", "split", "score", "note"] and len(rows) == 1 + 3 * 2
    assert rows[5] == ["a rather long name 2", "0", "2", ""]


def test_an_svg_takes_the_colours_of_its_page():
    figure = Lines(
        name="f",
        title="A & B",
        caption="",
        x=Axis(title="k", whole=True),
        y=Axis(title="F1", unit="%"),
        series=(
            Series(name="<one>", points=(Point(x=0, y=80, spread=2), Point(x=1, y=75.5))),
            Series(name="two", points=(Point(x=1, y=60),), line=False, dashed=True),
        ),
        marks=(Mark(x=1, text="knee"),),
    )
    drawn = svg(figure)
    assert drawn.startswith('<svg role="img" aria-label="A &amp; B"') and drawn == svg(figure)
    assert "fill: currentColor" in drawn and "stroke: currentColor" in drawn
    assert "&lt;one&gt;" in drawn and ">knee</text>" in drawn and "A &amp; B</text>" not in drawn
    assert "#000000" not in drawn and "#ffffff" not in drawn
    bars = Bars(name="b", title="b", caption="", x=Axis(title="GB"), bars=(Bar(name="a", value=9),))
    assert "#000000" not in svg(bars) and ">a</text>" in svg(bars)


def test_pictures_are_pictures(tmp_path, results):
    for section in sections_of(read_sources([results])):
        figure = section.figures[0]
        save(figure, tmp_path / "f.png")
        assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


# The commands -------------------------------------------------------------------------------------


def test_report_writes_one_file_that_needs_no_other(run, results, tmp_path):
    page = tmp_path / "out" / "page.html"
    done = run("report", results, "-o", page, "--title", "Mine <&>", "--json")
    assert len(done.json["figures"]) == 7 and done.json["skipped"] == ["other.json"]
    assert "other.json; left out" in done.err
    text = page.read_text()
    assert "Mine &lt;&amp;&gt;" in text and text.count("<figure") == 7
    outside = re.findall(r'(?:src|href)="(?!#|data:,)([^"]*)"|@import|url\((?!#)', text)
    assert not outside
    for name in ("2000/svg", "1999/xlink"):
        text = text.replace(f"http://www.w3.org/{name}", "")
    assert "http" not in text and "<script" not in text
    for name in done.json["figures"]:
        assert (page.with_suffix("") / f"{name}.png").stat().st_size > 2000
        assert (page.with_suffix("") / f"{name}.csv").read_text().count("\n") > 1
    assert "is a folder" in run("report", results, "-o", tmp_path).failure


def test_report_needs_matplotlib(run, results, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = run("report", results, "-o", tmp_path / "p.html").failure
    assert "matplotlib is not installed" in said and "[plots]" in said
    assert not (tmp_path / "p.html").exists()


def test_cost_prints_the_example_of_the_paper_and_yours(run, tmp_path):
    shown_text = run("cost").out
    assert "148.54" in shown_text and "230,400 bytes" in shown_text
    out = tmp_path / "c.json"
    words = ("cost", "--passages", 32_000_000, "--codec", "project:192+int8", "--queries", 1000)
    found = run(*words, "--candidates", 100, "-o", out, "--json").json
    assert found["total_bytes"] == 32_000_000 * 150 * 194
    assert json.loads(out.read_text()) == found
    assert "tokens=-1" in run("cost", "--tokens", -1).failure
    never = run("cost", "--split-ms", 99, "--json").json
    assert never["break_even_queries_per_day"] is None
    assert "never" in run("cost", "--split-ms", 99).out
