"""The runs of each experiment and the datasets they read, from presets.json.

An entry is a run. Lists of seeds, datasets, splits or widths make a grid of it, in whose texts `{seed}` and
the like stand for its values; `set` names groups of recipe fields (`sets`), the later one with the last word.
`datasets` names the files in DATA.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, islice, product
from pathlib import Path
from typing import Any, Literal

import torch
from augment import bm25_of, with_hard_negatives
from stored import load_examples, save_examples

from decoupled import Model, read_pairs
from decoupled.measure.pairs import Pair
from decoupled.methods.pretrain.gazetteer import made_gazetteer
from decoupled.model.model import build
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.attention import SelfAttention
from decoupled.model.parts.table import TOKENS
from decoupled.model.split import unsplit
from decoupled.model.tokens import Passage, Tokenizer
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import tokenise
from decoupled.train.data.tasks import TASKS, Task
from decoupled.train.reshape import with_text

PRESETS = json.loads(Path(__file__).with_name("presets.json").read_text(encoding="utf-8"))
DATASETS = PRESETS["datasets"]
AXES = ("seed", "dataset", "split", "projection")
SMOKE_PAIRS = 64
NEGATIVES = 7
"""Of each training question of a mined dataset; a group of the loss draws its own from them."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run. `start` and `teacher` name a run, a folder, or `base`."""

    name: str
    dataset: str
    split: int = 0
    start: str = "base"
    teacher: str | None = None
    recipe: str = "plain"
    set: dict[str, Any] = field(default_factory=dict)
    """Fields of the recipe by dotted name."""
    seed: int = 0
    positions: str | None = None
    cross_embed: str = "none"
    projection: int | None = None
    one_way: Literal["auto"] | None = None
    """`auto`: every cross layer that the head allows is one-way."""
    extra: int = 0
    """Copies of the last layer added on top."""
    augment: dict[str, float] = field(default_factory=dict)
    """`shuffled` and `cropped` pairs, as shares of the data."""
    limit: int | None = None
    """Groups to train on; None is all."""
    held: float = 0.05
    """Share of the training data that is set aside to choose between runs."""
    bits: tuple[int | None, ...] = (None,)
    pretrain: dict[str, Any] = field(default_factory=dict)
    """`objective`, `steps`, fields of its recipe (`set`), and a `spec` where it begins at random."""
    tune: int = 0
    """Trials of a search of weights, temperature and rate, instead of one training."""
    shrink: tuple[str, ...] = ()
    """Methods that make the start smaller, before, while and after it is trained."""
    tuned: str | None = None
    """A search whose best settings it has."""
    others: tuple[str, ...] = ()
    """Runs whose layers are compared with those of the start."""
    train: bool = True
    variant: str | None = None
    """What the report calls it; a run without is not drawn there."""
    curve: str | None = None
    """The curve of the report that it is a point of."""

    def needs(self) -> set[str]:
        """Names of the runs that must be over before this one."""
        named = (self.start, self.teacher or "base", self.tuned or "base", *self.others)
        return {*named} - {"base"}

    @property
    def heavy(self) -> bool:
        """Does it train on long texts, which fill a good part of a GPU?"""
        return bool(self.pretrain) or (
            self.train and self.dataset.startswith(("squad", "race", "boolq"))
        )


def preset(name: str) -> list[Run]:
    """The runs of a preset, a whole seed before the next."""
    runs = [run for entry in PRESETS[name] for run in grid(entry)]
    return sorted(runs, key=lambda run: run.seed)


def grid(entry: dict[str, Any]) -> Iterator[Run]:
    """The runs of an entry; `set` may name groups of fields, and one of them may carry a limit."""
    axes = [name for name in AXES if isinstance(entry.get(name), list)]
    for values in product(*(entry[name] for name in axes)):
        data = {**entry, **dict(zip(axes, values, strict=True))}
        data = filled(data, {name: data.get(name) for name in AXES})
        data |= {name: tuple(data[name]) for name in ("bits", "shrink", "others") if name in data}
        if isinstance(data.get("set"), list):
            data["set"] = {k: v for name in data["set"] for k, v in PRESETS["sets"][name].items()}
            data |= {"limit": data["set"].pop("limit")} if "limit" in data["set"] else {}
        yield Run(**data)


def filled(value: Any, names: dict[str, Any]) -> Any:
    """The value with every text of it filled in."""
    if isinstance(value, str):
        return value.format(**names)
    if isinstance(value, list):
        return [filled(each, names) for each in value]
    return {k: filled(v, names) for k, v in value.items()} if isinstance(value, dict) else value


# Places -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Place:
    """Folders of a suite, and what it was asked for."""

    data: Path
    base: Path
    cache: Path
    command: str
    smoke: bool = False
    limit: int | None = None
    """Pairs to read of each part; None is all."""

    def folder(self, name: str) -> Path:
        """Where a run keeps its log, its model and its result."""
        return self.cache / "runs" / name

    def result(self, name: str) -> dict[str, Any] | None:
        """The result of a finished run."""
        path = self.folder(name) / "result.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def model(self, name: str, dataset: str) -> Model:
        """The base encoder, the model of a run, or a folder."""
        if name == "base":
            model, _ = opened(self, dataset)
            return in_small(model) if self.smoke else copy.deepcopy(model)
        made = self.folder(name) / "model"
        if made.exists():
            found = self.result(name)
            own = found is not None and found["run"]["dataset"] == dataset
            return Model.load(made) if own else self.bare(Model.load(made), dataset)
        return (
            self.model("base", dataset)
            if self.smoke
            else self.bare(Model.load(Path(name)), dataset)
        )

    def bare(self, model: Model, dataset: str) -> Model:
        """The encoder of a model that was trained for something else, with the lengths of a dataset."""
        model = with_plain_table(model)
        plain = unsplit(model.spec)
        spec = replace(plain, heads=(), vector=None, late=None, exits=(), scoring=None)
        encoder = model.rebuild(spec, {"did": "keep the encoder"})
        return with_text(encoder, **DATASETS[dataset]["lengths"])

    def onto_gpu(self, model: Model) -> Model:
        """The model where it is run: on the GPU if there is one and this is no smoke run."""
        return model.to("cuda") if torch.cuda.is_available() and not self.smoke else model


def with_plain_table(model: Model) -> Model:
    """The model with one full row per token in its table; a table that depends on positions stays."""
    embedding, net = model.spec.encoder.embedding, model.net
    plain = replace(embedding, table=None, bits=None)
    # A table whose vectors depend on positions has no single row per token to fold into.
    if embedding == plain or embedding.tokens.placed:
        return model
    with torch.no_grad():
        rows_VD = net.embedding.tokens(torch.arange(embedding.vocab, device=model.device))
    own = f"{TOKENS}."
    kept = {n: t.clone() for n, t in net.state_dict().items() if not n.startswith(own)}
    spec = replace(model.spec, encoder=replace(model.spec.encoder, embedding=plain))
    folded = build(spec, {**kept, f"{own}weight": rows_VD})
    return Model(folded, model.tokenizer, [*model.history, {"did": "fold the token table"}])


@cache
def opened(place: Place, dataset: str) -> tuple[Model, Task]:
    """The base encoder with the lengths that suit a dataset (or a smoke run), and the dataset's task."""
    short = {"query_tokens": 24, "passage_tokens": 64, "stride": 32}
    lengths = short if place.smoke else DATASETS[dataset]["lengths"]
    return with_text(Model.open(place.base), **lengths), TASKS[DATASETS[dataset]["task"]]


loaded = cache(load_examples)


def examples(place: Place, dataset: str, part: str, tokenizer: Tokenizer | None = None) -> Examples:
    """A dataset's part, few of it in a smoke run; a file is kept of it in the tokens of the base."""
    model, task = opened(place, dataset)
    own = tokenizer is None or tokenizer.json == model.tokenizer.json
    path = place.cache / "examples" / f"{dataset}-{part}.npz"
    if not (own and path.exists()):
        limit = SMOKE_PAIRS * task.options if place.smoke else place.limit
        pairs = pairs_of(place.data, DATASETS[dataset], part, limit)
        given = model.tokenizer if own else tokenizer
        made = tokenise(pairs, given, task, train=part == "train")
        if not own:
            return made
        save_examples(made, path)
    return loaded(path)


def in_small(model: Model) -> Model:
    """A random model of the same depth: what a smoke run trains."""
    old = model.spec.encoder
    small = SelfAttention(heads=2, head_width=24)
    layers = tuple(
        replace(layer, attention=small, ffn=replace(layer.ffn, width=64)) for layer in old.layers
    )
    table = replace(old.embedding, width=48)
    encoder = replace(old, width=48, embedding=table, layers=layers)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = PairEncoder(replace(model.spec, encoder=encoder))
    return Model(net.eval(), Tokenizer(model.tokenizer.json, model.spec.text), model.history)


def pairs_of(data: Path, dataset: dict[str, Any], part: str, limit: int | None) -> Iterable[Pair]:
    """The pairs of a part; sentences that WikiQA judges for a question are numbered by it."""
    files = dataset[part]
    rows = slice(*dataset.get("rows", {}).get(part, (None,)))
    pairs = islice(
        chain.from_iterable(read_pairs(data / name) for name in files), rows.start, rows.stop
    )
    pairs = islice(pairs, limit)
    if dataset.get("lower"):
        pairs = map(in_lower_case, pairs)
    if any(name.startswith("wikiqa/") for name in files):
        return (replace(pair, group=pair.query) for pair in pairs)
    if not dataset.get("mined"):
        return pairs
    # Where nothing is labelled, a query comes with the passage that answers it.
    listed = [pair if pair.answers else replace(pair, label=1) for pair in pairs]
    return with_hard_negatives(listed, NEGATIVES) if part == "train" else candidates_of(listed)


def in_lower_case(pair: Pair) -> Pair:
    """The pair without capitals, of data whose casing gives the label away."""
    passage = pair.passage.lower()
    # A few letters grow when lowered; answers would no longer be where they were.
    if len(passage) != len(pair.passage):
        return replace(pair, query=pair.query.lower())
    spans = tuple(replace(a, text=passage[a.start : a.start + len(a.text)]) for a in pair.answers)
    return replace(pair, query=pair.query.lower(), passage=passage, answers=spans)


def texts_of(place: Place, dataset: str) -> tuple[list[Passage], Path]:
    """The passages of a dataset, and a file of names that its titles and queries make."""
    files = DATASETS[dataset]["texts"]
    pairs = list(chain.from_iterable(read_pairs(place.data / name) for name in files))
    pairs = pairs[: 2 * SMOKE_PAIRS] if place.smoke else pairs
    texts = dict.fromkeys(pair.passage for pair in pairs)
    path = place.cache / f"{dataset}-names.json"
    if not path.exists():
        asked = [Passage(id="", text="", title=pair.title or pair.query) for pair in pairs]
        named = {kind: list(names) for kind, names in made_gazetteer(asked).items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(named), encoding="utf-8")
    return [Passage(id=str(n), text=text) for n, text in enumerate(texts)], path


def candidates_of(pairs: Sequence[Pair], *, depth: int = 100, count: int = 1000) -> list[Pair]:
    """`count` questions over all articles, each with its paragraph and the best others of BM25."""
    texts = list(dict.fromkeys(pair.passage for pair in pairs))
    index, found = bm25_of(texts), []
    for pair in pairs[:: max(1, len(pairs) // count)][:count]:
        others = [texts[n] for n in index.best(pair.query, depth) if texts[n] != pair.passage]
        for number, text in enumerate([pair.passage, *others[: depth - 1]]):
            label = int(not number)
            found.append(replace(pair, passage=text, label=label, answers=(), group=pair.id))
    return found
