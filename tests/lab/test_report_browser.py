"""The report in a real browser: no message of the console, every figure drawn, in light and dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from decoupled.lab.report.write import report
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
    texts: [...figure.querySelectorAll("svg text")].map(size),
    rows: figure.querySelectorAll("tr").length,
  };
});
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1000"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def assert_drawn(browser: object, page: Path) -> int:
    browser.get(page.resolve().as_uri())
    assert browser.get_log("browser") == []
    figures = browser.execute_script(DRAWN)
    for figure in figures:
        width, height = figure["size"]
        assert width > 300 and height > 100, figure["name"]
        assert len(figure["texts"]) > 4 and figure["rows"] > 1, figure["name"]
        assert all(w > 0 and h > 0 for w, h in figure["texts"]), figure["name"]
    loaded = browser.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    assert [name for name in loaded if not name.startswith("data:")] == []
    return len(figures)


@pytest.fixture
def page(tmp_path) -> Path:
    return report([sample_results(tmp_path / "results")], tmp_path / "p.html", title="Sample").page


def test_every_figure_of_a_report_is_drawn(browser, page):
    assert assert_drawn(browser, page) == 7


def test_text_is_light_where_the_page_is_dark(browser, page):
    colour = "return getComputedStyle(document.querySelector('svg text')).fill"
    for scheme, light in (("dark", True), ("light", False)):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        browser.get(page.resolve().as_uri())
        shades = [int(n) for n in browser.execute_script(colour)[4:-1].split(",")]
        assert (min(shades) > 200) == light


@pytest.mark.skipif(not DOCS.exists(), reason="docs/report.html is made by `make report`")
def test_the_report_of_the_docs_is_drawn(browser):
    assert assert_drawn(browser, DOCS) > 10
