"""Everything that was measured, as a page with its pictures and tables beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from decoupled.errors import InputError, MissingDependency
from decoupled.lab.report.figure import Section, shown, to_csv
from decoupled.lab.report.inside import layer_sections
from decoupled.lab.report.money import cost_section, peer_sections
from decoupled.lab.report.page import Page, Tile, render
from decoupled.lab.report.picture import save_png
from decoupled.lab.report.published import published_figure
from decoupled.lab.report.quality import main_curve, score_sections, task_of, title_of
from decoupled.lab.report.smaller import smaller_sections
from decoupled.lab.report.sources import Sources, read_sources
from decoupled.lab.study.suggest import best_trade_off


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written."""

    page: Path
    figures: tuple[str, ...]
    folder: Path | None
    """Where the PNG and CSV files are."""
    pictures: bool
    """Were there PNG files, or is matplotlib missing?"""
    skipped: tuple[str, ...] = ()
    """Files with nothing to draw."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "page": str(self.page),
            "folder": str(self.folder),
            "figures": list(self.figures),
            "skipped": list(self.skipped),
        }


def report(
    sources: Sequence[Path],
    output: str | Path = "report.html",
    *,
    figures: str | Path | None = None,
    title: str = "Where to split",
) -> Written:
    """One HTML file with every figure of what `sweep`, `layers`, `cost`, `bench` and training wrote.

    `sources` are files or folders of them; `figures` is the folder for a PNG and a CSV of each figure, beside
    the page if not given.
    """
    page = Path(output)
    if page.is_dir():
        raise InputError(f"{output} is a folder; name an HTML file to write")
    read = read_sources(sources)
    folder = Path(figures) if figures else page.with_suffix("")
    return replace(write_report(read, page, title=title, folder=folder), skipped=read.skipped)


def write_report(
    sources: Sources, path: Path, *, title: str, folder: Path | None, made: str | None = None
) -> Written:
    """Write the page, and into `folder` a PNG and a CSV of each figure."""
    sections = sections_of(sources)
    day = made or date.today().isoformat()
    page = Page(
        title=title,
        lead="What a split loses, what it saves, and where to split.",
        tiles=tuple(tiles(sources)),
        sections=sections,
        foot=f"decoupled {version('decoupled-transformer')}, {day}. Each figure names the command behind it.",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(render(page), encoding="utf-8")
    draft.replace(path)
    pictures = _beside(sections, folder) if folder is not None else False
    names = tuple(figure.name for section in sections for figure in section.figures)
    return Written(page=path, figures=names, folder=folder, pictures=pictures)


def sections_of(sources: Sources) -> tuple[Section, ...]:
    """Every section that the sources can fill, figures with names of their own."""
    seeds = Section(
        title="The published speed-ups",
        text="What the papers print comes out of the same code.",
        figures=(published_figure(),),
    )
    found = (
        *score_sections(sources),
        *smaller_sections(sources.smaller),
        *layer_sections(sources.layers),
        cost_section(sources.costs),
        *peer_sections(sources.benches),
        seeds,
    )
    return tuple(_apart(found))


def _apart(sections: Iterable[Section]) -> Iterator[Section]:
    """Two studies of one dataset must not share names: they are those of files and of places in the page."""
    seen: Counter[str] = Counter()
    for section in sections:
        figures = []
        for figure in section.figures:
            seen[figure.name] += 1
            count = seen[figure.name]
            figures.append(replace(figure, name=f"{figure.name}-{count}") if count > 1 else figure)
        yield replace(section, figures=tuple(figures))


def tiles(sources: Sources) -> list[Tile]:
    """The answer in short: for each dataset the split that keeps its score."""
    names = dict.fromkeys([s.dataset for s in sources.scores])
    names |= dict.fromkeys(map(task_of, sources.sweeps))
    found = []
    for name in names:
        sweeps = [lines for lines in sources.sweeps if task_of(lines) == name]
        curve = main_curve([s for s in sources.scores if s.dataset == name], sweeps)
        if not curve or not curve[0]:
            continue
        best = best_trade_off(curve)
        words = (
            f"{title_of(name)}: {shown(round(curve[best], 1))} of {shown(round(curve[0], 1))} kept"
        )
        found.append(Tile(value=f"k = {best}", text=words))
    return found


def _beside(sections: tuple[Section, ...], folder: Path) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    pictures = True
    for section in sections:
        for figure in section.figures:
            (folder / f"{figure.name}.csv").write_text(to_csv(figure), encoding="utf-8")
            if pictures:
                try:
                    save_png(figure, folder / f"{figure.name}.png")
                except MissingDependency:
                    pictures = False
    return pictures
