"""`train.py reader`: any datasets in, a model that ranks, reads and retrieves out."""

from typing import Annotated

import typer
from mixture import Dataset
from reader import train_reader
from reader_recipe import reader_recipe
from typer import Option

from decoupled import Model
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.cli.train import (
    At,
    Batch,
    Epochs,
    Projection,
    Rate,
    Seed,
    Sets,
    Source,
    Teacher,
    watched,
)
from decoupled.errors import DecoupledError
from decoupled.train.loop.checkpoint import ended
from decoupled.train.settings import recipe_changes


def reader(  # noqa: PLR0913 (the options of a command)
    model: Source,
    output: opt.NewModel,
    data: Annotated[
        list[str], Option(help="Pairs or passages, PATH or PATH=WEIGHT. May be repeated.")
    ],
    teacher: Teacher = None,
    retriever: Annotated[
        str | None, Option(help="A sentence encoder, for hard negatives and soft labels.")
    ] = None,
    at: At = None,
    projection: Projection = None,
    vector: Annotated[int | None, Option(help="Learn first-stage vectors so wide.")] = None,
    vector_layers: Annotated[int, Option(min=0, help="Layers for the vector alone.")] = 0,
    late: Annotated[int | None, Option(help="Learn late interaction so wide.")] = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: Rate = None,
    minutes: Annotated[float | None, Option(help="End by the clock, if not before.")] = None,
    seed: Seed = 0,
    settings: Sets = None,
    on_error: opt.OnError = "stop",
    as_json: opt.Json = False,
) -> None:
    """Train a model that ranks, reads and retrieves. Run it again after Ctrl-C: it goes on."""
    opt.need_torch(("accelerate", "train"))
    chosen = reader_recipe(
        recipe_changes(settings, epochs=epochs, batch=batch, lr=lr, minutes=minutes, seed=seed)
    )
    sets = [Dataset.read(source, on_error=opt.stop_or_skip(on_error)) for source in data]
    command = {"model": model, "data": data, "teacher": teacher, "retriever": retriever, "at": at}
    command |= {"projection": projection, "vector": vector, "vector_layers": vector_layers}
    command |= {"late": late}
    pairs = sum(len(one.pairs) for one in sets)
    with watched(output, command, chosen, f"{pairs} pairs") as bar:
        train_reader(
            Model.open(model),
            data=sets,
            at=at,
            projection=projection,
            vector=vector,
            vector_layers=vector_layers,
            late=late,
            teacher=Model.open(teacher) if teacher else None,
            retriever=Model.open(retriever) if retriever else None,
            recipe=chosen,
            out=output,
            progress=bar.log,
        )
    done, _ = ended(output)
    printing.result({"model": str(output), "recipe": "reader", "datasets": data, **done}, as_json)
    printing.note(f"{output}: trained {done['steps']} steps in {done['seconds']:.0f} s")


def run(arguments: list[str]) -> None:
    """Run the command with these arguments: exit 0 done, 1 an expected failure in one line, 2 usage."""
    app = typer.Typer(add_completion=False)
    app.command()(reader)
    try:
        app(arguments, prog_name="train.py reader")
    except (DecoupledError, OSError) as error:
        printing.note(f"error: {error}")
        raise SystemExit(1) from None
