"""`adapt`: a model learns the texts of an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.cli.train import Rate, Seed, Sets, watched
from decoupled.errors import InputError


def adapt(
    index: opt.Existing,
    output: opt.NewModel,
    teacher: Annotated[
        list[str] | None,
        Option(
            help="Cross-encoder (hub name or folder), `joint` (the model unsplit), `self`, `bm25`, `vector`; "
            "repeat it for several."
        ),
    ] = None,
    queries: Annotated[
        Path | None, Option(help="A log of queries, one a line; made of the passages if not given.")
    ] = None,
    keep_index: Annotated[
        bool, Option("--keep-index", help="Train above the split alone: the index stays valid.")
    ] = False,
    minutes: Annotated[
        float | None, Option(help="End by the clock, the teacher's scores included.")
    ] = None,
    limit: Annotated[int, Option(min=20, help="At most so many queries.")] = 4000,
    lr: Rate = None,
    seed: Seed = 0,
    anyway: Annotated[
        bool, Option("--anyway", help="Save the model also where it agrees less than before.")
    ] = False,
    settings: Sets = None,
    as_json: opt.Json = False,
) -> None:
    """Teach the model of an index its own texts, without labels. Run it again after a stop: it goes on."""
    from decoupled.index.manifest import read_manifest
    from decoupled.model.folder import check_free

    check_free(output)
    read_manifest(index)
    if queries is not None and not queries.exists():
        raise InputError(f"{queries} does not exist; give a file with one query a line")
    opt.need_torch(("accelerate", "train"))
    from decoupled.train.imitate import adapt_recipe

    chosen = adapt_recipe(opt.recipe_changes(settings, lr=lr, seed=seed))
    told: dict[str, Any] = {
        "index": str(index),
        "teacher": teacher,
        "queries": queries and str(queries),
    }
    told |= {"keep_index": keep_index, "minutes": minutes, "limit": limit}
    options: dict[str, Any] = {"teacher": teacher, "queries": queries, "keep_index": keep_index}
    options |= {"minutes": minutes, "limit": limit, "anyway": anyway, "recipe": chosen}
    with watched(output, told, chosen, f"texts of {index}") as bar:
        made = dc.adapt(index, out=output, progress=bar.told, **options)
    printing.result(made, as_json, _show_adapted)
    into = index if keep_index else "NEW-INDEX"
    printing.note(f"put it to use: decoupled index --from {index} -o {into} --model {output}")


def _show_adapted(made: dc.Adapted) -> None:
    before, after = made.before.to_json(), made.after.to_json()
    teachers = " + ".join(made.teachers)
    title = f"agreement with {teachers} on {made.held_out} queries that were set aside"
    printing.table(("", "before", "after"), [(n, before[n], after[n]) for n in after], title=title)
    slow = "" if made.teacher_ms is None else f", the teacher {made.teacher_ms:.1f} ms"
    printing.note(
        f"{made.model}: learnt from {made.queries} queries in {made.seconds:.0f} s; a query takes "
        f"{made.split_ms:.1f} ms{slow}"
    )
