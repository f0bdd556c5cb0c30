"""Sections as one HTML file that needs nothing beside it: no script, style or font from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from decoupled.lab.report.figure import Figure, Section
from decoupled.lab.report.svg import draw


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A figure of a few characters, and what it says."""

    value: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the file holds."""

    title: str
    lead: str
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    foot: str


def render(page: Page) -> str:
    """The file."""
    style = _resource("page.css")
    script = _resource("page.js")
    links = "".join(
        f'<a href="#section-{n}">{escape(section.title)}</a>'
        for n, section in enumerate(page.sections)
    )
    tiles = "".join(
        f'<div class="tile"><b>{escape(tile.value)}</b><span>{escape(tile.text)}</span></div>'
        for tile in page.tiles
    )
    body = "".join(_section(section, n) for n, section in enumerate(page.sections))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # An empty icon: else a browser asks the server for one and reports that there is none.
        '<link rel="icon" href="data:,">'
        f"<title>{escape(page.title)}</title><style>{style}</style></head><body><main>"
        f'<h1>{escape(page.title)}</h1><p class="soft">{escape(page.lead)}</p>'
        f'<nav aria-label="Sections">{links}</nav><div class="tiles">{tiles}</div>{body}'
        f"<footer><p>{escape(page.foot)}</p></footer></main>"
        f'<div id="tip" role="status"></div><script>{script}</script></body></html>\n'
    )


def _section(section: Section, number: int) -> str:
    figures = "".join(map(_figure, section.figures))
    text = f"<p>{escape(section.text)}</p>" if section.text else ""
    return (
        f'<section id="section-{number}"><h2>{escape(section.title)}</h2>{text}'
        f'<div class="figures">{figures}</div></section>'
    )


def _figure(figure: Figure) -> str:
    commands = "".join(f"<code>{escape(c)}</code> " for c in figure.commands)
    return (
        f'<figure id="{escape(figure.name, quote=True)}"><h3>{escape(figure.title)}</h3>'
        f"{draw(figure)}<figcaption>{escape(figure.caption)}</figcaption>"
        '<div class="bar"><button type="button" class="png">PNG</button>'
        '<button type="button" class="csv">CSV</button>'
        f"<details><summary>Table</summary>{_table(figure)}</details></div>{commands}</figure>"
    )


def _table(figure: Figure) -> str:
    head, *rows = figure.rows()
    cells = "".join(f'<th scope="col">{escape(str(cell))}</th>' for cell in head)
    lines = "".join(_row(row) for row in rows)
    return f'<div class="table"><table><tr>{cells}</tr>{lines}</table></div>'


def _row(row: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>"


def _resource(name: str) -> str:
    return files("decoupled.lab.report").joinpath(name).read_text(encoding="utf-8")
