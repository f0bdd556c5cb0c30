"""`bench`: how fast this machine is with us and with what people run today."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decoupled.cli import printing
from decoupled.cli.evaluate import need
from decoupled.errors import DecoupledError, InputError


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(bench)


def bench(
    preset: Annotated[str, typer.Option(help="quick (under a minute), cpu or gpu.")] = "quick",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="JSON file; a run that finds one there goes on with it."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Picture to write.")] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Shapes to race instead of the preset's.")
    ] = None,
    top: Annotated[
        list[int] | None, typer.Option(min=1, help="Numbers of passages instead of the preset's.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only contenders whose name holds this.")
    ] = None,
    turns: Annotated[int, typer.Option(min=0, help="Turns instead of the preset's.")] = 0,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 is all cores.")] = 0,
    patience: Annotated[
        float, typer.Option(min=0, help="Leave out a cell whose query takes more seconds.")
    ] = 0,
    work: Annotated[
        Path | None, typer.Option(help="Folder for models and indexes, kept for the next run.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Race against other rerankers on this machine: same weights, same texts, in turns."""
    need(("torch", "torch"), *((("matplotlib", "plots"),) if plot else ()))
    from decoupled.lab.bench import race, report

    if output is not None and output.is_dir():
        raise InputError(f"{output} is a folder; name a JSON file to write")
    try:
        found = race.bench(
            preset,
            output=output,
            work=work,
            progress=printing.note,
            shapes=shape,
            tops=top,
            only=only,
            turns=turns,
            threads=threads,
            patience=patience,
        )
    except KeyboardInterrupt:
        raise DecoupledError(_stopped(output)) from None
    if plot is not None:
        report.plot(found["rows"], plot)
    if as_json:
        printing.document(found)
        return
    for table in report.tables(found["rows"]):
        printing.table(table.columns, table.rows, title=table.title)
    for line in report.skipped(found["rows"]):
        printing.note(line)
    printing.note(report.ceiling_line(found["ceiling"]))


def _stopped(output: Path | None) -> str:
    if output is None:
        return "stopped; name a file with -o, and the next race goes on where it was stopped"
    return f"stopped; {output} has what was raced, and the same command goes on"
