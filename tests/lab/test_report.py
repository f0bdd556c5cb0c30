"""`report` and `cost`: what is read, what is drawn, and that the page needs nothing beside it."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from commands import Commands
from decoupled.errors import InputError
from decoupled.lab.report.adapted import adapted_sections
from decoupled.lab.report.calibration import calibration_sections
from decoupled.lab.report.figure import Axis, Bar, Bars, Lines, Mark, Point, Series, shown, to_csv
from decoupled.lab.report.picture import save_png
from decoupled.lab.report.published import published_figure
from decoupled.lab.report.quality import main_curve, query_times, score_sections
from decoupled.lab.report.sources import Sources, read_sources, scores_of
from decoupled.lab.report.svg import draw, label, scale
from decoupled.lab.report.write import sections_of, tiles
from decoupled.lab.study.suggest import best_trade_off
from decoupled.measure.calibration import reliability
from samples import result, sample_results, sweep_lines


@pytest.fixture
def run(monkeypatch, capsys) -> Commands:
    return Commands(monkeypatch, capsys)


@pytest.fixture
def results(tmp_path) -> Path:
    return sample_results(tmp_path / "results")


# Reading ------------------------------------------------------------------------------------------


def test_sources_are_told_apart_by_what_they_hold(results):
    found = read_sources([results])
    assert len(found.sweeps) == len(found.layers) == len(found.benches) == 1
    assert found.skipped == ("other.json",)
    seeds = [s for s in found.scores if s.split == 3 and s.variant == "" and not s.projection]
    assert [(s.value, s.runs) for s in seeds] == [(80.5, 2)]
    assert {s.bits for s in found.scores if s.projection == 96} == {None, 8, 4}


def test_a_later_file_replaces_and_the_teacher_is_the_joint_model(results):
    runs = [
        result("squad-joint", 82.0, split=0, variant="joint", curve="joint"),
        result("squad-joint-a", 99.0, split=0, variant="a"),
    ]
    (results / "trained_again.json").write_text(json.dumps({"runs": runs}))
    found = read_sources([results])
    assert main_curve(found.scores, [])[0] == 82.0


def test_a_run_says_its_dataset_split_and_metric():
    (one,) = scores_of(result("any name", 81.0, split=3, variant="", curve="distilled"))
    assert (one.dataset, one.split, one.variant, one.metric) == ("squad", 3, "", "f1")
    run = {"dataset": "mnli", "split": 4, "variant": "untrained", "train": False}
    bare = {"run": run, "test": {"fp": {"accuracy": 60.0, "f1": 1.0}}}
    (two,) = scores_of(bare, "python train.py")
    assert (two.dataset, two.split, two.metric, two.trained) == ("mnli", 4, "accuracy", False)
    assert two.command == "python train.py"
    many = result("squad-any", 1.0, split=5, variant="any")
    many["test"] = {
        "k1-fp": {"f1": 80.0, "exact": 70.0, "split": 1, "bits": None},
        "k5-fp": {"f1": 60.0, "exact": 50.0, "split": 5, "bits": None},
    }
    assert [(s.split, s.value) for s in scores_of(many)] == [(1, 80.0), (5, 60.0)]
    assert scores_of(result("squad-k3", 81.0, split=3)) == [], "it names no variant"
    assert scores_of({"name": "nothing"}) == [] == scores_of("text")


def test_files_without_results_are_an_error(tmp_path):
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(InputError, match="nothing to draw in x"):
        read_sources([tmp_path])
    with pytest.raises(InputError, match="does not exist"):
        read_sources([tmp_path / "gone"])


# Figures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "field"),
    [("sweep", "split"), ("layers", "task"), ("cost", "storage")],
)
def test_a_file_that_lacks_what_is_drawn_is_named(tmp_path, kind, field):
    path = tmp_path / "broken.json"
    path.write_text(json.dumps({"kind": kind}))
    with pytest.raises(
        InputError, match=rf"broken.json says that it is of `{kind}` and lacks '{field}'"
    ):
        read_sources([path])


def test_scores_are_drawn_against_how_often_they_are_right(tmp_path):
    bins = [b.to_json() for b in reliability([0.1, 0.1, 0.9], [False, True, True])]
    curve = {"name": "answers", "error": 0.3, "bins": bins}
    study = {"kind": "calibration", "name": "toy", "title": "Toy", "curves": [curve]}
    (tmp_path / "c.json").write_text(json.dumps(study))
    (section,) = calibration_sections(read_sources([tmp_path]).calibrations)
    (figure,) = section.figures
    assert [(p.x, p.y, p.note) for p in figure.series[1].points] == [
        (0.1, 0.5, "2 scores"),
        (0.9, 1.0, "1 scores"),
    ]
    assert "answers 0.300" in figure.caption and figure.name == "calibration-toy"


def test_what_adapt_says_is_drawn_before_and_after(tmp_path):
    was, now = ({"ndcg@10": x, "tau": x - 0.2, "top-1": x - 0.1} for x in (0.8, 0.9))
    made = {"kind": "adapt", "model": "out/legal", "teachers": ["joint"], "queries": 900}
    made |= {"held_out": 100, "before": was, "after": now, "teacher_ms": 40.0, "split_ms": 8.0}
    (tmp_path / "adapted.json").write_text(json.dumps(made))
    (section,) = adapted_sections(read_sources([tmp_path]).adapted)
    agreement, times = section.figures
    assert [(bar.name, bar.value) for bar in agreement.bars[:2]] == [
        ("ndcg@10, before", 0.8),
        ("ndcg@10, after", 0.9),
    ]
    assert agreement.name == "adapted-legal" and "100 queries" in agreement.caption
    assert "as they were" not in agreement.caption
    (kept,) = adapted_sections([{**made, "trained": False}])
    assert "its weights stay as they were" in kept.figures[0].caption
    assert [bar.value for bar in times.bars] == [8.0, 40.0]


def test_what_is_no_result_is_passed_over(results, tmp_path):
    (tmp_path / "picture.json").write_bytes(bytes(range(128, 200)))
    odd = {"run": {"variant": ""}, "test": {"fp": {"f1": None}, "int8": 3}}
    (tmp_path / "odd.json").write_text(json.dumps(odd))
    (tmp_path / "cut.json").write_text(json.dumps({"kind": "bench", "cells": {}}))
    found = read_sources([results, tmp_path])
    assert {"picture.json", "odd.json", "cut.json"} <= set(found.skipped)


def test_the_curve_that_decides_is_the_trained_one(results):
    found = read_sources([results])
    curve = main_curve(found.scores, found.sweeps)
    assert curve == {0: 83.0, 1: 83.75, 2: 83.0, 3: 80.5, 4: 80.0}
    assert best_trade_off(curve) == 2
    (tile,) = tiles(found)
    assert tile.value == "k = 2" and "83" in tile.text
    trained = sweep_lines(trained=True)
    assert main_curve([], [sweep_lines("x"), trained])[2] == 78.9


def test_every_figure_of_the_issue_is_there(results):
    sections = sections_of(read_sources([results]))
    names = [figure.name for section in sections for figure in section.figures]
    assert names == [
        *("squad-score", "squad-speedup", "squad-compression", "squad-pareto", "squad-losses"),
        *("smaller-squad-time", "smaller-squad-openvino", "smaller-squad-bytes"),
        *("squad-variance", "squad-crossing", "squad-distance-query", "squad-distance-passage"),
        *("storage", "money", "peers-minilm-l6-100", "published-speedup"),
    ]
    for section in sections:
        for figure in section.figures:
            assert figure.commands and figure.caption and len(figure.rows()) > 1
    score = sections[0].figures[0]
    assert [m.text for m in score.marks] == ["loss is visible beyond 2"]
    assert {s.name for s in score.series} >= {"distilled", "split, no training"}
    best = sections[1].figures[0].series[0]
    assert [p.note.split(" ")[0] for p in best.points] == ["split-int8", "joint"], (
        "no other beats them"
    )
    (peers,) = [
        f for section in sections for f in section.figures if f.name == "peers-minilm-l6-100"
    ]
    assert peers.bars[0].note == "p95 4.0 ms, 10.5 times CrossEncoder torch"


def test_two_studies_of_one_dataset_keep_apart(results):
    (results / "again.json").write_text((results / "layers.json").read_text())
    sections = sections_of(read_sources([results]))
    names = [figure.name for section in sections for figure in section.figures]
    assert len(names) == len(set(names)) == 20 and "squad-variance-2" in names


def test_times_do_not_depend_on_how_busy_the_machine_was():
    calm = query_times(sweep_lines())
    lines = sweep_lines()
    for side in lines[2]["latency_ms"].values():
        side["median"] *= 7
    assert query_times(lines) == pytest.approx(calm) and calm[0] == 100.0 and calm[2] == 50.0
    assert query_times([{"split": 1}]) == {}


def test_the_pareto_front_never_falls(results):
    pareto = next(
        figure
        for section in score_sections(read_sources([results]))
        for figure in section.figures
        if figure.name == "squad-pareto"
    )
    front = pareto.series[0].points
    assert list(front) == sorted(front, key=lambda p: (p.x, p.y))
    every = [p for series in pareto.series[1:] for p in series.points]
    for point in every:
        assert any(f.x <= point.x and f.y >= point.y for f in front)


def test_an_svg_shows_every_point_with_its_values():
    figure = Lines(
        name="f",
        title="A & B",
        caption="",
        x=Axis(title="k", whole=True),
        y=Axis(title="F1", unit="%"),
        series=(
            Series(name="<one>", points=(Point(x=0, y=80, note="joint"), Point(x=1, y=75.5))),
            Series(name="two", points=(Point(x=1, y=60),), line=False, dashed=True),
        ),
        marks=(Mark(x=1, text="knee"),),
    )
    svg = draw(figure)
    assert svg.count('class="point"') == 3 and svg.count("<polyline") == 1
    assert "&lt;one&gt;&#10;k: 0&#10;F1: 80%&#10;joint" in svg
    assert 'aria-label="A &amp; B"' in svg and ">knee</text>" in svg
    HTMLParser().feed(svg)
    coordinates = [float(v) for v in re.findall(r'c[xy]="([\d.-]+)"', svg)]
    assert all(0 <= v <= 600 for v in coordinates)


def test_bars_are_as_long_as_their_values():
    bars = Bars(
        name="b",
        title="b",
        caption="",
        x=Axis(title="GB"),
        bars=(Bar(name="a", value=1000), Bar(name="b", value=500, group="x")),
    )
    first, second = (float(w) for w in re.findall(r'width="([\d.]+)" height="20"', draw(bars)))
    assert first == pytest.approx(2 * second, abs=0.2)


def test_a_score_shows_what_its_number_of_pairs_leaves_open():
    twelve, many = (
        score_sections(Sources(sweeps=(tuple({**line, "pairs": n} for line in sweep_lines()),)))
        for n in (12, 10_000)
    )
    for sections, half in ((twelve, "± 22.6 by 12 pairs"), (many, "± 0.8 by 10,000 pairs")):
        figure = sections[0].figures[0]
        assert half in figure.series[0].points[0].note and draw(figure).count('<g color="#') == 5
    assert twelve[0].figures[0].series[0].points[0].spread > 20


def test_a_model_that_says_one_thing_of_all_pairs_suggests_no_split():
    alike = tuple({**line, "score": 66.5, "agreement": 1.0} for line in sweep_lines())
    told = tuple({**line, "constant": True} for line in sweep_lines())
    for lines in (alike, told):
        sources = Sources(sweeps=(lines,))
        assert "do not tell where to split" in score_sections(sources)[0].text
        assert tiles(sources) == []
    assert "k=2" in score_sections(Sources(sweeps=(tuple(sweep_lines()),)))[0].text


def test_two_points_are_no_curve():
    short = Sources(sweeps=(tuple(sweep_lines()[:2]),))
    assert "<polyline" not in draw(score_sections(short)[0].figures[0])


@pytest.mark.parametrize(
    ("axis", "values", "ticks"),
    [
        (Axis(title="", whole=True), [0, 6], (0, 1, 2, 3, 4, 5, 6)),
        (Axis(title="", whole=True), [1, 23], (5, 10, 15, 20)),
        (Axis(title="", zero=True), [3, 9.5], (0, 2, 4, 6, 8, 10)),
        (Axis(title=""), [0.02, 0.02], None),
        (Axis(title="", log=True), [3, 9], None),
        (Axis(title="", log=True), [1, 1e9], None),
        (Axis(title=""), [], None),
        (Axis(title="", log=True), [0, 5, 500], (10, 100)),
        (Axis(title="", log=True), [0, 0], None),
    ],
)
def test_scales_hold_their_values_and_have_ticks(axis, values, ticks):
    made = scale(axis, values, start=0, end=100)
    for value in values:
        assert -0.01 <= made(value) <= 100.01
    assert 2 <= len(made.ticks) <= 14
    assert all(-0.5 <= made(t) <= 100.5 for t in made.ticks)
    if ticks:
        assert made.ticks == ticks


def many(count: int) -> Lines:
    series = tuple(
        Series(name=f"a rather long name {n}", points=(Point(x=0, y=n), Point(x=1, y=n / 2)))
        for n in range(count)
    )
    axes = {"x": Axis(title="split", whole=True), "y": Axis(title="score")}
    return Lines(name="many", title="Many", caption="", series=series, **axes)


def test_no_two_series_of_a_figure_look_alike(tmp_path):
    found = re.findall(r'<(circle|rect|polygon) ([^>]*?) fill="(#[^"]+)"', draw(many(32)))
    corners = {(kind, more.count(","), colour) for kind, more, colour in found}
    assert len(corners) == 32
    image = pytest.importorskip("matplotlib.image")
    save_png(many(8), tmp_path / "few.png")
    save_png(many(30), tmp_path / "many.png")
    few, wide = (image.imread(tmp_path / f"{name}.png").shape[:2] for name in ("few", "many"))
    assert wide[0] > few[0] and wide[1] > few[1], "the legend hides the figure"


def test_a_long_name_of_a_bar_fits_into_the_picture():
    names = ("short", "FlashRank's shape (TinyBERT-L2, onnxruntime)")
    bars = tuple(Bar(name=name, value=3.0) for name in names)
    drawn = draw(Bars(name="b", title="B", caption="", x=Axis(title="ms"), bars=bars))
    long = re.search(r'<text x="([\d.]+)"[^>]*textLength="(\d+)"[^>]*>FlashRank', drawn)
    assert float(long[1]) >= float(long[2]) and drawn.count("textLength") == 1


def test_numbers_are_written_for_people():
    assert [label(v) for v in (0.02, 20, 1500, 2e6, 3e9, 7e12)] == [
        *("0.02", "20", "1.5k", "2M", "3G", "7T")
    ]
    assert [shown(v) for v in (0, 83.449, 230400.4, 0.00012345)] == [
        *("0", "83.45", "230,400", "0.0001234")
    ]


def test_csv_can_be_read_back():
    figure = published_figure()
    rows = list(csv.reader(io.StringIO(to_csv(figure))))
    assert rows[0][0] == "series" and len(rows) == 1 + 4 * 11
    assert float(rows[1][2]) == pytest.approx(1.08, abs=0.01)


def test_printed_and_computed_speedups_agree():
    ours_base, base, ours_large, large = published_figure().series
    for ours, printed in ((ours_base, base), (ours_large, large)):
        for a, b in zip(ours.points, printed.points, strict=True):
            assert a.y == pytest.approx(b.y, abs=0.051)


def test_points_without_a_line_are_seen_however_many_they_are():
    points = tuple(Point(x=n, y=n) for n in range(30))
    shown = {line: Series(name="s", points=points, line=line) for line in (True, False)}
    axes = {"x": Axis(title="x"), "y": Axis(title="y")}
    drawn = {
        line: draw(Lines(name="n", title="t", caption="c", series=(series,), **axes))
        for line, series in shown.items()
    }
    seen = [drawn[line].count('fill="#0072B2"') for line in (True, False)]
    assert seen[1] - seen[0] == len(points)


def test_pictures_are_pictures(tmp_path, results):
    for section in sections_of(read_sources([results])):
        figure = section.figures[0]
        save_png(figure, tmp_path / "f.png")
        assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


# The commands -------------------------------------------------------------------------------------


def test_report_writes_one_file_that_needs_no_other(run, results, tmp_path):
    page = tmp_path / "out" / "page.html"
    done = run("report", results, "-o", page, "--title", "Mine <&>", "--json")
    assert len(done.json["figures"]) == 16 and done.json["skipped"] == ["other.json"]
    assert "other.json; left out" in done.err
    text = page.read_text()
    assert "Mine &lt;&amp;&gt;" in text and text.count("<figure") == 16
    outside = re.findall(r'(?:src|href)="(?!#|data:,)([^"]*)"|@import|url\(', text)
    assert not outside
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    for name in done.json["figures"]:
        assert (page.with_suffix("") / f"{name}.png").stat().st_size > 2000
        assert (page.with_suffix("") / f"{name}.csv").read_text().count("\n") > 1
    assert "is a folder" in run("report", results, "-o", tmp_path).failure


def test_report_without_matplotlib_says_so(run, results, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = run("report", results, "-o", tmp_path / "p.html")
    assert done.code == 0 and "no PNG files" in done.err and "plots" in done.err
    assert (tmp_path / "p" / "money.csv").exists()


def test_cost_prints_the_example_of_the_paper_and_draws_yours(run, tmp_path):
    shown_text = run("cost").out
    assert "148.54" in shown_text and "230,400 bytes" in shown_text
    out, plot = tmp_path / "c.json", tmp_path / "c.svg"
    words = ("cost", "--passages", 32_000_000, "--codec", "project:192+int8", "--queries", 1000)
    found = run(*words, "--candidates", 100, "-o", out, "--plot", plot, "--json").json
    assert found["total_bytes"] == 32_000_000 * 150 * 194
    assert json.loads(out.read_text()) == found
    assert plot.read_text().startswith("<svg") and "break-even" in plot.read_text()
    page = tmp_path / "p.html"
    assert run("report", out, "-o", page).code == 0
    assert "32,000,000 passages" in page.read_text()
    assert run("cost", "--plot", tmp_path / "c.png").code == 0
    assert "ends in .svg or .png" in run("cost", "--plot", tmp_path / "c.txt").failure
    assert "tokens=-1" in run("cost", "--tokens", -1).failure
    never = run("cost", "--split-ms", 99, "--json").json
    assert never["break_even_queries_per_day"] is None
    assert "never" in run("cost", "--split-ms", 99).out


@pytest.mark.parametrize(
    "words",
    [("--device-hour", 0), ("--device-hour", 0, "--reads", 0, "--gb-month", 0), ("--width", 3)],
)
def test_what_costs_nothing_or_is_narrow_is_drawn_too(run, tmp_path, words):
    made = tmp_path / "cost.json"
    assert run("cost", *words, "-o", made).code == 0
    assert run("report", made, "-o", tmp_path / "r.html").code == 0
    assert 'id="money"' in (tmp_path / "r.html").read_text()
