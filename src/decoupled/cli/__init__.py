"""The command line: a thin skin over the library. Data on stdout, progress and logs on stderr."""

import sys
from collections.abc import Callable, Sequence
from copy import copy
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer import Option

from decoupled.cli import adapt, agents, index, lab, models, printing, search, train
from decoupled.cli.options import Command
from decoupled.errors import DecoupledError, in_words

Function = Callable[..., None]
PANELS: dict[str, tuple[Function, ...]] = {
    "Try it": (search.demo, models.doctor),
    "Index, search, answer": (
        *(index.index, index.add, index.check),
        *(search.search, search.ask, search.rerank, search.serve, agents.mcp),
    ),
    "Models": (
        *(models.split, train.distill, adapt.adapt),
        *(models.evaluate, models.info, models.export),
    ),
}
"""The commands of the help, in its order."""
RARE: tuple[Function, ...] = (index.delete, index.compact, search.classify)
RARE += (models.certify, models.push)
"""Commands that the last line of the help names."""
GROUPS: dict[str, tuple[str, tuple[Function, ...]]] = {
    "lab": (
        "Race, sweep, price and draw: experiments about splits, speed and cost.",
        (*(lab.layers, lab.sweep, train.tune, lab.bench), *(lab.cost, lab.plan, lab.report)),
    ),
    "methods": (
        "Make a model smaller, or pre-train one on texts: the other systems of the papers.",
        (train.shrink, adapt.pretrain),
    ),
}
"""Commands of a second word. Each still answers to its own name alone, which the help does not show."""


def _typer(**settings: Any) -> typer.Typer:
    return typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )


def _add(to: typer.Typer, commands: Sequence[Function], **settings: Any) -> None:
    for command in commands:
        to.command(command.__name__, cls=Command, **settings)(command)


app = _typer(name="decoupled")
for heading, commands in PANELS.items():
    _add(app, commands, rich_help_panel=heading)
_add(app, RARE, hidden=True)
for name, (about, commands) in GROUPS.items():
    group = _typer(help=about)
    _add(group, commands)
    app.add_typer(group, name=name, rich_help_panel="Experiments")
    _add(app, commands, hidden=True)


def _show_version(requested: bool) -> None:
    if requested:
        sys.stdout.write(f"decoupled {version('decoupled-transformer')}\n")
        raise typer.Exit


Version = Annotated[
    bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
]


@app.callback(
    epilog="Rarely needed: `delete` removes passages, `compact` frees their disk space, `classify` labels "
    "pairs of texts, `certify` compares a split model with its joint one, `push` puts it on a hub. "
    "Every command has --help."
)
def _options(_: Version = False) -> None:
    """Split a Transformer pair encoder: encode passages once, run only the upper layers per query."""


def _narrowed(whole: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """The app with only the command that was typed: to look through the options of all takes 40 ms."""
    only, first = copy(whole), words[:1]
    only.registered_commands = [c for c in whole.registered_commands if c.name in first]
    only.registered_groups = [copy(g) for g in whole.registered_groups if g.name in first]
    for group in only.registered_groups:
        assert group.typer_instance is not None
        group.typer_instance = _narrowed(group.typer_instance, words[1:])
    return only if only.registered_commands or only.registered_groups else whole


def main() -> None:
    """Run a command: exit 0 done, 1 an expected failure in one line, 2 usage."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # tables on a console that is not UTF-8
    try:
        _narrowed(app, sys.argv[1:])()
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left; nothing more to say
        sys.exit(1)
    except (DecoupledError, OSError) as error:
        printing.note(f"error: {' '.join(in_words(error).split())}")
        sys.exit(1)
