"""A headless Chromium, where one is installed; nothing is ever downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver
    from selenium.webdriver.remote.webelement import WebElement
    from selenium.webdriver.support.ui import WebDriverWait

NAMES = ("chromium", "chromium-browser", "google-chrome")


def missing() -> str | None:
    """Why there is no browser to test with; None when there is."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    if _chromium() is None or shutil.which("chromedriver") is None:
        return "no Chromium with its driver (Debian: apt-get install chromium chromium-driver)"
    return None


def _chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def chromium(
    *,
    width: int = 1200,
    height: int = 900,
    theme: Literal["light", "dark"] = "light",
    scale: int = 1,
) -> Iterator[WebDriver]:
    """A window of that size; one narrower than 600 is a phone's."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(_chromium())
    # Containers have no user namespaces for the sandbox and little shared memory.
    for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    try:
        screen = {"width": width, "height": height, "deviceScaleFactor": scale}
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {**screen, "mobile": width < 600}
        )
        preferences = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in preferences.items()]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        yield driver
    finally:
        driver.quit()


class Page:
    """The page as a person uses it: look for things that can be seen, type, click."""

    def __init__(self, driver: WebDriver, url: str) -> None:
        self.driver, self.url = driver, url

    def open(self, path: str = "/") -> None:
        """Load it."""
        self.driver.get(self.url + path)
        self.see("#question")

    def see(self, selector: str, text: str = "", *, seconds: float = 30) -> WebElement:
        """Wait for a visible element, with these words in it."""

        def found(_: WebDriver) -> WebElement | None:
            return next((e for e in self.all(selector) if text in e.text), None)

        return self._wait(seconds).until(found, f"no {selector} with {text!r}")

    def gone(self, selector: str, text: str = "") -> None:
        """Wait until there is no such element."""
        self._wait(30).until(
            lambda _: not any(text in e.text for e in self.all(selector)), f"{selector} stays"
        )

    def _wait(self, seconds: float) -> WebDriverWait:
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        moved = [StaleElementReferenceException]  # the page changed while it was being read
        return WebDriverWait(self.driver, seconds, 0.05, ignored_exceptions=moved)

    def all(self, selector: str) -> list[WebElement]:
        """What can be seen now."""
        return [e for e in self.driver.find_elements("css selector", selector) if e.is_displayed()]

    def click(self, selector: str, text: str = "") -> None:
        """Click an element once it can be seen."""
        self.see(selector, text).click()

    def type(self, selector: str, words: str) -> None:
        """Put words into a field, in place of what is there."""
        field = self.see(selector)
        field.clear()
        field.send_keys(words)

    def put(self, selector: str, words: str) -> None:
        """Paste words, also those that a driver cannot type, such as an emoji."""
        self.driver.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))",
            self.see(selector),
            words,
        )

    def ask(self, question: str) -> None:
        """Ask with the keyboard and wait until the answer to this question is shown."""
        self.type("#question", question + "\n")
        self.gone("#results.stale")
        self.see(".hit")

    def errors(self) -> list[str]:
        """What the browser's console complained about since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]
