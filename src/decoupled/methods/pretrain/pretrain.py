"""`pretrain`: texts in, an encoder that knows their words out; nothing is labelled."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator, PartialState
from safetensors.torch import load_file, save_file
from torch import Tensor

from decoupled.index.documents import read_passages
from decoupled.index.documents.passages import starter_tokenizer
from decoupled.measure.table import ResultTable
from decoupled.methods.pretrain.corpus import Corpus
from decoupled.methods.pretrain.electra import Electra
from decoupled.methods.pretrain.gazetteer import (
    Gazetteer,
    exchanging,
    made_gazetteer,
    read_gazetteer,
)
from decoupled.methods.pretrain.masking import mask_token
from decoupled.methods.pretrain.mlm import Mlm
from decoupled.methods.pretrain.scratch import random_model, read_spec
from decoupled.methods.pretrain.segments import Builder
from decoupled.methods.pretrain.settings import Pretraining, check_options, pretrain_recipe
from decoupled.methods.pretrain.texts import TextBatches
from decoupled.model.files import written
from decoupled.model.folder import is_model
from decoupled.model.jsonable import to_json
from decoupled.model.model import Model
from decoupled.model.tokens import Passage, Tokenizer
from decoupled.train.loop import checkpoint
from decoupled.train.loop.forward import autocast
from decoupled.train.loop.loop import Phase, accelerator_for, fit
from decoupled.train.objectives.base import objective_named
from decoupled.train.place import Progress, counted
from decoupled.train.recipe import Recipe, override
from decoupled.train.run import keep, made_of

HEADS = "pretraining.safetensors"
"""File in a model folder with what was learnt beside the model, to go on with."""
MOST_HELD = 2000
"""The most documents that are set aside."""
EVALUATED = 64
"""The most batches of these that are measured."""

Source = Iterable[str | Path] | Iterable[Passage]


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """An encoder that learnt from texts, and how well it guesses in texts that were set aside."""

    model: str
    objective: str
    documents: int
    tokens: int
    steps: int
    before: dict[str, float]
    after: dict[str, float]
    """Losses and accuracies by name, and the perplexity of hidden words."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        return dict(vars(self))

    def table(self) -> ResultTable:
        """A table of the losses and accuracies, before and after."""
        learnt = f"learnt from {self.documents} documents of {self.tokens:,} tokens"
        return ResultTable(
            title=f"{self.objective} on documents that were set aside",
            columns=("", "before", "after"),
            rows=[(n.replace("_", " "), self.before[n], self.after[n]) for n in self.after],
            notes=[f"{self.model}: {learnt} in {self.steps} steps, {self.seconds:.0f} s"],
        )


def pretrain(  # noqa: PLR0913 (the options of the command)
    corpus: str | Path | Source,
    *,
    out: str | Path,
    objective: str = "mlm",
    base: str | Path | Model | None = None,
    spec: str | Path | None = None,
    gazetteer: str | Path | None = None,
    steps: int | None = None,
    keep_generator: bool = False,
    recipe: Recipe | None = None,
    progress: Progress | None = None,
) -> Pretrained:
    """Train an encoder on texts without labels and save it in `out`.

    The corpus is files, folders or passages, as for an index. The encoder goes on from `base`, or begins at
    random by the `spec` in a file, with the tokenizer of `base` or of the bundled model. `mlm` hides words;
    `nsp` and `sop` also ask whether two texts follow one another, and in which order; `structbert` both, and
    puts shuffled words in order; `electra` finds words that a small generator put in, which `keep_generator`
    saves in `OUT-generator`; `wklm` finds names that others of their kind stand for, by the `gazetteer` in a
    file or by one that is made of titles and headings.

    It runs for so many `steps`, or as long as the recipe says. A share of the documents is set aside, and
    what is measured there is in the result. The checkpoint lies in `out.run`: the same call goes on after a
    stop.
    """
    started, work = time.perf_counter(), checkpoint.work_folder(out)
    recipe = pretrain_recipe(objective) if recipe is None else recipe
    check_options(
        objective, base=base, spec=spec, gazetteer=gazetteer, keep_generator=keep_generator
    )
    model = beginning(base, spec, seed=recipe.seed)
    passages = list(_passages(corpus, model.tokenizer))
    build: Builder = cast(type[Mlm], objective_named(objective)).build
    if objective == "wklm":
        named = read_gazetteer(gazetteer) if gazetteer else made_gazetteer(passages)
        build = exchanging(Gazetteer.of(named, model.tokenizer), recipe.of(Pretraining).exchanged)
    count = counted("tokenising", progress)
    whole = Corpus.read(passages, model.tokenizer, lambda done: count(done, len(passages)))
    accelerator = accelerator_for(recipe)
    goal = _goal(model, recipe, objective, _tensors_of(base)).to(accelerator.device)
    run = _PretrainRun(goal, whole, build, recipe, accelerator)
    before = run.measure()
    recipe = run.within(steps)
    of = made_of(model, whole.digest(), recipe)
    phase = Phase(objective=goal.train(), batches=run.taught, recipe=recipe, folder=work, of=of)
    report = fit(replace(phase, progress=progress), accelerator)
    after = run.measure()
    did = {"did": "pretrain", "recipe": to_json(recipe), "documents": len(run.taught.corpus)}
    trained = Model(goal.student.to("cpu"), model.tokenizer, [*model.history, did])
    _keep(trained, goal, out, keep_generator)
    return Pretrained(
        model=str(out),
        objective=objective,
        documents=len(whole),
        tokens=len(whole.ids),
        steps=report.steps,
        before=before,
        after=after,
        seconds=round(time.perf_counter() - started, 1),
    )


def beginning(base: str | Path | Model | None, spec: str | Path | None, *, seed: int) -> Model:
    """The model to train: existing weights, or random ones."""
    model = base if isinstance(base, Model) or base is None else Model.open(base)
    if spec is None:
        assert model is not None
        return model
    tokenizer = model.tokenizer if model is not None else starter_tokenizer()
    return random_model(read_spec(spec, tokenizer), tokenizer, seed=seed)


def _passages(corpus: str | Path | Source, tokenizer: Tokenizer) -> Iterator[Passage]:
    """The passages of files and folders, or those that were given."""
    sources = [corpus] if isinstance(corpus, (str, Path)) else list(corpus)
    paths = [one for one in sources if isinstance(one, (str, Path))]
    if paths:
        yield from read_passages(*paths, tokenizer=tokenizer)
    yield from (one for one in sources if isinstance(one, Passage))


def _tensors_of(base: str | Path | Model | None) -> dict[str, Tensor]:
    """The tensors that were learnt beside a model, where its folder has them."""
    path = Path(base) / HEADS if isinstance(base, (str, Path)) and is_model(base) else None
    return load_file(path) if path is not None and path.is_file() else {}


def _goal(model: Model, recipe: Recipe, objective: str, tensors: Mapping[str, Tensor]) -> Mlm:
    """The objective over a copy of the model."""
    student = model.rebuild(model.spec, {})
    kind = cast(type[Mlm], objective_named(objective))
    goal = kind(student.net, recipe, mask=mask_token(model.tokenizer))
    goal.begin(tensors)
    return goal


class _PretrainRun:
    """The texts of a run: those that are learnt from, and those that are set aside."""

    def __init__(
        self, goal: Mlm, corpus: Corpus, build: Builder, recipe: Recipe, accelerator: Accelerator
    ) -> None:
        self.goal, self.recipe, spec = goal, recipe, goal.student.spec
        how = recipe.of(Pretraining)
        longest = min(how.tokens, spec.encoder.max_tokens)
        self.taught, self.held = (
            TextBatches(part, build, accelerator.device, text=spec.text, tokens=longest)
            for part in corpus.divide(how.held, MOST_HELD, recipe.seed)
        )

    def within(self, steps: int | None) -> Recipe:
        """The recipe with as many epochs as `steps` need."""
        if steps is None:
            return self.recipe
        sizes, seed = self.recipe.optimiser, self.recipe.seed
        length = len(self.taught.epoch(seed, 0, size=sizes.batch, tokens=sizes.tokens))
        # A half more than so many, which is cut off: shares of numbers are never quite what they are.
        return override(self.recipe, {"optimiser.epochs": (steps + 0.5) / length})

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Every loss and accuracy on the texts that were set aside, the same ones each time."""
        sizes, losses = self.recipe.optimiser, list[dict[str, Tensor]]()
        batches = self.held.epoch(self.recipe.seed, 0, size=sizes.batch, tokens=sizes.tokens)
        self.goal.eval()
        with autocast(self.held.device, self.recipe.precision):
            for batch in self.held.walk(batches[:EVALUATED]):
                losses.append(self.goal(batch)[1])
        means = {
            n: float(torch.stack([one[n].float() for one in losses]).mean()) for n in losses[0]
        }
        if "mlm" in means:
            # Capped: at the start of training the exponential may overflow.
            means["perplexity"] = math.exp(min(means["mlm"], 50.0))
        return {name: round(value, 4) for name, value in means.items()}


def _keep(trained: Model, goal: Mlm, out: str | Path, keep_generator: bool) -> None:
    """Save the model, what was learnt beside it, and the generator where that is asked for."""
    keep(trained, out)
    if not PartialState().is_main_process:
        return
    own = {n: t.detach().cpu().contiguous() for n, t in goal.own_tensors().items()}
    with written(Path(out) / HEADS) as file:
        save_file(own, file)
    if keep_generator:
        encoder = Model(
            cast(Electra, goal).whole_generator(),
            trained.tokenizer,
            [{"did": "generate for", "model": str(out)}],
        )
        encoder.save(f"{out}-generator")
