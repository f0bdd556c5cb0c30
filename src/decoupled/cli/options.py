"""Options that several commands share, declared once, and what is written in them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from typer import Argument, Option
from typer.core import TyperCommand, TyperOption

from decoupled.cli import printing
from decoupled.errors import InputError, need

if TYPE_CHECKING:
    from decoupled.measure.pairs import Pair

T = TypeVar("T")
rare = partial(Option, hidden=True)
"""An option that the help leaves out; `--help-all` shows it."""


class Command(TyperCommand):
    """A command whose help leaves out the hidden options; `--help-all` shows them too."""

    def __init__(self, *names: Any, **settings: Any) -> None:
        super().__init__(*names, **settings)
        options = (one for one in self.params if isinstance(one, TyperOption))
        self._rare = [option for option in options if option.hidden]
        if self._rare:
            self.epilog = f"{len(self._rare)} rarely needed options are not shown: see --help-all."

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the command; `--help-all` is `--help` with every option."""
        if "--help-all" in args:
            args, self.epilog = ["--help"], None
            for option in self._rare:
                option.hidden = False
        return super().parse_args(ctx, args)


def _free(path: Path) -> Path:
    from decoupled.model.folder import check_free

    check_free(path)
    return path


Json = Annotated[bool, Option("--json", help="One JSON document on stdout.")]
Raw = Annotated[bool, Option("--raw", help="Logits instead of probabilities.")]
OnError = Annotated[str, Option(help="What cannot be read: `stop`, or `skip` and say so.")]
Runtime = Annotated[
    str, Option(help="auto, torch, cuda, openvino, openvino-fp32 or openvino-int8.")
]
Existing = Annotated[Path, Argument(metavar="INDEX", help="An index: a folder, or s3://…")]
Starter = Annotated[
    str | None, Option(help="Model folder, checkpoint or hub name; the bundled one if not given.")
]
NewModel = Annotated[Path, Option("--output", "-o", callback=_free, help="Model folder to write.")]
Spec = Annotated[
    Path | None,
    Option(help='JSON of a new model: {"layers": 4, "width": 256, "heads": 4}, or a spec.json.'),
]
Result = Annotated[Path | None, Option("--output", "-o", help="JSON file to write.")]
Host = Annotated[str, Option(help="Address to listen on.")]
Port = Annotated[int, Option(min=0, max=65535, help="Port to listen on.")]
Proxies = Annotated[list[str] | None, rare("--allow-host", help="A keyless proxy; repeatable.")]
ReadShare = Annotated[
    str | None,
    Option(
        "--read",
        "--cascade",
        help="Read this share of the candidates (0.3), or all; by default what the model says is enough.",
    ),
]
Prune = Annotated[
    str | None, Option(help="Show the sentences that matter with this probability (0.5), or auto.")
]
Memory = Annotated[
    str | None, Option(help="Keep states in memory up to this size (2GB), for many queries.")
]


def need_torch(*more: tuple[str, str]) -> None:
    """Raise where torch or another package is missing; else prepare this processor before torch loads."""
    from decoupled.runtime import cpu

    need(("torch", "torch"), *more)
    cpu.protect()


def typed_command() -> str:
    """The command line as it was typed."""
    return "decoupled " + shlex.join(sys.argv[1:])


def parsed(option: str, text: str, parse: Callable[[str], T], remedy: str) -> T:
    """The value that is written in an option, or an error that says how to write it."""
    try:
        return parse(text)
    except ValueError:
        raise InputError(f"{option} is {text!r}; {remedy}") from None


def one_of(option: str, value: str, allowed: Sequence[str]) -> str:
    """The value of an option that has a closed list; raises `InputError` for any other."""
    if value not in allowed:
        *most, last = allowed
        raise InputError(f"{option} is {value!r}; choose {', '.join(most)} or {last}")
    return value


def stop_or_skip(on_error: str) -> Literal["stop", "skip"]:
    """The value of `--on-error`, checked."""
    return "skip" if one_of("--on-error", on_error, ("stop", "skip")) == "skip" else "stop"


def chunk_size(text: str) -> int | Literal["auto"] | None:
    """The tokens of `--chunk`; None leaves documents whole."""
    if text in ("auto", "none"):
        return "auto" if text == "auto" else None
    return parsed("--chunk", text, int, "give a number of tokens such as 180, or none")


def read_data(sources: Sequence[str | Path], on_error: str) -> list[Pair]:
    """The pairs of all sources; a source that is not there fails before any is read."""
    from decoupled.index.documents import Skipped
    from decoupled.measure.pairs import read_pairs

    skipped, stops = Skipped(), stop_or_skip(on_error)
    readers = [read_pairs(source, on_error=stops, report=skipped) for source in sources]
    try:
        pairs = list(chain.from_iterable(readers))
    finally:
        printing.note(*skipped.lines())
    if not pairs:
        named = ", ".join(map(str, sources))
        raise InputError(f"{named}: no pairs were read; expected a query and a passage in each row")
    return pairs
