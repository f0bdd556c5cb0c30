"""Pictures of the web page for docs/images: desktop and phone, light and dark, on the sample passages.

    python tests/page_images.py
    python tests/page_images.py --manuals manuals.idx    # an index of documents: evidence, sources, an error

Needs Chromium with its driver. The times in the pictures are those of the machine that takes them.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from browser import Page, chromium, missing
from live import serving

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One picture."""

    name: str
    theme: Literal["light", "dark"]
    question: str = ""
    compare: bool = False
    scroll: str = ""
    phone: bool = False
    click: str = ""
    """What is opened before the picture: evidence, or the text around a passage."""
    offline: bool = False
    """Ask once more without a server."""


RIVER = "What river runs through Warsaw?"
SHOTS = (
    Shot(name="desktop-light", theme="light", question=RIVER, compare=True),
    Shot(name="desktop-dark", theme="dark", question=RIVER),
    Shot(name="desktop-start", theme="light"),
    Shot(name="desktop-none", theme="light", question="How long do I have to boil an egg?"),
    Shot(name="phone-light", theme="light", question=RIVER, phone=True),
    Shot(name="phone-dark", theme="dark", question=RIVER, compare=True, scroll="#time", phone=True),
)
SECRETS = "Which module gives cryptographically strong random numbers?"
LEVEL = "What is the default isolation level?"
EVIDENCE, SOURCE = ".best .evidence summary", ".best .from"
MANUALS = (
    Shot(name="manual-phone-light", theme="light", question=LEVEL, phone=True),
    Shot(name="manual-phone-dark", theme="dark", question=SECRETS, phone=True, click=EVIDENCE),
    Shot(name="manual-evidence", theme="light", question=SECRETS, click=EVIDENCE),
    Shot(name="manual-source", theme="dark", question=LEVEL, click=SOURCE),
    Shot(name="manual-error", theme="light", question=LEVEL, offline=True),
    Shot(name="manual-error-phone", theme="dark", question=LEVEL, offline=True, phone=True),
)


def take(shot: Shot, url: str, folder: Path) -> Path:
    """Open a window, do what the shot shows, and save it."""
    width, height = (390, 844) if shot.phone else (1200, 920)
    with chromium(
        width=width, height=height, theme=shot.theme, scale=2 if shot.phone else 1
    ) as driver:
        page = Page(driver, url)
        page.open()
        page.see("#facts", "passages")
        if shot.question:
            page.ask("warm up")
            page.ask(shot.question)
        if shot.compare:
            page.click("#how summary")
            page.click("#compare")
            page.see("#speedup", seconds=120)
        if shot.click:
            page.click(shot.click)
            page.gone("#source .hint", "Reading")
        if shot.offline:
            driver.execute_script("window.fetch = () => Promise.reject(new TypeError())")
            page.type("#question", "What is serializable?\n")
            page.see("#problem")
        driver.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
        if shot.scroll:
            driver.execute_script(
                "const top = document.querySelector(arguments[0]).getBoundingClientRect().top;"
                "scrollTo(0, top - 24)",
                shot.scroll,
            )
        path = folder / f"{shot.name}.png"
        driver.save_screenshot(str(path))
        return path


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--manuals", type=Path, help="an index of documents to take pictures of")
    parser.add_argument("--only", nargs="*", help="names of pictures; all if not given")
    args = parser.parse_args()
    if missing():
        sys.exit(f"error: {missing()}")
    args.out.mkdir(parents=True, exist_ok=True)
    with serving(*([args.manuals] if args.manuals else [])) as url:
        for shot in MANUALS if args.manuals else SHOTS:
            if args.only and shot.name not in args.only:
                continue
            path = take(shot, url, args.out)
            sys.stdout.write(f"{path} {path.stat().st_size // 1024} KiB\n")


if __name__ == "__main__":
    main()
