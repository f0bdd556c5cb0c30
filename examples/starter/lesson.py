"""A mixture made ready once for every model that is trained on it, and the phases of such a training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from blocks import in_blocks
from groups import FORMS, Pool
from mining import mine
from mixture import Dataset, Mixture
from reader_objective import Reader
from reader_recipe import ReaderSettings, as_student
from retriever import sentence_encoder, vectors_of, vectors_of_texts
from rounds import Rounds, Teachers
from torch import Tensor
from vector_objective import Vector, nearest_turn, principal_axes, start_vector

from decoupled.model import folder as folders
from decoupled.model.jsonable import to_json
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.spec import ModelSpec
from decoupled.train.data.cache import Cache
from decoupled.train.data.tasks import TASKS
from decoupled.train.loop import checkpoint
from decoupled.train.loop.checkpoint import weights_digest
from decoupled.train.loop.loop import Phase, accelerator_for, fit
from decoupled.train.objectives.base import objective_named
from decoupled.train.objectives.codec import codec_phase, start_projection
from decoupled.train.recipe import Recipe, override
from decoupled.train.reshape import with_bits, with_text
from decoupled.train.run import Setting, made_of

TASK = replace(TASKS["squad"], null=True)
BLOCK = 8192
"""Texts whose vectors are written together."""
SAMPLE = 4096
"""Windows by which the vectors of two models are laid over each other."""
VECTOR_SHARE = 0.15
"""Of the minutes, for a vector that has layers of its own."""
SCALE = 2.5
"""Logarithm of the scale that late interaction starts with; cosines alone would be no distribution."""


class Lesson:
    """Tokens, the retriever's vectors and mined negatives of a mixture."""

    def __init__(
        self,
        sets: Sequence[Dataset],
        model: Model,
        retriever: Model | None,
        recipe: Recipe,
        setting: Setting,
    ) -> None:
        sampling, seed = recipe.of(ReaderSettings).sampling, recipe.seed
        self.setting, self.device = setting, accelerator_for(recipe, setting.device).device
        made = sampling.synthetic > 0
        self.mixture = Mixture.of(sets, held=sampling.held, synthetic=made, seed=seed)
        # A model that has learned a vector is a retriever itself.
        self.own = retriever is None and model.spec.vector is not None
        retriever = model if self.own else retriever
        known = [self.mixture.digest(), model.tokenizer.json, json.dumps(to_json(sampling))]
        known += [str(seed), weights_digest(retriever.net, retriever.spec) if retriever else ""]
        folder = setting.out / "cache" if setting.out else None
        self.cache = Cache(folder, setting.progress).at(*known)
        short = with_text(
            model, passage_tokens=min(sampling.tokens, model.spec.text.passage_tokens)
        )
        self.pool = Pool(self.mixture, short.tokenizer, sampling, seed=seed)
        self.aims = self._vectors(retriever) if retriever else None
        near = None
        if self.aims is not None:
            first = torch.from_numpy(self.pool.texts.first[0]).to(self.device)
            near = self.aims[0][::FORMS], self.aims[1][first]
        where = {"count": sampling.mined, "device": self.device}
        self.pool.negatives = mine(self.mixture, near, self.cache, **where)

    def _vectors(self, retriever: Model) -> tuple[Tensor, Tensor]:
        """Unit vectors of every form of a query and of every window, in half precision."""
        encoder = sentence_encoder(retriever).to(self.device)

        def found(name: str, texts: Sequence[str]) -> Tensor:
            make = lambda part: vectors_of_texts(encoder, texts[part])  # noqa: E731
            return torch.from_numpy(in_blocks(self.cache, name, len(texts), BLOCK, make)).to(
                self.device
            )

        queries = found("query vectors", self.pool.forms)
        return queries, found("passage vectors", self.pool.texts.shown)

    def joint(self, model: Model, recipe: Recipe) -> Model:
        """The unsplit model trained on the mixture; kept in the run's folder, so that it is trained once."""
        if self.setting.out is None:
            return self.train(model, recipe, model.spec)
        named = hashlib.sha256(json.dumps(to_json(recipe)).encode()).hexdigest()[:8]
        folder = self.setting.out / f"teacher-{self.mixture.digest()[:8]}-{named}"
        if not folders.is_model(folder / "model"):
            trained = self.train(model, recipe, model.spec, folder=folder)
            trained.save(folder / "model")
            checkpoint.clear(folder)
        return Model.load(folder / "model")

    def train(
        self,
        model: Model,
        recipe: Recipe,
        before: ModelSpec,
        teachers: Teachers | None = None,
        folder: Path | None = None,
    ) -> Model:
        """A trained copy; what the spec `before` lacked is new to it, and starts as well as can be told."""
        folder = folder or self.setting.out
        accelerator = accelerator_for(recipe, self.setting.device)
        recipe = as_student(recipe) if teachers else recipe
        own, before = (
            with_bits(spec, recipe.of(ReaderSettings).projection.bits)
            for spec in (model.spec, before)
        )
        student = model.rebuild(own, {"did": "train reader", "recipe": to_json(recipe)})
        student.to(self.device)
        rounds = self._rounds(student, recipe, before, teachers)
        phases = self._phases(student.net, recipe, rounds, before)
        saved = checkpoint.load(folder) if folder is not None else None
        if saved is None:
            self._start(student.net, rounds, before)
        names = [phase.name for phase in phases]
        skip = names.index(saved[1]["phase"]) if saved and saved[1]["phase"] in names else 0
        of = made_of(student, self.mixture.digest(), recipe) if folder is not None else {}
        for phase in phases[skip:]:
            progress = self.setting.progress
            fit(replace(phase, folder=folder, of=of, progress=progress), accelerator)
        return student

    def _rounds(
        self, student: Model, recipe: Recipe, before: ModelSpec, teachers: Teachers | None
    ) -> Rounds:
        aims, cache = self.aims, self.cache
        if aims is not None and student.spec.vector is not None and not self.own:
            turn = principal_axes(aims[1])
            if before.vector is not None:
                turn = nearest_turn(aims[1][:SAMPLE], self._seen(student))
            aims = (aims[0].float() @ turn).half(), (aims[1].float() @ turn).half()
        if teachers is not None:
            named = [(head, net) for head, nets in vars(teachers).items() for net in nets]
            for _, net in named:
                net.to(self.device).requires_grad_(False)
            known = [head + weights_digest(net, net.spec) for head, net in named]
            cache = cache.at(str(recipe.optimiser.batch), str(recipe.seed), *known)
        return Rounds(
            pool=self.pool,
            device=self.device,
            recipe=recipe,
            pad=student.spec.text.pad,
            aims=aims,
            teachers=teachers,
            cache=cache,
        )

    def _seen(self, student: Model) -> Tensor:
        """The student's own vectors of some windows."""
        texts = [self.pool.texts.ids[n] for n in range(min(SAMPLE, len(self.pool.texts.ids)))]
        return vectors_of(student, texts, side="passage")

    def _phases(
        self, net: PairEncoder, recipe: Recipe, rounds: Rounds, before: ModelSpec
    ) -> list[Phase]:
        main, last = recipe, recipe
        vector = net.spec.vector if recipe.objective == "reader" else None
        deep = vector is not None and bool(vector.layers) and rounds.aims is not None
        if deep and (minutes := recipe.optimiser.minutes) is not None:
            shares = (1 - VECTOR_SHARE, VECTOR_SHARE)
            main, last = (override(recipe, {"optimiser.minutes": s * minutes}) for s in shares)
        teacher = None
        if rounds.teachers is not None and recipe.of(ReaderSettings).weights.lrs:
            teacher = next(iter(rounds.teachers.rank), None)
        kind = Reader if recipe.objective == "reader" else objective_named(recipe.objective)
        objective = kind(net, TASK, main, teacher=teacher)
        phases = [Phase(objective=objective, batches=rounds, recipe=main)]
        how = recipe.of(ReaderSettings).projection
        if net.spec.projection != before.projection and how.phases == 2:
            phases.insert(0, codec_phase(net, TASK, recipe, how, rounds))
        if deep:
            own = Vector(net, TASK, last)
            phases.append(Phase(objective=own, batches=rounds, recipe=last, name="vector"))
        return phases

    def _start(self, net: PairEncoder, rounds: Rounds, before: ModelSpec) -> None:
        how = rounds.recipe.of(ReaderSettings).projection
        if net.spec.projection != before.projection and how.start == "pca":
            start_projection(net, rounds, TASK, rounds.recipe.seed)
        wide = 0 if rounds.aims is None else rounds.aims[0].shape[1]
        if net.spec.vector != before.vector and net.spec.vector_width <= wide:
            start_vector(net, rounds, rounds.recipe.seed)
        if net.late is not None and net.spec.late != before.late:
            torch.nn.init.constant_(net.late.scale, SCALE)
