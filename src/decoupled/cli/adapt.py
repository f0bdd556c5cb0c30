"""`adapt` and `pretrain`: a model learns from texts without labels."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import decoupled as dc
from decoupled.cli import options as opt
from decoupled.cli import printing
from decoupled.cli.train import Batch, Epochs, Rate, Seed, Sets, watched
from decoupled.errors import InputError
from decoupled.train.settings import Adapting, recipe_changes


def adapt(
    index: opt.Existing,
    output: opt.NewModel,
    teacher: Annotated[
        list[str] | None,
        Option(help="Cross-encoder, or joint (the model unsplit); of several the mean teaches."),
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
    from decoupled.index.manifest import read_manifest  # here: `--help` must not load it

    read_manifest(index)  # what is no index is said before torch is loaded
    if queries is not None and not queries.exists():
        raise InputError(f"{queries} does not exist; give a file with one query a line")
    opt.need_torch(("accelerate", "train"))
    from decoupled.train.adapt import recipe_for

    chosen = recipe_for(index, recipe_changes(settings, lr=lr, seed=seed), teacher or ())
    how: dict[str, Any] = {"keep_index": keep_index, "minutes": minutes, "limit": limit}
    how["queries"] = str(queries) if queries else None
    options = Adapting(index=str(index), teacher=tuple(teacher or ()), **how)
    with watched(output, options, chosen, f"texts of {index}") as bar:
        run = partial(dc.adapt, index, out=output, teacher=teacher, anyway=anyway, **how)
        adapted = run(recipe=chosen, progress=bar.log)
    printing.result(adapted, as_json)
    into = index if keep_index else "NEW-INDEX"  # with it the stored states stay valid
    printing.note(f"put it to use: decoupled index --from {index} -o {into} --model {output}")


def pretrain(
    corpus: Annotated[list[str], Argument(help="Files and folders, as `index` reads them.")],
    output: opt.NewModel,
    objective: Annotated[str, Option(help="mlm, nsp, sop, electra, structbert or wklm.")] = "mlm",
    base: Annotated[
        str | None, Option(help="Model to train further, or whose tokens to use.")
    ] = None,
    spec: opt.Spec = None,
    gazetteer: Annotated[
        Path | None,
        Option(help="wklm: JSON of kinds with their names; made of titles if not given."),
    ] = None,
    keep_generator: Annotated[
        bool, Option("--keep-generator", help="electra: save the generator in OUTPUT-generator.")
    ] = False,
    steps: Annotated[int | None, Option(min=1, help="Instead of --epochs.")] = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: Rate = None,
    seed: Seed = 0,
    settings: Sets = None,
    as_json: opt.Json = False,
) -> None:
    """Train an encoder on texts without labels. Run it again after a stop: it goes on."""
    from decoupled.index.documents import check_sources

    check_sources(corpus)  # a missing file is said before torch is loaded
    opt.need_torch(("accelerate", "train"))
    from decoupled.methods.pretrain.settings import (
        PretrainingOptions,
        check_options,
        pretrain_recipe,
    )

    changes = recipe_changes(settings, epochs=epochs, batch=batch, lr=lr, seed=seed)
    chosen = pretrain_recipe(objective, changes)
    how: dict[str, Any] = {"objective": objective, "base": base, "steps": steps}
    how["spec"] = str(spec) if spec else None
    how["gazetteer"] = str(gazetteer) if gazetteer else None
    options = PretrainingOptions(corpus=tuple(corpus), **how)
    check_options(
        objective, base=base, spec=spec, gazetteer=gazetteer, keep_generator=keep_generator
    )
    with watched(output, options, chosen, f"texts of {', '.join(corpus)}") as bar:
        run = partial(dc.pretrain, corpus, out=output, keep_generator=keep_generator, **how)
        pretrained = run(recipe=chosen, progress=bar.log)
    printing.result(pretrained, as_json)
