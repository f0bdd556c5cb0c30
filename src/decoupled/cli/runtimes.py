"""`export`, and the option `--runtime` of every command that runs a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoupled.cli import printing
from decoupled.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

Runtime = Annotated[
    str,
    typer.Option(
        "--runtime",
        help="auto, torch, cuda, openvino, openvino-fp32 or openvino-int8: what runs the model.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(export)


def export(
    model: Annotated[Path, typer.Argument(help="A model folder, or an index for the model in it.")],
    runtime: Annotated[str, typer.Option(help="openvino.")] = "openvino",
    int8: Annotated[
        bool, typer.Option("--int8", help="Calibrate, so that it multiplies bytes.")
    ] = False,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--calibrate", help="Pairs to calibrate on, or passages; the samples if not given."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many pairs to calibrate on.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Make a model folder run without torch; with --int8 several times faster on most CPUs."""
    from decoupled.index.manifest import MODEL, is_index
    from decoupled.model.folder import EXPORTED
    from decoupled.runtime import cpu

    if runtime != "openvino":
        raise InputError(f"--runtime is {runtime!r}; openvino is what there is to export to")
    folder = model / MODEL if is_index(model) else model
    cpu.protect()
    from decoupled.model.folder import read_spec
    from decoupled.runtime.openvino.export import export_int8

    read_spec(folder)
    facts: dict[str, Any] = {"model": str(folder), "runtime": runtime}
    if int8:
        from decoupled.cli.index import progress_bar

        pairs = calibration_pairs(data or [])
        with progress_bar("calibrating", min(limit, len(pairs))) as bar:
            facts |= export_int8(folder, pairs, limit=limit, progress=bar.read)
    if as_json:
        printing.document(facts)
    elif int8:
        printing.note(
            f"{facts['file']}: the ranges of {facts['inputs']} inputs over {facts['pairs']} pairs"
        )
        if not cpu.multiplies_bytes():
            printing.note("this processor multiplies floats as fast: openvino stays with them here")
    elif (folder / EXPORTED).is_file():
        printing.note(f"{folder} runs on openvino as it is, and is calibrated for int8")
    else:
        printing.note(f"{folder} runs on openvino as it is, in fp32, straight from its weights")
        printing.note(f"int8 is several times faster: decoupled export {model} --int8")


def calibration_pairs(sources: Sequence[str]) -> list[tuple[str, str]]:
    """Queries with passages, of the sources or of the samples; a passage alone is asked by its opening."""
    from decoupled.index.documents import read_pairs, read_passages
    from decoupled.search import starter

    if not sources:
        return starter.sample_pairs()
    try:
        found = [(p.query, p.passage) for source in sources for p in read_pairs(source)]
    except InputError:
        texts = [p.text for p in read_passages(*sources)]
        found = [(" ".join(text.split()[:12]), text) for text in texts]
    if not found:
        raise InputError(f"--calibrate {' '.join(sources)}: no pairs and no passages in it")
    return found
