"""The report in a real browser: no message of the console, every figure drawn, hover and downloads work."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from decoupled.lab.report.sources import read_sources
from decoupled.lab.report.write import write_report
from samples import sample_results

webdriver = pytest.importorskip("selenium.webdriver")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="chromium and chromedriver are not installed"
)
DOCS = Path(__file__).parents[2] / "docs" / "report.html"

DRAWN = """
return [...document.querySelectorAll("figure")].map((figure) => {
  const size = (e) => { const b = e.getBoundingClientRect(); return [b.width, b.height]; };
  return {
    name: figure.id,
    size: size(figure.querySelector("svg")),
    points: [...figure.querySelectorAll(".point")].map(size),
    rows: figure.querySelectorAll("tr").length,
  };
});
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[object]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1000"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    folder = tmp_path_factory.mktemp("downloads")
    options.add_experimental_option("prefs", {"download.default_directory": str(folder)})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.downloads = folder
    yield driver
    driver.quit()


def assert_drawn(browser: object, page: Path) -> int:
    browser.get(page.resolve().as_uri())
    assert browser.get_log("browser") == []
    figures = browser.execute_script(DRAWN)
    for figure in figures:
        width, height = figure["size"]
        assert width > 300 and height > 100, figure["name"]
        assert figure["points"] and figure["rows"] == len(figure["points"]) + 1, figure["name"]
        assert all(w > 0 and h > 0 for w, h in figure["points"]), figure["name"]
    loaded = browser.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    assert [name for name in loaded if not name.startswith("data:")] == []
    return len(figures)


@pytest.fixture
def page(tmp_path) -> Path:
    sources = read_sources([sample_results(tmp_path / "results")])
    return write_report(sources, tmp_path / "p.html", title="Sample", folder=None).page


def test_every_figure_of_a_report_is_drawn(browser, page):
    assert assert_drawn(browser, page) == 16


def test_a_point_says_its_values_to_mouse_and_keyboard(browser, page):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    browser.get(page.resolve().as_uri())
    first, second = browser.find_elements(By.CSS_SELECTOR, "#squad-score .point")[:2]
    tip = browser.find_element(By.ID, "tip")
    assert tip.value_of_css_property("visibility") == "hidden"
    ActionChains(browser).move_to_element(first).perform()
    # Two curves begin at the joint model, so both speak.
    assert tip.text.count("f1: 83") == 2 and first.get_attribute("data-tip") in tip.text
    browser.execute_script("arguments[0].focus()", second)
    assert tip.text == second.get_attribute("data-tip") != first.get_attribute("data-tip")
    assert browser.get_log("browser") == []


def test_a_figure_can_be_kept_as_picture_and_table(browser, page):
    from selenium.webdriver.common.by import By

    browser.get(page.resolve().as_uri())
    for kind, start in (("csv", b"series,"), ("png", b"\x89PNG")):
        button = browser.find_element(By.CSS_SELECTOR, f"#money .{kind}")
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        path = browser.downloads / f"money.{kind}"
        for _ in range(100):
            if path.exists() and path.stat().st_size:
                break
            time.sleep(0.05)
        assert path.read_bytes().startswith(start)
    assert browser.get_log("browser") == []


@pytest.mark.skipif(not DOCS.exists(), reason="docs/report.html is made by `make report`")
def test_the_report_of_the_docs_is_drawn(browser):
    assert assert_drawn(browser, DOCS) > 10
