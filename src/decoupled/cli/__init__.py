"""The command line: a thin skin over the library. Data on stdout, progress and logs on stderr."""

from __future__ import annotations

import sys
from copy import copy
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated

import typer
from typer import Option

from decoupled.cli import adapt, index, measure, models, printing, search, train
from decoupled.errors import DecoupledError, in_words

app = typer.Typer(
    name="decoupled",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PANELS = {
    "Try it": (search.demo, models.doctor),
    "Index, search, answer": (
        *(index.index, index.add, index.delete, index.compact, index.check),
        *(search.search, search.ask, search.rerank, search.classify),
        *(search.serve, index.cascade, index.plan),
    ),
    "Models": (
        *(models.split, models.info, models.export),
        *(train.distill, adapt.adapt, adapt.pretrain, train.tune, train.shrink),
    ),
    "Measure": (
        *(measure.evaluate, measure.sweep, measure.layers),
        *(measure.bench, measure.cost, measure.report),
    ),
}
"""Every command, in the order of the help."""
for panel, commands in PANELS.items():
    for command in commands:
        app.command(command.__name__, rich_help_panel=panel)(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"decoupled {version('decoupled-transformer')}\n")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Split a Transformer pair encoder: encode passages once, run only the upper layers per query."""


def main() -> None:
    """Run a command: exit 0 done, 1 an expected failure in one line, 2 usage."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # tables on a console that is not UTF-8
    # To look through the options of all commands takes 40 ms.
    only, every = copy(app), app.registered_commands
    only.registered_commands = [c for c in every if c.name in sys.argv[1:2]] or every
    try:
        only()
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left; nothing more to say
        sys.exit(1)
    except (DecoupledError, OSError) as error:
        printing.note(f"error: {' '.join(in_words(error).split())}")
        sys.exit(1)
