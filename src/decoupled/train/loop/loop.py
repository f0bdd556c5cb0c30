"""The one training loop: fine-tuning, distilling and compressing differ in the objective alone.

It runs on whatever `accelerate` finds, logs JSON lines, judges the tune split, keeps the best weights, and
goes on from a checkpoint as if it had never stopped. Between two lines of the log nothing waits for the GPU.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor

from decoupled.errors import DecoupledError, InputError
from decoupled.model.nn.encoder import PairEncoder
from decoupled.runtime.cpu import multiplies_halves
from decoupled.train.data.batches import Feed
from decoupled.train.loop import checkpoint
from decoupled.train.loop.average import Average
from decoupled.train.loop.optimiser import optimiser_for, rate
from decoupled.train.objectives.base import Objective
from decoupled.train.place import Line, Progress
from decoupled.train.recipe import Recipe, override

BeforeStep = Callable[[int, int], None]
"""Called with the number of the step and the number of steps."""

SAVE_EVERY = {"cpu": 20, "cuda": 500}
"""Steps between checkpoints: writing one takes about a second, a step a second or a few hundredths."""


class Diverged(DecoupledError):
    """Raised for a loss that is no finite number."""


class Hook(Protocol):
    """A change to a student that holds only while it is trained: layers dropped, replaced or quantised."""

    @property
    def settled(self) -> float:
        """The share of the steps after which it is in full force."""

    def trains(self, name: str) -> bool:
        """Whether the parameter of that name is trained."""

    def hook(
        self, student: PairEncoder, teacher: PairEncoder | None
    ) -> AbstractContextManager[BeforeStep | None]:
        """A context in which it is in force; it may give a function to call before each step."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase of a run: what is minimised, over which batches, and how."""

    objective: Objective
    batches: Feed
    recipe: Recipe
    name: str = "train"
    hooks: Sequence[Hook] = ()
    evaluate: Callable[[], float] | None = None
    """Gives the score of the present weights on the tune split; larger is better."""
    folder: Path | None = None
    """The folder of the log and the checkpoint; None keeps neither."""
    progress: Progress | None = None
    of: Mapping[str, str] = field(default_factory=dict)
    """Digests, by name, of what decides a run; a checkpoint with other digests is refused."""


@dataclass(kw_only=True)
class Report:
    """The outcome of a run."""

    steps: int = 0
    seconds: float = 0.0
    model_seconds: float = 0.0
    tokens: int = 0
    best: float | None = None
    best_step: int = 0
    stopped_early: bool = False
    losses: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[float, float]] = field(default_factory=list)
    """Seconds and score of every evaluation."""


def accelerator_for(recipe: Recipe, device: str | None = None) -> Accelerator:
    """`accelerate` set up as the recipe says; `device="cpu"` leaves a GPU alone."""
    # Its state is shared by the whole process and refuses another precision later on.
    AcceleratorState._reset_state()
    return Accelerator(
        mixed_precision="bf16" if recipe.precision == "bf16" else "no",
        gradient_accumulation_steps=recipe.optimiser.accumulate,
        cpu=device == "cpu",
    )


def suits(device: str) -> dict[str, int | str]:
    """Fields of a recipe that suit a kind of device, by dotted name, where nobody said otherwise."""
    fields: dict[str, int | str] = {"watch.save_every": SAVE_EVERY.get(device, 100)}
    # Processors that multiply brain floats do so several times as fast as floats; others emulate them.
    return fields if device != "cpu" or multiplies_halves() else {**fields, "precision": "fp32"}


def suited_to_machine(
    recipe: Recipe, on_cpu: Mapping[str, Any], changes: Mapping[str, Any] | None
) -> Recipe:
    """The recipe as suits this machine, with `changes` by dotted field name."""
    device = accelerator_for(Recipe(precision="fp32")).device.type
    fields = {**suits(device), **(on_cpu if device == "cpu" else {})}
    return override(recipe, {**fields, **(changes or {})})


def fit(phase: Phase, accelerator: Accelerator) -> Report:
    """Run a phase to its end; the student then holds the best weights, or the last ones."""
    student, teacher = phase.objective.student, phase.objective.teacher
    frozen = {n: p.requires_grad for n, p in student.named_parameters()}
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    with ExitStack() as hooks:
        entered = [hooks.enter_context(one.hook(student, teacher)) for one in phase.hooks]
        for name, parameter in student.named_parameters():
            moves = phase.objective.trains(name) and all(one.trains(name) for one in phase.hooks)
            parameter.requires_grad_(moves)
        try:
            # The caller's random state is left as it was, on the CPU and on the device.
            with torch.random.fork_rng(devices=devices):
                torch.manual_seed(phase.recipe.seed)
                return _Run(phase, accelerator, [one for one in entered if one]).run()
        finally:
            for name, parameter in student.named_parameters():
                parameter.requires_grad_(frozen[name])
            student.eval()


class _Run:
    """The state of a run, and its steps."""

    def __init__(
        self, phase: Phase, accelerator: Accelerator, before_step: Sequence[BeforeStep]
    ) -> None:
        self.phase, self.accelerator, self.before_step = phase, accelerator, before_step
        self.student, self.settings = phase.objective.student, phase.recipe.optimiser
        phase.objective.to(accelerator.device)
        self.raw = optimiser_for(phase.objective, self.settings, accelerator.device)
        self.module, self.optimiser = accelerator.prepare(phase.objective, self.raw)
        self.moving = [p for p in phase.objective.parameters() if p.requires_grad]
        self.report = Report()
        self.best: dict[str, Tensor] | None = None
        self.misses = 0
        self.average = Average(self.moving, self.settings.ema)
        self.epochs: dict[int, list[Any]] = {}
        self.began = time.perf_counter()
        self.total = max(1, int(len(self.epoch(0)) * self.settings.epochs))
        # Gradients between two updates are in no checkpoint, so none is saved there.
        together = self.settings.accumulate
        self.save_every = -(-phase.recipe.watch.save_every // together) * together
        self.recent: list[dict[str, Tensor]] = []

    def epoch(self, number: int) -> list[Any]:
        """The batches of an epoch that fall to this process."""
        if number not in self.epochs:
            seed, sizes = self.phase.recipe.seed, self.settings
            batches = self.phase.batches.epoch(seed, number, size=sizes.batch, tokens=sizes.tokens)
            count, rank = self.accelerator.num_processes, self.accelerator.process_index
            usable = len(batches) // count * count
            if not usable:
                raise InputError(
                    f"an epoch has {len(batches)} batches for {count} processes; use fewer processes, "
                    "smaller batches or more data"
                )
            # Every process gets the same number of batches, or they would wait for each other
            # forever.
            self.epochs = {number: batches[rank:usable:count] if count > 1 else batches}
        return self.epochs[number]

    def run(self) -> Report:
        started = time.perf_counter()
        step = self._resume()
        before = self.report.seconds
        self.began = started - before
        if step == 0 and self.save_every:
            # So that a later phase never begins again with the first one.
            self._save(0)
        epoch, done = self._locate(step)
        while step < self.total and not self.report.stopped_early and self.spent < 1:
            batches = self.epoch(epoch)[done:]
            step = self._walk(batches[: self.total - step], step)
            epoch, done = epoch + 1, 0
        self._log(step)
        if self.save_every and step % self.save_every:
            # What comes after the last step may fail too, and must not cost the run.
            self._save(step)
        if self.best is not None:
            self.student.load_state_dict(self.best)
        else:
            self.average.swap()
        self.report.seconds = before + time.perf_counter() - started
        return self.report

    @property
    def spent(self) -> float:
        """The share of the recipe's time that is used; 0 where the recipe limits steps alone."""
        minutes = self.settings.minutes
        return (time.perf_counter() - self.began) / (60 * minutes) if minutes else 0.0

    def _locate(self, step: int) -> tuple[int, int]:
        """Epoch and batch of a step; with a token budget epochs differ in length."""
        epoch = 0
        while step >= (length := len(self.epoch(epoch))):
            step, epoch = step - length, epoch + 1
        return epoch, step

    def _walk(self, batches: list[Any], step: int) -> int:
        """Train on batches until they end or the run stops early; returns the next step."""
        watch = self.phase.recipe.watch
        self.student.train()
        clock = time.perf_counter()
        for groups, batch in zip(batches, self.phase.batches.walk(batches, step), strict=True):
            self._step(batch, step)
            self.report.tokens += self.phase.batches.tokens(groups)
            step += 1
            at_log = step % watch.log_every == 0
            over = self.spent >= 1 and step % self.settings.accumulate == 0
            # Evaluations are spread over the steps or the minutes; the last is where those end.
            share = max(step / self.total, min(self.spent, 1.0))
            at_eval = int(share * watch.evaluations) > len(self.report.curve)
            at_save = bool(self.save_every) and step % self.save_every == 0
            if at_log or at_eval or at_save or over or step == self.total:
                if self.accelerator.device.type == "cuda":
                    torch.cuda.synchronize()
                self._check_losses(step)
                self.report.model_seconds += time.perf_counter() - clock
                self.report.steps, self.report.seconds = step, time.perf_counter() - self.began
                if at_log:
                    self._log(step)
                if at_eval:
                    self._judge(step)
                if at_save:
                    self._save(step)
                if self.report.stopped_early or over:
                    return step
                clock = time.perf_counter()
        self.report.model_seconds += time.perf_counter() - clock
        return step

    def _step(self, batch: Any, step: int) -> None:
        for before_step in self.before_step:
            before_step(step, self.total)
        together = self.settings.accumulate
        update = step // together
        left, updates = self.total - update * together, -(-self.total // together)
        # With a limit of time the rate falls with it, as if the run were as far as its time.
        place = max(update, int(min(self.spent, 1.0) * (updates - 1)))
        for group in self.raw.param_groups:
            group["lr"] = rate(place, updates, self.settings)
        # `accelerate` updates at multiples of that; the last batches are an update however few they are.
        self.accelerator.step = step if step + 1 < self.total else together - 1
        with self.accelerator.accumulate(self.module):
            loss, parts = self.module(batch)
            self.accelerator.backward(loss * (together / min(together, left)))
            if self.accelerator.sync_gradients and self.settings.clip:
                self.accelerator.clip_grad_norm_(self.moving, self.settings.clip)
            self.optimiser.step()
            self.optimiser.zero_grad()
            if self.accelerator.sync_gradients:
                self.average.update(update)
        self.recent.append({"loss": loss.detach(), **parts})

    def _check_losses(self, step: int) -> None:
        """Stop a run whose loss is no finite number, and forget it: it would come to the same place again."""
        if not self.recent or bool(torch.stack([r["loss"] for r in self.recent]).isfinite().all()):
            return
        first = next(n for n, r in enumerate(self.recent) if not r["loss"].isfinite())
        parts = ", ".join(f"{n} {float(value):g}" for n, value in self.recent[first].items())
        if self.phase.folder is not None and self.accelerator.is_main_process:
            checkpoint.clear(self.phase.folder)
        raise Diverged(
            f"training diverged at step {step - len(self.recent) + first + 1} of {self.total} ({parts}); "
            f"begin again with a lower learning rate than {self.settings.lr:g}, or a longer warm-up"
        )

    def _log(self, step: int) -> None:
        if not self.recent:
            return
        names = self.recent[0]
        means = {n: float(torch.stack([r[n].float() for r in self.recent]).mean()) for n in names}
        self.recent.clear()
        self.report.losses = means
        self._tell({"step": step, "lr": self.raw.param_groups[0]["lr"], **means})

    def _tell(self, line: Line) -> None:
        # Of a run that ends by the clock, as many steps as the time so far lets one expect.
        total = (
            min(self.total, round(line["step"] / min(self.spent, 1.0)))
            if self.spent
            else self.total
        )
        line = {"phase": self.phase.name, "total": total, **line}
        line["seconds"] = round(self.report.seconds, 3)
        if self.accelerator.is_main_process and self.phase.folder is not None:
            self.phase.folder.mkdir(parents=True, exist_ok=True)
            with (self.phase.folder / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if self.phase.progress is not None and self.accelerator.is_main_process:
            self.phase.progress(line)

    def _judge(self, step: int) -> None:
        """Score the tune split; once settled keep the best weights, and stop when patience ends."""
        if self.phase.evaluate is None:
            return
        self.student.eval()
        with self.average.swapped():
            score = self.phase.evaluate()
            weights = {n: t.detach().clone() for n, t in self.student.state_dict().items()}
        self.student.train()
        self.report.curve.append((round(time.perf_counter() - self.began, 1), score))
        self._tell({"step": step, "tune": score})
        # Weights from before the hooks are in full force are not what the run is for.
        settled = max((hook.settled for hook in self.phase.hooks), default=0.0)
        if step <= settled * self.total and step < self.total:
            return
        if self.report.best is None or score > self.report.best:
            self.report.best, self.report.best_step, self.misses = score, step, 0
            self.best = weights
            return
        self.misses += 1
        patience = self.phase.recipe.watch.patience
        self.report.stopped_early = bool(patience) and self.misses >= patience

    # Checkpoints ----------------------------------------------------------------------------------

    def _save(self, step: int) -> None:
        if self.phase.folder is None or not self.accelerator.is_main_process:
            return
        tensors = dict(self.phase.objective.state_dict())
        tensors |= {f"best.{n}": t for n, t in (self.best or {}).items()}
        tensors |= self.average.tensors()
        tensors |= checkpoint.optimiser_tensors(self.raw) | checkpoint.random_tensors()
        state = {"phase": self.phase.name, "step": step, "total": self.total}
        state |= {"misses": self.misses, "report": vars(self.report), "of": dict(self.phase.of)}
        checkpoint.save(self.phase.folder, tensors, state)

    def _resume(self) -> int:
        """The step to go on from; 0 when there is no checkpoint of this phase."""
        saved = checkpoint.load(self.phase.folder) if self.phase.folder is not None else None
        if saved is None or saved[1]["phase"] != self.phase.name:
            return 0
        tensors, state = saved
        if state["total"] != self.total:
            raise InputError(
                f"the checkpoint in {self.phase.folder} is of a run of {state['total']} steps, and this "
                f"one has {self.total}; train with the same data and recipe, or delete it"
            )
        for name, digest in state.get("of", {}).items():
            if self.phase.of.get(name) != digest:
                raise InputError(
                    f"the checkpoint in {self.phase.folder} is of a run with another {name}; train with the "
                    "same data, recipe and model, or delete it"
                )

        own = {n: t for n, t in tensors.items() if n in self.phase.objective.state_dict()}
        self.phase.objective.load_state_dict(own)
        best = [n for n in tensors if n.startswith("best.")]
        device = self.accelerator.device
        self.best = {n.removeprefix("best."): tensors[n].to(device) for n in best} or None
        self.average.restore(tensors)
        checkpoint.restore_optimiser(self.raw, tensors)
        checkpoint.restore_random(tensors)
        self.misses, self.report = state["misses"], Report(**state["report"])
        return int(state["step"])
