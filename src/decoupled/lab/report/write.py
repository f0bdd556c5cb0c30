"""Everything that was measured, as a page with its pictures and tables beside it; needs `plots`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from decoupled.errors import InputError
from decoupled.lab.report.draw import save, svg
from decoupled.lab.report.figure import Figure, Section, shown, to_csv
from decoupled.lab.report.peers import peer_sections
from decoupled.lab.report.sources import Sources, read_sources
from decoupled.lab.report.studies import adapted_sections, certified_sections, layer_sections
from decoupled.lab.report.sweeps import (
    best_trade_off,
    dataset_of,
    main_curve,
    says_nothing,
    sweep_sections,
)

LEAD = "What a split loses, what it saves, and where to split."


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written."""

    page: Path
    folder: Path
    """Where the PNG and CSV files are."""
    figures: tuple[str, ...]
    skipped: tuple[str, ...]
    """Files with nothing to draw."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        values = vars(self).items()
        return {name: str(v) if isinstance(v, Path) else list(v) for name, v in values}


def report(
    sources: Sequence[Path],
    output: str | Path = "report.html",
    *,
    figures: str | Path | None = None,
    title: str = "Where to split",
) -> Written:
    """One HTML file with every figure of what `sweep`, `layers`, `bench`, `adapt` and `certify` wrote.

    `sources` are files or folders of them; `figures` is the folder for a PNG and a CSV of each figure, beside
    the page if not given.
    """
    path = Path(output)
    if path.is_dir():
        raise InputError(f"{output} is a folder; name an HTML file to write")
    read = read_sources(sources)
    sections = sections_of(read)
    page = render(title, tiles(read), sections)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(page, encoding="utf-8")
    draft.replace(path)
    folder = Path(figures) if figures else path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [figure for section in sections for figure in section.figures]
    for figure in drawn:
        (folder / f"{figure.name}.csv").write_text(to_csv(figure), encoding="utf-8")
        save(figure, folder / f"{figure.name}.png")
    names = tuple(figure.name for figure in drawn)
    return Written(page=path, figures=names, folder=folder, skipped=read.skipped)


def sections_of(sources: Sources) -> tuple[Section, ...]:
    """Every section that the sources can fill, figures with names of their own."""
    sections = (
        *sweep_sections(sources.sweep),
        *adapted_sections(sources.adapt),
        *certified_sections(sources.certificate),
        *layer_sections(sources.layers),
        *peer_sections(sources.bench),
    )
    # Two studies of one dataset must not share names, which are those of files and of anchors in the page.
    seen: Counter[str] = Counter()

    def own(figure: Figure) -> Figure:
        seen[figure.name] += 1
        count = seen[figure.name]
        return replace(figure, name=f"{figure.name}-{count}") if count > 1 else figure

    return tuple(replace(one, figures=tuple(map(own, one.figures))) for one in sections)


def tiles(sources: Sources) -> dict[str, str]:
    """The answer in short: for each dataset what its best split keeps, and that split in few characters."""
    answers = {}
    for name in dict.fromkeys(map(dataset_of, sources.sweep)):
        sweeps = [lines for lines in sources.sweep if dataset_of(lines) == name]
        curve = main_curve(sweeps)
        if curve and curve[0] and not says_nothing(curve, sweeps):
            best = best_trade_off(curve)
            kept = f"{shown(round(curve[best], 1))} of {shown(round(curve[0], 1))} kept"
            answers[f"{name}: {kept}"] = f"k = {best}"
    return answers


# The page -----------------------------------------------------------------------------------------


def render(title: str, tiles: Mapping[str, str], sections: Sequence[Section]) -> str:
    """One HTML file that needs nothing beside it: no script, style or font from elsewhere."""
    style = files("decoupled.lab.report").joinpath("page.css").read_text(encoding="utf-8")
    links = "".join(
        f'<a href="#section-{n}">{escape(section.title)}</a>' for n, section in enumerate(sections)
    )
    shown_tiles = "".join(
        f'<div class="tile"><b>{escape(split)}</b><span>{escape(text)}</span></div>'
        for text, split in tiles.items()
    )
    body = "".join(_section(section, n) for n, section in enumerate(sections))
    foot = f"decoupled {version('decoupled-transformer')}, {date.today().isoformat()}."
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # An empty icon: else a browser asks the server for one and reports that there is none.
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="soft">{LEAD}</p>'
        f'<nav aria-label="Sections">{links}</nav><div class="tiles">{shown_tiles}</div>{body}'
        f"<footer><p>{foot} Each figure names the command behind it.</p></footer></main></body></html>\n"
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
        f"{svg(figure)}<figcaption>{escape(figure.caption)}</figcaption>"
        f"<details><summary>Table</summary>{_table(figure)}</details>{commands}</figure>"
    )


def _table(figure: Figure) -> str:
    head, *rows = figure.rows()
    cells = "".join(f'<th scope="col">{escape(str(cell))}</th>' for cell in head)
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<div class="table"><table><tr>{cells}</tr>{lines}</table></div>'
