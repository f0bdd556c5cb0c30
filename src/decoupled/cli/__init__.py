"""The command line: a thin skin over the library. Data on stdout, progress and logs on stderr."""

from __future__ import annotations

import sys

import typer

from decoupled.cli import (
    cascading,
    demonstration,
    evaluation,
    indexing,
    machine,
    models,
    pairs,
    queries,
    racing,
    reckoning,
    runtimes,
    scaling,
    serving,
    shrinking,
    studies,
    training,
)
from decoupled.errors import DecoupledError

app = typer.Typer(
    name="decoupled",
    help="Split a Transformer pair encoder: encode passages once, run only the upper layers per query.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    demonstration,
    indexing,
    queries,
    pairs,
    models,
    runtimes,
    training,
    shrinking,
    evaluation,
    scaling,
    cascading,
    racing,
    serving,
    studies,
    reckoning,
    machine,
):
    module.register(app)


def main() -> None:
    """Run a command: exit 0 done, 1 an expected failure in one line, 2 usage."""
    try:
        app()
    except DecoupledError as error:
        _fail(str(error))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left; nothing more to say
        sys.exit(1)
    except OSError as error:
        _fail(str(error))


def _fail(message: str) -> None:
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
    sys.exit(1)
